"""Limits of speed: what each way of drafting can reach at best, in closed form.

α is the chance that a guess is right, given that all before it were. A text of n
tokens and a draft of k tokens are long and short enough for edges not to matter.
Rates are tokens per second of one text.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

MAX_DRAFT = 32
"""Longest draft that a search for the best one tries."""


@dataclass(frozen=True)
class Curve:
    """Seconds by number of rows: straight between known points, and on along the last slope."""

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        rows = [row for row, _ in self.points]
        assert rows and rows == sorted(set(rows)), "points go up"

    @classmethod
    def flat(cls, base_s: float, upto: int, row_s: float = 0.0) -> "Curve":
        """`base_s` up to so many rows, then `row_s` more for each."""
        return cls(((upto, base_s), (upto + 1, base_s + row_s)))

    @classmethod
    def measured(cls, seconds: Mapping[str, float]) -> "Curve":
        """From a table of a result file, whose keys are texts; it never falls."""
        points: list[tuple[int, float]] = []
        for rows, value in sorted((int(rows), value) for rows, value in seconds.items()):
            points.append((rows, max(value, points[-1][1]) if points else value))
        return cls(tuple(points))

    def plus(self, seconds: float) -> "Curve":
        """The same and so much more."""
        return Curve(tuple((rows, value + seconds) for rows, value in self.points))

    def at(self, rows: int) -> float:
        """Seconds for so many rows."""
        points = self.points
        if rows <= points[0][0] or len(points) == 1:
            return points[0][1]
        above = next((i for i, (known, _) in enumerate(points) if rows <= known), len(points) - 1)
        (left, low), (right, high) = points[above - 1], points[above]
        return low + (high - low) * (rows - left) / (right - left)


@dataclass(frozen=True)
class Setting:
    """What the limits depend on."""

    alpha: tuple[float, ...]
    """Chance of each rank: that the first choice is right, that the second is, and so on."""
    draft_s: Curve
    """t_d by nodes in a step."""
    pass_s: Curve
    """t_v by rows in a pass."""
    rtt_s: float = 0.0
    texts: int = 1
    """Texts that share every pass."""

    def round_s(self, k: int) -> float:
        """Draft k tokens, send, verify, send back."""
        return k * self.draft_s.at(1) + self.rtt_s + self.verify_s(k)

    def verify_s(self, k: int) -> float:
        """A pass with k drafts of each text."""
        return self.pass_s.at(self.texts * (k + 1))


def expected(alpha: float, k: int) -> float:
    """E_k: tokens that a pass brings on average with a chain of k drafts."""
    return k + 1.0 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def plain(s: Setting) -> float:
    """The target alone."""
    return 1 / s.verify_s(0)


def synchronous(s: Setting, k: int) -> float:
    """Draft k tokens, send, verify, send back, and only then draft again."""
    return expected(s.alpha[0], k) / s.round_s(k)


def lock_step(s: Setting, k: int) -> float:
    """The next k tokens are drafted while the last k are verified, in the hope that all are right.

    There is no bonus token: the draft that was made meanwhile stands in its place.
    """
    whole = s.alpha[0] ** k
    hidden_s = max(k * s.draft_s.at(1), s.verify_s(k))
    return expected(s.alpha[0], k - 1) / (whole * hidden_s + (1 - whole) * s.round_s(k))


def outcome_cache(s: Setting, k: int) -> float:
    """Drafts for every outcome lie ready at the drafter: no drafting time, but each round trip."""
    return expected(s.alpha[0], k) / (s.rtt_s + s.verify_s(k))


def draft_tree(s: Setting) -> float:
    """Every continuation that the draft's choices foresee lies ready at the verifier.

    A ceiling for any width: rows cost time, and drafting has to keep up.
    """
    return 1 / (max(1e-12, 1 - sum(s.alpha)) * s.verify_s(0))


def draft_chain(s: Setting) -> float:
    """The same for a chain, which also grows no faster than it is drafted."""
    return min(1 / (max(1e-12, 1 - s.alpha[0]) * s.verify_s(0)), 1 / s.draft_s.at(1))


def best(
    rate: Callable[[Setting, int], float], s: Setting, lengths: Iterable[int] | None = None
) -> tuple[int, float]:
    """The draft length with the highest rate, and that rate."""
    return max(
        ((k, rate(s, k)) for k in lengths or range(1, MAX_DRAFT + 1)), key=lambda pair: pair[1]
    )
