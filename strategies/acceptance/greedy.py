"""Take no draft at all: the target's own choice, one token a pass. For debugging."""

from strategies.acceptance import Rows, TargetView, Verdict


class Greedy:
    """Plain decoding, with drafts computed and thrown away."""

    lossy = False

    def judge(self, rows: Rows, view: TargetView) -> Verdict:
        return Verdict((), view.choice(0))
