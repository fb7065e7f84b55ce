"""Strategies: found by name, and whole sequences of what they decide on small trees."""

from dataclasses import dataclass, field

import pytest

import strategies
from bus.errors import BadSetup
from strategies.acceptance import Rows, Verdict
from strategies.acceptance.exact import Exact
from strategies.acceptance.greedy import Greedy
from strategies.drafting import Drafting, Observation, Options, Step
from strategies.drafting.fixed import Fixed
from strategies.drafting.pipelined import Pipelined
from strategies.drafting.tree import Tree
from strategies.tree import DraftTree

END = 99


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


# Drafting ----------------------------------------------------------------------------


@dataclass
class Drafter:
    """The drafter's loop without models: the n-th position past the prompt guesses `says[n]`."""

    strategy: Drafting
    room: int = 8
    says: tuple[int, ...] = tuple(range(20, 60))
    tree: DraftTree = field(default_factory=lambda: DraftTree([1, 2], 100))
    unpushed: int = 0

    def plan(self) -> Step | None:
        in_flight = len(self.tree) - self.unpushed
        return self.strategy.plan(
            Observation(self.tree, self.room, frozenset([END]), self.unpushed, in_flight)
        )

    def step(self) -> tuple[tuple[int, ...], int, bool] | None:
        """Positions of the expanded nodes, children of each, and whether all was pushed."""
        step = self.plan()
        if step is None:
            return None
        for node in step.expand:
            assert not node.children
            for rank in range(step.children):
                self.tree.add(node, self.says[node.position - 1] + 100 * rank, 0.5)
                self.unpushed += 1
        self.unpushed *= not step.push
        return tuple(node.position for node in step.expand), step.children, step.push

    def steps(self) -> list[tuple[tuple[int, ...], int, bool]]:
        """All steps until the strategy waits."""
        return list(iter(self.step, None))


def fixed(length: int, **situation: object) -> Drafter:
    return Drafter(Fixed(Options(num_draft_tokens=length)), **situation)


def test_fixed_pushes_exactly_k_at_once_and_then_waits() -> None:
    drafter = fixed(3)
    assert drafter.steps() == [((1,), 1, False), ((2,), 1, False), ((3,), 1, True)]
    assert len(drafter.tree) == 3
    assert drafter.plan() is None


def test_fixed_with_k_of_1_pushes_each_token() -> None:
    assert fixed(1).steps() == [((1,), 1, True)]


def test_fixed_drafts_again_after_the_verdict() -> None:
    drafter = fixed(2)
    drafter.steps()
    drafter.tree.advance([20])
    assert drafter.steps() == []  # 21 is still in flight
    drafter.tree.advance([77])
    assert drafter.steps() == [((3,), 1, False), ((4,), 1, True)]


def test_fixed_pushes_a_shorter_chain_at_an_end_token() -> None:
    drafter = fixed(4, says=(20, END, 22, 23))
    assert drafter.steps() == [((1,), 1, False), ((2,), 1, False), ((), 1, True)]
    assert drafter.unpushed == 0


def test_fixed_pushes_a_shorter_chain_when_room_ends() -> None:
    assert fixed(4, room=2).steps() == [((1,), 1, False), ((2,), 1, False), ((), 1, True)]


def test_pipelined_pushes_each_token_while_others_are_in_flight() -> None:
    drafter = Drafter(Pipelined(Options()), room=4)
    assert drafter.steps() == [((position,), 1, True) for position in (1, 2, 3, 4)]
    drafter.tree.advance([20, 21])
    assert drafter.steps() == [((5,), 1, True), ((6,), 1, True)]


def test_pipelined_starts_again_from_a_correction() -> None:
    drafter = Drafter(Pipelined(Options()), room=2)
    drafter.steps()
    drafter.tree.advance([77])
    assert drafter.steps() == [((2,), 1, True), ((3,), 1, True)]


@pytest.mark.parametrize("branches", [1, 3])
def test_tree_asks_for_branches_children_of_each_first_choice(branches: int) -> None:
    drafter = Drafter(Tree(Options(branches=branches)), room=3)
    assert drafter.steps() == [((position,), branches, True) for position in (1, 2, 3)]
    assert [node.token for node in drafter.tree.chain()] == [20, 21, 22]
    assert len(drafter.tree) == 3 * branches


ALL = [Fixed(Options(num_draft_tokens=4)), Pipelined(Options()), Tree(Options(branches=2))]


@pytest.mark.parametrize("strategy", ALL)
def test_nothing_is_drafted_past_an_end_token(strategy: Drafting) -> None:
    drafter = Drafter(strategy, says=(20, END, 22, 23))
    drafter.steps()
    assert [node.token for node in drafter.tree.chain()] == [20, END]


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("room", [-1, 0, 1, 2])
def test_nothing_is_drafted_beyond_room(strategy: Drafting, room: int) -> None:
    drafter = Drafter(strategy, room=room)
    drafter.steps()
    assert len(drafter.tree.chain()) == max(room, 0)
    assert drafter.unpushed == 0


@pytest.mark.parametrize("strategy", ALL)
def test_an_end_token_in_the_prompt_stops_nothing(strategy: Drafting) -> None:
    drafter = Drafter(strategy, tree=DraftTree([1, END], 100), room=1)
    drafter.steps()
    assert len(drafter.tree.chain()) == 1
