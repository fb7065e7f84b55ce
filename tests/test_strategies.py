"""Strategies are found by name, and accept what the target foresaw."""

from dataclasses import dataclass, field

import numpy as np
import pytest

import strategies
from bus.errors import BadSetup
from strategies.acceptance import Rows, Verdict
from strategies.acceptance.exact import Exact
from strategies.acceptance.greedy import Greedy
from strategies.acceptance.threshold import Threshold
from strategies.acceptance.typical import Typical
from strategies.drafting.fixed import Fixed
from strategies.drafting.pipelined import Pipelined
from strategies.drafting.tree import Tree

# Found by name -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "factory"),
    [
        ("acceptance", "exact", Exact),
        ("acceptance", "greedy", Greedy),
        ("drafting", "fixed", Fixed),
        ("drafting", "pipelined", Pipelined),
        ("drafting", "tree", Tree),
    ],
)
def test_built_ins_are_found_through_entry_points(
    kind: strategies.Kind, name: str, factory: type
) -> None:
    assert strategies.load(kind, name) is factory
    assert name in strategies.names(kind)


@pytest.mark.parametrize("kind", ["acceptance", "drafting"])
def test_an_unknown_name_is_bad_setup_that_names_the_known_ones(kind: strategies.Kind) -> None:
    with pytest.raises(BadSetup, match="no-such-thing") as caught:
        strategies.load(kind, "no-such-thing")
    assert strategies.names(kind)
    assert all(name in str(caught.value) for name in strategies.names(kind))


def test_a_name_of_the_other_kind_is_unknown() -> None:
    with pytest.raises(BadSetup, match="'fixed'"):
        strategies.load("acceptance", "fixed")


# Lossy acceptance --------------------------------------------------------------------


@dataclass
class Spread:
    """A target with the same choice and softmax after every row."""

    own: int
    chances: tuple[float, ...]

    def choice(self, row: int) -> int:
        return self.own

    def likelihoods(self, row: int) -> np.ndarray:
        return np.array(self.chances)


TWO = Rows((9, 1, 2), (0, 0, 0))
"""Two drafts below the tip."""


@pytest.mark.parametrize(
    ("acceptance", "own", "chances", "verdict"),
    [
        (Threshold(0.2), 0, (0.5, 0.2, 0.3), Verdict((2,), 0)),  # the likeliest of both
        (Threshold(0.2), 1, (0.5, 0.1, 0.4), Verdict((1,), 1)),  # its own choice, however unlikely
        (Threshold(0.31), 0, (0.5, 0.2, 0.3), Verdict((), 0)),
        (Threshold(0.3), 0, (0.5, 0.2, 0.3), Verdict((2,), 0)),  # at least τ
        # Entropy 1.0297: 0.3 · exp(-1.0297) = 0.107
        (Typical(0.9, 0.3), 0, (0.5, 0.2, 0.3), Verdict((2,), 0)),
        (Typical(0.9, 0.9), 0, (0.5, 0.2, 0.3), Verdict((), 0)),  # 0.321
        (Typical(0.2, 9.0), 0, (0.5, 0.2, 0.3), Verdict((2,), 0)),  # ε bounds it
        (Typical(), 0, (0.95, 0.01, 0.04), Verdict((), 0)),  # sure: 0.09 is asked
    ],
)
def test_lossy_acceptance_takes_what_is_likely_enough(
    acceptance: Threshold | Typical, own: int, chances: tuple[float, ...], verdict: Verdict
) -> None:
    assert acceptance.lossy
    assert acceptance.judge(TWO, Spread(own, chances)) == verdict


@pytest.mark.parametrize("text", ["threshold:0", "threshold:2", "typical:0.1:0", "exact:1"])
def test_numbers_out_of_range_are_bad_setup(text: str) -> None:
    with pytest.raises(BadSetup, match=text.split(":")[0]):
        strategies.make_acceptance(text)


# Acceptance --------------------------------------------------------------------------


@dataclass
class Choices:
    """A target that says fixed tokens, and remembers for which rows it was asked."""

    by_row: dict[int, int]
    asked: list[int] = field(default_factory=list)

    def choice(self, row: int) -> int:
        self.asked.append(row)
        return self.by_row[row]


# Row 0 is the tip; 10 and 11 continue it; 20 and 21 continue 10; 22 continues 11; 30 continues 20.
ROWS = Rows([5, 10, 11, 20, 21, 22, 30], [0, 0, 0, 1, 1, 2, 3])


@pytest.mark.parametrize(
    ("choices", "verdict", "asked"),
    [
        pytest.param({0: 10, 1: 20, 3: 30, 6: 40}, ((1, 3, 6), 40), [0, 1, 3, 6], id="bonus"),
        pytest.param({0: 10, 1: 20, 3: 31}, ((1, 3), 31), [0, 1, 3], id="correction"),
        pytest.param({0: 12}, ((), 12), [0], id="correction at once"),
        pytest.param({0: 11, 2: 22, 5: 7}, ((2, 5), 7), [0, 2, 5], id="sibling"),
        pytest.param({0: 10, 1: 21, 4: 7}, ((1, 4), 7), [0, 1, 4], id="deeper sibling"),
        pytest.param({0: 11, 2: 20}, ((2,), 20), [0, 2], id="a token of another branch"),
    ],
)
def test_exact_follows_the_target_as_long_as_a_draft_foresaw_it(
    choices: dict[int, int], verdict: tuple[tuple[int, ...], int], asked: list[int]
) -> None:
    view = Choices(choices)
    assert Exact().judge(ROWS, view) == Verdict(*verdict)
    assert view.asked == asked


def test_exact_takes_the_targets_token_when_nothing_is_drafted() -> None:
    assert Exact().judge(Rows([5], [0]), Choices({0: 5})) == Verdict((), 5)


def test_greedy_takes_no_draft() -> None:
    view = Choices({0: 10})
    assert Greedy().judge(ROWS, view) == Verdict((), 10)
    assert view.asked == [0]


def test_neither_is_lossy() -> None:
    assert not Exact.lossy and not Greedy.lossy


def test_the_children_of_a_row_come_as_drafted_and_row_0_is_not_its_own_child() -> None:
    assert [ROWS.children(row) for row in range(7)] == [[1, 2], [3, 4], [5], [6], [], [], []]
