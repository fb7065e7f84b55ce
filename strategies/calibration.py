"""Calibration: how often a guess of a given rank and confidence is right, learned online. Pure.

A model's own probabilities are badly calibrated for this: they say how likely a
token is in general, not how likely the target is to say it. Each text that is
committed tells of every guess along it whether it was right.
"""

from collections.abc import Callable
from math import log
from typing import Any

RANKS = 4
"""Ranks that are told apart; further ones count as the last."""
_EDGE = 4.5
_BINS = 12
_PRIOR_WEIGHT = 6.0
_MEMORY = 400.0
"""Observations after which older ones begin to fade."""

Prior = Callable[[int, float], float]
"""(rank, confidence) to the chance that is believed before anything was seen."""


def trusting(rank: int, confidence: float) -> float:
    """Believe what is said."""
    del rank
    return confidence


def drafting(rank: int, confidence: float) -> float:
    """What small drafts are like: an unsure first choice is right more often than it says."""
    return 0.35 + 0.6 * confidence if rank == 0 else confidence


def _bin(confidence: float) -> int:
    """Bins of equal width in log-odds."""
    bounded = min(max(confidence, 1e-4), 1 - 1e-4)
    place = (log(bounded / (1 - bounded)) + _EDGE) / (2 * _EDGE)
    return min(_BINS - 1, max(0, int(place * _BINS)))


class Calibration:
    """Counts of right and wrong guesses by rank and confidence."""

    def __init__(self, prior: Prior = trusting) -> None:
        self._prior = prior
        self._tried = [[0.0] * _BINS for _ in range(RANKS)]
        self._right = [[0.0] * _BINS for _ in range(RANKS)]

    def chance(self, rank: int, confidence: float) -> float:
        """How likely a guess is right, given that what it follows is; in [0, 0.99]."""
        row, column = min(rank, RANKS - 1), _bin(confidence)
        right = self._right[row][column] + _PRIOR_WEIGHT * self._prior(rank, confidence)
        return min(0.99, right / (self._tried[row][column] + _PRIOR_WEIGHT))

    def saw(self, rank: int, confidence: float, right: bool) -> None:
        """The text has told whether a guess was right."""
        row, column = min(rank, RANKS - 1), _bin(confidence)
        fade = min(1.0, _MEMORY / (self._tried[row][column] + 1))
        self._tried[row][column] = self._tried[row][column] * fade + 1
        self._right[row][column] = self._right[row][column] * fade + right

    def to_json(self) -> dict[str, Any]:
        """What was learned, to be kept."""
        return {"bins": _BINS, "tried": self._tried, "right": self._right}

    def load(self, kept: Any) -> None:
        """Take over what an earlier run learned; ValueError when it is not that."""
        try:
            tried, right = ([[float(v) for v in row] for row in kept[name]]
                            for name in ("tried", "right"))  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ValueError("no calibration") from None
        shapes = {len(table) for table in (tried, right)}, {len(row) for row in (*tried, *right)}
        sound = all(0 <= r <= t < 1e6 for a, b in zip(tried, right, strict=False)
                    for t, r in zip(a, b, strict=False))  # fmt: skip
        if shapes != ({RANKS}, {_BINS}) or not sound:
            raise ValueError("a calibration of another shape")
        self._tried, self._right = tried, right
