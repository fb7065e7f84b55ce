"""Several candidates of one length from the same place, like `fixed` with hedges.

The draft's likeliest first tokens are each continued greedily, all in one step of
the model, and pushed together. The longest candidate that the target follows
wins. While too little is accepted there are fewer candidates.
"""

from collections.abc import Sequence

from strategies.drafting import Observation, Options, Outcome, Step, push_rest
from strategies.tree import Node

LOW = 0.2
"""Share of a candidate's tokens; less than that for ROUNDS passes costs a candidate."""
ROUNDS = 5


class Multi:
    """Up to `branches` candidates of `num_draft_tokens` each; nothing while they are in flight."""

    def __init__(self, options: Options) -> None:
        self._most = options.branches
        self._length = options.num_draft_tokens

    def plan(self, seen: Observation) -> Step | None:
        if seen.in_flight:
            return None
        root = seen.tree.root
        if not root.children and seen.may_expand(root):
            count = candidates(self._most, self._length, seen.outcomes)
            return Step((root,), count, push=self._length == 1)
        ends = [_end(child) for child in root.children]
        short = tuple(end for end, depth in ends if depth < self._length and seen.may_expand(end))
        if not short:
            return push_rest(seen)
        deepest = min(depth for end, depth in ends if end in short) + 1
        return Step(short, push=deepest >= self._length)


def _end(node: Node) -> tuple[Node, int]:
    """The last node of a candidate, and how long the candidate is."""
    depth = 1
    while node.children:
        node, depth = node.children[0], depth + 1
    return node, depth


def candidates(most: int, length: int, outcomes: Sequence[Outcome]) -> int:
    """How many candidates the next round has: one less for every ROUNDS bad passes in a row."""
    bad = 0
    for outcome in reversed(outcomes):
        if outcome.drafted and outcome.accepted >= LOW * length:
            break
        bad += outcome.drafted > 0
    return max(1, most - bad // ROUNDS)
