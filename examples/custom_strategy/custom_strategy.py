"""Two strategies of your own: copy this folder, rename things, `pip install` it."""

from strategies.acceptance import Rows, TargetView, Verdict
from strategies.drafting import Observation, Options, Step, push_rest


class Bursts:
    """Drafting: a chain that goes on while verification is in flight, sent in bursts.

    Fewer messages than `pipelined`, for a network that counts them. All that is known is
    in the observation, and all that can be done is in the step.
    """

    def __init__(self, options: Options) -> None:
        self._length = options.num_draft_tokens

    def plan(self, seen: Observation) -> Step | None:
        leaf = seen.open_leaf()
        if leaf is None:
            return push_rest(seen)
        return Step((leaf,), push=seen.unpushed + 1 >= self._length)


class NearTie:
    """Acceptance: take a draft that the target finds almost as likely as its own choice.

    Lossy, and says so. `near-tie:0.8` sets how near.
    """

    lossy = True

    def __init__(self, share: float = 0.9) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"near-tie: {share:g} has to lie in (0, 1]")
        self._share = share

    def judge(self, rows: Rows, view: TargetView) -> Verdict:
        path: list[int] = []
        row = 0
        while True:
            own, children = view.choice(row), rows.children(row)
            if children:
                chances = view.likelihoods(row)
                bound = self._share * chances[own]
                near = [i for i in children if chances[rows.tokens[i]] >= bound]
                same = [i for i in children if rows.tokens[i] == own]
                if same or near:
                    row = (same or near)[0]
                    path.append(row)
                    continue
            return Verdict(tuple(path), own)
