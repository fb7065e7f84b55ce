"""Costs: how long a step of a given width takes, measured and kept current. Pure."""

from collections.abc import Mapping

_BLEND = 0.1
"""Weight of a new measurement."""
_DRIFT = 0.02
"""Weight that it has for the other widths."""
_OUTLIER = 3.0
"""A measurement over this many times what is known counts as this many: machines hiccup."""

_LEAST = 1e-6
"""Seconds that any step takes: rates are quotients, and a coarse clock may see none."""


class Costs:
    """Seconds by width (rows of a pass, nodes of a draft step). Never falls as width grows."""

    def __init__(self, known: Mapping[int, float] | None = None) -> None:
        self._known: dict[int, float] = dict(known or {})

    def __bool__(self) -> bool:
        """True when anything was measured."""
        return bool(self._known)

    def known(self) -> dict[int, float]:
        """What was measured, by width."""
        return dict(sorted(self._known.items()))

    def saw(self, width: int, seconds: float) -> None:
        """A step of `width` took `seconds`; the other widths drift along."""
        seconds = max(seconds, _LEAST)
        if not self._known:
            self._known[width] = seconds
            return
        expected = self.at(width)
        ratio = min(seconds, _OUTLIER * expected) / expected if expected > 0 else 1.0
        if width not in self._known:
            self._known[width] = min(seconds, _OUTLIER * expected)
            return
        for other in self._known:  # longer texts and a busier machine slow all widths alike
            self._known[other] *= 1 + (_BLEND if other == width else _DRIFT) * (ratio - 1)

    def at(self, width: int) -> float:
        """Expected seconds of a step of `width`: between neighbours, or along the slope beyond.

        With only one width known, wider ones are expected to cost in proportion.
        """
        if not self._known:
            return 0.0
        below = max((w for w in self._known if w <= width), default=None)
        above = min((w for w in self._known if w >= width), default=None)
        if below is None:
            return min(self._known.values())
        floor = max(seconds for w, seconds in self._known.items() if w <= below)
        if above is None:
            half = max((w for w in self._known if w <= below / 2), default=0)
            rise = (floor - self.at(half)) / (below - half) if half else floor / below
            return floor + max(0.0, rise) * (width - below)
        if above == below:
            return floor
        ceiling = max(floor, self._known[above])
        return floor + (ceiling - floor) * (width - below) / (above - below)
