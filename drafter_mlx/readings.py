"""Readings of sessions that are over, for a text that goes on where one of them ended."""

from collections.abc import Callable, Sequence

from drafter_mlx.cache import Reading
from strategies.tree import common_length

MOST = 4
"""Readings kept, each with the keys and values of its text."""


class Readings:
    """The last few; the one that shares most with a new text is gone on with."""

    def __init__(self, new: Callable[[], Reading]) -> None:
        self._new = new
        self._kept: list[tuple[tuple[int, ...], Reading]] = []

    def take(self, tokens: Sequence[int]) -> Reading:
        """A reading for a text that begins with `tokens`."""
        shared = [common_length(known, tokens) for known, _ in self._kept]
        useful = [i for i, (known, _) in enumerate(self._kept) if 0 < len(known) <= 2 * shared[i]]
        if not useful:  # less than half of it is better left to whoever goes on with it
            return self._new()
        best = max(useful, key=lambda i: shared[i])
        _, reading = self._kept.pop(best)
        reading.forget(shared[best])
        return reading

    def give(self, tokens: Sequence[int], reading: Reading) -> None:
        """A session is over whose text is `tokens`."""
        reading.forget(reading.line)
        self._kept.append((tuple(tokens[: reading.line]), reading))
        del self._kept[:-MOST]
