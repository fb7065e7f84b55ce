"""Drafting on while verification is in flight: one chain, each token pushed at once.

The optimistic half of PEARL (arXiv:2408.11850): the next draft assumes that the
last one will be accepted, and is rolled back when it is not.
"""

from strategies.drafting import Observation, Options, Step, push_rest


class Pipelined:
    """A chain as long as the window allows."""

    def __init__(self, options: Options) -> None:
        del options

    def plan(self, seen: Observation) -> Step | None:
        leaf = seen.open_leaf()
        return push_rest(seen) if leaf is None else Step((leaf,))
