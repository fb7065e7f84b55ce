"""Typical acceptance: the surer the target is, the likelier a draft has to be. Lossy.

A draft is accepted when its chance is over min(ε, δ · exp(-H)), H being the entropy
of the target's softmax at temperature 1 (Medusa, arXiv:2401.10774, whose defaults
these are).
"""

import numpy as np

from strategies.acceptance import Chances, Rows, TargetView, Verdict
from strategies.acceptance.threshold import follow


class Typical:
    """Medusa's criterion with its posterior threshold ε and posterior alpha δ."""

    lossy = True

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not (0 < epsilon <= 1 and delta > 0):
            raise ValueError(f"typical: ε is {epsilon:g}, δ is {delta:g}; both have to be over 0")
        self._epsilon, self._delta = epsilon, delta

    def judge(self, rows: Rows, view: TargetView) -> Verdict:
        def least(chances: Chances) -> float:
            some = chances[chances > 0]
            entropy = float(-(some * np.log(some)).sum())
            return min(self._epsilon, self._delta * float(np.exp(-entropy)))

        return follow(rows, view, least)
