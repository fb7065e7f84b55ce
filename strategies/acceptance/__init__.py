"""The contract of an acceptance strategy: which drafted path becomes text.

A strategy is a pure function of the rows of one pass and the target's view of
them. It holds no tensors: the view computes what is asked for, and only that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bus.packed import Logprob, Proposal

Chances = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """The rows of one session in one pass. Row 0 is the last committed token."""

    tokens: Sequence[int]
    parents: Sequence[int]
    """Row of each row's parent; row 0 names itself."""
    ranks: Sequence[int] = field(default=(), compare=False)
    """Of each row among its parent's children, in the order they were drafted."""
    proposals: Mapping[int, Proposal] = field(default_factory=dict, compare=False)
    """By row: what its children were drawn from, where they were drawn at random."""

    def children(self, row: int) -> list[int]:
        """The rows that continue `row`, in the order they were drafted."""
        return [i for i, parent in enumerate(self.parents) if parent == row and i != row]

    def paths(self) -> list[tuple[int, ...]]:
        """The drafted tokens from just below row 0 down to each row."""
        found: list[tuple[int, ...]] = [()]
        for row in range(1, len(self.tokens)):
            found.append((*found[self.parents[row]], self.tokens[row]))
        return found

    def drawn(self, row: int) -> list[int]:
        """The children in the order they were drawn, up to the first that is not in the pass."""
        children = sorted(self.children(row), key=lambda child: self.ranks[child])
        known = enumerate(children)
        return [child for rank, child in known if self.ranks[child] == rank]


class TargetView(Protocol):
    """What the target says about the rows of one pass."""

    def choice(self, row: int) -> int:
        """The target's own keyed choice of the token after `row`."""

    def distribution(self, row: int) -> Chances:
        """What that choice is drawn from, `[vocab]`: penalties, temperature and cuts applied.

        At temperature 0 the whole chance is the likeliest token's.
        """

    def likelihoods(self, row: int) -> Chances:
        """The softmax after `row`, `[vocab]`: bias and penalties, temperature 1, nothing cut."""

    def logprobs(self, rows: Sequence[int], tokens: Sequence[int], top: int) -> list[Logprob]:
        """The model's own, before all adjustment: of one token after each of `rows`.

        Each with those of the `top` likeliest tokens there.
        """

    def uniform(self, row: int, number: int) -> float:
        """The `number`-th random value in (0, 1) for the position after `row`.

        A function of seed, position and number. No drafter draws from the same source, so
        no draft can depend on it.
        """


@dataclass(frozen=True)
class Verdict:
    """What a pass decided."""

    accepted: tuple[int, ...]
    """Rows of the accepted path, from just below row 0 down; empty when none was."""
    token: int
    """The token after that path: the correction, or the bonus."""


class Acceptance(Protocol):
    """Decides what of a pass is committed.

    One that tests guesses by the chance they were drawn with has `draws = True` as well:
    then drafters draw at random, and `Rows.proposals` says what from.
    """

    lossy: bool
    """True when the text may differ from what the target alone would say."""

    def judge(self, rows: Rows, view: TargetView) -> Verdict:
        """The accepted path and the token after it."""
