"""Beam search: at each depth only the likeliest nodes are gone on from.

Pushed at once like `fixed`; what lies beside the beam travels, too, and serves as
a hedge.
"""

from strategies.drafting import Observation, Options, Step, push_rest
from strategies.tree import Node


class Beam:
    """A beam `branches` wide and `num_draft_tokens` deep; nothing while it is in flight."""

    def __init__(self, options: Options) -> None:
        self._width = options.branches
        self._depth = options.num_draft_tokens

    def plan(self, seen: Observation) -> Step | None:
        if seen.in_flight:
            return None
        beam: list[tuple[float, Node]] = [(1.0, seen.tree.root)]
        for depth in range(self._depth):
            fresh = tuple(n for _, n in beam if not n.children and seen.may_expand(n))
            if fresh:
                return Step(fresh, self._width, push=depth + 1 == self._depth)
            reached = [(path * child.confidence, child) for path, node in beam
                       for child in node.children]  # fmt: skip
            beam = sorted(reached, key=lambda each: -each[0])[: self._width]
        return push_rest(seen)
