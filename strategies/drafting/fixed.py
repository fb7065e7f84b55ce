"""Synchronous drafting of k tokens: draft, push, wait for the verdict, repeat.

The classic loop of speculative decoding (arXiv:2211.17192), kept as the baseline.
"""

from strategies.drafting import Observation, Options, Step, push_rest


class Fixed:
    """A chain of `num_draft_tokens`, pushed at once; nothing while it is in flight."""

    def __init__(self, options: Options) -> None:
        self._length = options.num_draft_tokens

    def plan(self, seen: Observation) -> Step | None:
        if seen.in_flight:
            return None
        leaf = seen.open_leaf()
        if leaf is None or seen.unpushed >= self._length:
            return push_rest(seen)
        return Step((leaf,), push=seen.unpushed + 1 >= self._length)
