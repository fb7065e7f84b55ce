"""Where the rows of a pass lie in their cache slot. Pure.

Text lies at its position. A branch beside it lies further up in the slot, so
that a row adds up its prefix in the same order, and in the same lanes, whether
its ancestors are text already or still a branch: then the last bit of its logits
does not depend on drafts. (Sums run in lanes of 16, and matrix products in
blocks of 192 places; see docs/decisions/0004-bitwise.md.)
"""

from collections.abc import Sequence

BLOCK = 192
LANES = 16


class Layout:
    """The places of one session's rows in one pass, given out one by one."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._taken = {start}

    def place(self, depth: int, branch: int) -> int | None:
        """A free place for a row `depth` below row 0; None where there is none.

        `branch` is the parent's: a child never lies on a lower one.
        """
        home = self._start + depth
        end = (home // BLOCK + 1) * BLOCK
        for place in range(home + LANES * branch, end, LANES):
            if place not in self._taken:
                self._taken.add(place)
                return place
        return None

    def branch(self, place: int, depth: int) -> int:
        """On which branch a place lies; 0 is where text will be."""
        return (place - self._start - depth) // LANES


def in_line(start: int, count: int) -> Sequence[int]:
    """The places of rows that are text."""
    return range(start, start + count)
