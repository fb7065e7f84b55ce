"""Accept what the target itself gives at least a chance of τ. Lossy.

Among the drafts of a place the target's own choice comes first, then the likeliest
one. The text is no longer a sample of the target: it leans to what the draft says.
"""

from collections.abc import Callable

from strategies.acceptance import Chances, Rows, TargetView, Verdict


class Threshold:
    """τ is a chance in the target's softmax at temperature 1, whatever the sampling."""

    lossy = True

    def __init__(self, tau: float = 0.1) -> None:
        if not 0 < tau <= 1:
            raise ValueError(f"threshold: τ is {tau:g} and has to lie in (0, 1]")
        self._tau = tau

    def judge(self, rows: Rows, view: TargetView) -> Verdict:
        return follow(rows, view, lambda chances: self._tau)


def follow(rows: Rows, view: TargetView, least: Callable[[Chances], float]) -> Verdict:
    """Go on to the likeliest draft, while its chance is at least `least` of all chances there."""
    path: list[int] = []
    row = 0
    while True:
        own, children = view.choice(row), rows.children(row)
        if not children:
            return Verdict(tuple(path), own)
        chances = view.likelihoods(row)
        best = max(children, key=lambda i: (rows.tokens[i] == own, chances[rows.tokens[i]], -i))
        if rows.tokens[best] != own and chances[rows.tokens[best]] < least(chances):
            return Verdict(tuple(path), own)
        row = best
        path.append(row)
