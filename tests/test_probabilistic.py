"""p/q acceptance: the text is a sample of the target, joint over positions, for all shapes.

A target and a draft of six tokens, each token's distribution hanging on the one
before. A few thousand runs of each shape are compared with the exact product of
probabilities; planted mistakes have to be found by the same numbers.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chisquare

from bus.packed import Proposal
from drafter_mlx import proposals
from strategies import noise
from strategies.acceptance import Rows
from strategies.acceptance import probabilistic as subject
from strategies.acceptance.probabilistic import LAST, Probabilistic, Remaining, draw
from strategies.tree import DraftTree, Node
from verifier_cuda.planner import Pace, select

SIZE = 6
RUNS = 35_000
"""Of each shape: three shapes and two tokens make 210,000."""
RNG = np.random.default_rng(5)
TARGET = RNG.dirichlet(np.full(SIZE, 0.7), SIZE)
DRAFT = RNG.dirichlet(np.full(SIZE, 0.7), SIZE)
"""Rows: the token before. They disagree a great deal."""
SHAPES = {"chain": (1, 1), "candidates": (3, 1), "hedged tree": (2, 3)}
"""Children of the root, and of each node below it."""


@dataclass
class View:
    """The target's word on the rows of one pass."""

    rows: Rows
    seed: int
    position: int

    def distribution(self, row: int) -> np.ndarray:
        return TARGET[self.rows.tokens[row]]

    def uniform(self, row: int, number: int) -> float:
        depth = 0
        while row:
            row, depth = self.rows.parents[row], depth + 1
        return noise.uniform(self.seed, self.position + depth, number)


def proposal(token: int) -> Proposal:
    """What the draft draws from after `token`, as it travels."""
    return Proposal(0, tuple(range(SIZE)), tuple(np.float16(DRAFT[token] / DRAFT[token].max())))


def grow(tree: DraftTree, node: Node, seed: int, count: int) -> None:
    if node.children:
        return
    told = proposal(node.token)
    children = proposals.drawn(told, seed, node.position + 1, count)
    node.proposal = told
    for token, _ in children:
        tree.add(node, token, 0.5)


def two_tokens(seed: int, shape: tuple[int, int], pace: Pace) -> tuple[int, int]:
    """The first two tokens that a session commits."""
    tree = DraftTree([0], 64)
    while tree.tip < 3:
        grow(tree, tree.root, seed, shape[0])
        for child in tree.root.children:
            grow(tree, child, seed, shape[1])
        chosen = select(tree, 16, 8, pace.chance)
        verdict = Probabilistic().judge(chosen.rows, View(chosen.rows, seed, tree.tip))
        tree.advance([*(chosen.rows.tokens[row] for row in verdict.accepted), verdict.token])
    return tree.tokens[1], tree.tokens[2]


def p_value(shape: str, runs: int) -> float:
    """Of the joint counts of two tokens against the target's own chances."""
    counts, pace = np.zeros((SIZE, SIZE)), Pace()
    for seed in range(runs):
        counts[two_tokens(seed, SHAPES[shape], pace)] += 1
    expected = runs * TARGET[0][:, None] * TARGET
    likely = expected > 5
    kept = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum())
    return float(chisquare(kept[wanted > 0], wanted[wanted > 0]).pvalue)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_tokens_are_a_sample_of_the_target(shape):
    assert p_value(shape, RUNS) > 1e-3


def shared(told: Proposal, seed: int, position: int, count: int) -> list[tuple[int, float]]:
    """Draws by the value that judges them."""
    token = draw(np.array(told.weights), noise.uniform(seed, position, 0))
    others = [other for other in told.tokens if other != token]
    return [(each, 0.5) for each in [token, *others][:count]]


def first_only(self, chances):
    """The residual of the first sibling alone."""
    if self._weights.min() > 0:
        return REAL(self, chances)
    return chances


