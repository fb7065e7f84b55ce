"""The contract of an acceptance strategy: which drafted path becomes text.

A strategy is a pure function of the rows of one pass and the target's view of
them. It holds no tensors: the view computes what is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Rows:
    """The rows of one session in one pass. Row 0 is the last committed token."""

    tokens: Sequence[int]
    parents: Sequence[int]
    """Row of each row's parent; row 0 names itself."""

    def children(self, row: int) -> list[int]:
        """The rows that continue `row`, in the order they were drafted."""
        return [i for i, parent in enumerate(self.parents) if parent == row and i != row]


class TargetView(Protocol):
    """What the target says about the rows of one pass."""

    def choice(self, row: int) -> int:
        """The target's own keyed choice of the token after `row`."""


@dataclass(frozen=True)
class Verdict:
    """What a pass decided."""

    accepted: tuple[int, ...]
    """Rows of the accepted path, from just below row 0 down; empty when none was."""
    token: int
    """The token after that path: the correction, or the bonus."""


class Acceptance(Protocol):
    """Decides what of a pass is committed."""

    lossy: bool
    """True when the text may differ from what the target alone would say."""

    def judge(self, rows: Rows, view: TargetView) -> Verdict:
        """The accepted path and the token after it."""
