"""A tree grown best first: the optimistic path, and hedges for when it is rejected.

Each step feeds the draft model the nodes that are likeliest to be reached, as
many at once as its measured step times make worth while; each of them gets the
likeliest next tokens as children, at no further cost. Waiting at the verifier,
the runners-up turn corrections into accepted tokens. (Best-first expansion as in
Sequoia, arXiv:2402.12374, and OPT-Tree, arXiv:2406.17276, but online and by
calibrated chances.)
"""

from strategies.costs import Costs
from strategies.drafting import Observation, Options, Step
from strategies.tree import Node

FLOOR = 0.02
"""A node that is reached less often than this is worth neither a draft step nor its bytes."""
PUSH_FLOOR = 0.03
"""A node that is less likely than this is not sent until it has become likelier."""
FAR = 0.25
"""What is left of both floors when the verifier is a pass's time away, or farther."""


class Tree:
    """Best-first expansion of up to `step_nodes` nodes a step, `branches` children each."""

    def __init__(self, options: Options) -> None:
        self._branches = options.branches
        self._most = options.step_nodes

    def plan(self, seen: Observation) -> Step | None:
        near = nearness(seen)
        if not seen.tree.root.children and seen.may_expand(seen.tree.root):
            return Step((seen.tree.root,), self._branches, floor=PUSH_FLOOR * near)
        found = self._reachable(seen, FLOOR * near)
        if not found:
            return None
        count = worthwhile([chance for _, chance in found], seen.step_costs)
        nodes = tuple(node for node, _ in found[:count])
        return Step(nodes, self._branches, floor=PUSH_FLOOR * near)

    def _reachable(self, seen: Observation, floor: float) -> list[tuple[Node, float]]:
        """The likeliest nodes without children, with their path probabilities."""
        found: list[tuple[Node, float]] = []
        for node, chance in seen.tree.best_first():
            if chance < floor or len(found) == self._most:
                break
            if not node.children and seen.may_expand(node):
                found.append((node, chance))
        return found


def nearness(seen: Observation) -> float:
    """From 1 to FAR: the farther the verifier, the less likely nodes are worth while.

    The tip that the drafter knows is a round trip old, so what is unlikely from
    there may be likely from where the verifier is by now.
    """
    passes_away = seen.rtt_s / seen.pass_s if seen.pass_s else 0.0
    return float(FAR ** min(1.0, passes_away))


def worthwhile(chances: list[float], costs: Costs) -> int:
    """How many of the likeliest nodes to feed at once: the most expected progress a second."""
    best, most, total = 0.0, 1, 0.0
    for count, chance in enumerate(chances, 1):
        total += chance
        rate = total / costs.at(count) if costs else 1.0 / count
        if rate >= best:
            best, most = rate, count
    return most
