"""A chain with the runners-up of every step as leaves beside it.

The runners-up cost the draft model nothing: the forward that names the first
choice ranks the others too. Waiting at the verifier, they turn many corrections
into accepted tokens.
"""

from strategies.drafting import Observation, Options, Step, push_rest


class Tree:
    """The pipelined chain, each of its nodes with `branches` children."""

    def __init__(self, options: Options) -> None:
        self._branches = options.branches

    def plan(self, seen: Observation) -> Step | None:
        leaf = seen.open_leaf()
        return push_rest(seen) if leaf is None else Step((leaf,), children=self._branches)
