"""Speculative sampling: accept a draw with min(1, p/q), else draw from what is left of p.

Lossless in distribution: each token is a sample of the target's own distribution,
though another one than plain decoding would have drawn with this seed, and it
depends on the drafts which. (arXiv:2211.17192, arXiv:2302.01318; several draws
below one node in turn, without replacement, as in arXiv:2402.12374.)

It trusts the drafter's word for what it drew from: a lying one bends the text,
which it cannot under `exact`. Guesses that were not drawn are tested as certain
ones, which no lie can bend.
"""

import numpy as np

from bus.packed import Proposal
from strategies.acceptance import Chances, Rows, TargetView, Verdict

LAST = 255
"""Number of the random value that draws a token when no draft was accepted."""


class Probabilistic:
    """Walk down while draws are accepted; the residual is updated from sibling to sibling."""

    lossy = False
    draws = True

    def judge(self, rows: Rows, view: TargetView) -> Verdict:
        path: list[int] = []
        row = 0
        while True:
            chances = view.distribution(row)
            accepted = None
            if children := rows.children(row):
                proposal = rows.proposals.get(row)
                children = rows.drawn(row) if proposal else children
                accepted, chances = _tried(rows, row, children, proposal, view, chances)
            if accepted is None:
                return Verdict(tuple(path), draw(chances, view.uniform(row, LAST)))
            path.append(accepted)
            row = accepted


def _tried(
    rows: Rows,
    row: int,
    children: list[int],
    proposal: Proposal | None,
    view: TargetView,
    chances: Chances,
) -> tuple[int | None, Chances]:
    """The first accepted of `children`, and what is left of `chances` before it."""
    left = Remaining(proposal) if proposal else None
    for number, child in enumerate(children):
        token = rows.tokens[child]
        if left is not None and not left.holds(token):
            break  # it was not drawn from what its drafter said
        asked = left.chance(token) if left else 1.0
        if view.uniform(row, number) * asked < chances[token]:
            return child, chances
        chances = left.residual(chances) if left else _without(chances, token)
        if left:
            left.remove(token)
    return None, chances


class Remaining:
    """A proposal from which tokens are taken, one after another."""

    def __init__(self, proposal: Proposal) -> None:
        self._ids = np.array(proposal.tokens)
        self._weights = np.array(proposal.weights, np.float64)
        self._place = {token: place for place, token in enumerate(proposal.tokens)}

    def holds(self, token: int) -> bool:
        """True while `token` may be drawn."""
        return token in self._place and self._weights[self._place[token]] > 0

    def chance(self, token: int) -> float:
        """Of the next draw to be `token`."""
        return float(self._weights[self._place[token]] / self._weights.sum())

    def residual(self, chances: Chances) -> Chances:
        """What is left of the target's distribution when a draw from here was turned down."""
        rest = chances.copy()
        rest[self._ids] -= self._weights / self._weights.sum()
        return _normal(np.maximum(rest, 0.0), chances)

    def remove(self, token: int) -> None:
        """`token` was drawn."""
        self._weights[self._place[token]] = 0.0


def _without(chances: Chances, token: int) -> Chances:
    rest = chances.copy()
    rest[token] = 0.0
    return _normal(rest, chances)


def _normal(rest: Chances, otherwise: Chances) -> Chances:
    """`rest` with a sum of 1; nothing is left only by a rounding, so then `otherwise`."""
    total = rest.sum()
    return rest / total if total > 0 else otherwise


def draw(chances: Chances, uniform: float) -> int:
    """The token at `uniform` of the way through `chances`."""
    reached = np.cumsum(chances)
    token = int(np.searchsorted(reached, uniform * reached[-1], side="right"))
    return min(token, int(np.flatnonzero(chances)[-1]))