REAL = Remaining.residual
MISTAKES = {
    "the residual is the target's own distribution": (
        "chain", lambda patch: patch.setattr(Remaining, "residual", lambda self, chances: chances),
    ),
    "the draft tells another temperature than it drew with": (
        "chain", lambda patch: patch.setattr(
            Remaining, "chance", lambda self, token: float(
                (self._weights**0.5)[self._place[token]] / (self._weights**0.5).sum())),
    ),
    "the draft draws by the noise that judges it": (
        "chain", lambda patch: patch.setattr(proposals, "drawn", shared),
    ),
    "the residual is not updated from sibling to sibling": (
        "candidates", lambda patch: patch.setattr(Remaining, "residual", first_only),
    ),
    "siblings are taken for drawn with replacement": (
        "candidates", lambda patch: patch.setattr(Remaining, "remove", lambda self, token: None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake, monkeypatch):
    shape, plant = MISTAKES[mistake]
    plant(monkeypatch)
    assert p_value(shape, 8_000) < 1e-6


def test_what_is_pruned_for_its_value_is_found(monkeypatch):
    """Why a draw's confidence must not say which token it is."""
    real = Rows.drawn

    def unlikely_ones_left_out(self, row):
        chances = DRAFT[self.tokens[row]]
        return [child for child in real(self, row) if chances[self.tokens[child]] > 0.3]

    monkeypatch.setattr(Rows, "drawn", unlikely_ones_left_out)
    assert p_value("chain", 8_000) < 1e-6


# By hand -----------------------------------------------------------------------------


@dataclass
class Fixed:
    """A view of one row with chosen random values."""

    chances: list[float]
    values: dict[int, float]

    def distribution(self, row):
        return np.array(self.chances)

    def uniform(self, row, number):
        return self.values[number]


ONE_DRAW = Rows((0, 1), (0, 0), (0, 0), {0: Proposal(0, (0, 1, 2), (0.25, 0.5, 0.25))})


@pytest.mark.parametrize(
    ("chances", "value", "last", "said"),
    [
        ([0.5, 0.25, 0.25], 0.49, 0.9, (1,)),  # 0.25 / 0.5
        ([0.5, 0.25, 0.25], 0.51, 0.9, (0,)),  # the rest is all on 0: 0.25, 0, 0
        ([0.25, 0.25, 0.5], 0.51, 0.01, (2,)),  # 0, 0, 0.25
        ([0.0, 0.9, 0.1], 0.999, 0.5, (1,)),  # over 1
    ],
)
def test_a_draw_is_accepted_with_p_over_q_and_else_drawn_from_the_rest(chances, value, last, said):
    verdict = Probabilistic().judge(ONE_DRAW, Fixed(chances, {0: value, LAST: last}))
    tokens = [ONE_DRAW.tokens[row] for row in verdict.accepted] or [verdict.token]
    assert tuple(tokens) == said


def test_a_guess_that_was_not_drawn_is_tested_as_a_certain_one():
    rows = Rows((0, 1, 2), (0, 0, 0), (0, 0, 1))
    view = Fixed([0.5, 0.25, 0.25], {0: 0.3, 1: 0.34, LAST: 0.9})
    assert Probabilistic().judge(rows, view).token == 0, "0.25 of 1, then 0.25 of 0.75, then 0"
    view.values[1] = 0.32
    assert Probabilistic().judge(rows, view).accepted == (2,)


def test_only_draws_before_a_gap_are_tried():
    rows = Rows((0, 1, 2), (0, 0, 0), (0, 2, 0), ONE_DRAW.proposals)
    assert rows.drawn(0) == [2], "the second draw is not here, so the third is not tried"


def test_at_temperature_zero_it_is_exact():
    view = Fixed([0.0, 1.0, 0.0], {0: 0.999, LAST: 0.001})
    assert Probabilistic().judge(ONE_DRAW, view).accepted == (1,)
    wrong = Rows((0, 2), (0, 0), (0, 0), ONE_DRAW.proposals)
    assert Probabilistic().judge(wrong, view).token == 1


def test_a_draw_from_elsewhere_than_was_said_is_not_tried():
    rows = Rows((0, 5), (0, 0), (0, 0), ONE_DRAW.proposals)
    verdict = Probabilistic().judge(rows, Fixed([0, 0, 0, 0, 0, 1.0], {LAST: 0.5}))
    assert verdict == subject.Verdict((), 5)


@pytest.mark.parametrize("uniform", [1e-10, 0.5, 1 - 1e-10])
def test_a_token_without_chance_is_never_drawn(uniform):
    assert draw(np.array([0.0, 0.5, 0.0, 0.5, 0.0]), uniform) in (1, 3)


# At the drafter ----------------------------------------------------------------------


def test_draws_are_without_replacement_and_follow_what_is_told():
    told = Proposal(0, (7, 8, 9), (1.0, 0.5, 0.5))
    drawn = [proposals.drawn(told, seed, 3, 2) for seed in range(8_000)]
    assert all(first != second for (first, _), (second, _) in drawn)
    firsts = [first for (first, _), _ in drawn]
    counts = [firsts.count(token) for token in told.tokens]
    assert chisquare(counts, [4_000, 2_000, 2_000]).pvalue > 1e-3
    second = [s for (f, _), (s, _) in drawn if f == 7]
    assert chisquare([second.count(8), second.count(9)]).pvalue > 1e-3


def test_what_is_told_survives_the_wire():
    told = proposals.support([(5, 0.6), (3, 0.25), (9, 1e-9), (70000, 0.15)])
    assert told.tokens == (5, 3, 70000), "too unlikely for an f16: never drawn either"
    assert told.weights == tuple(float(np.float16(w)) for w in (1.0, 0.25 / 0.6, 0.15 / 0.6))
