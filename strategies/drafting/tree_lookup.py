"""`tree`, fed by the draft model and by prompt lookup at once: two sources, one tree."""

from dataclasses import replace

from strategies.drafting import Observation, Options, Step
from strategies.drafting.lookup import Lookup
from strategies.drafting.tree import PUSH_FLOOR, Tree, nearness


class TreeLookup:
    """What `lookup` finds joins the step that `tree` takes; it costs the model nothing."""

    def __init__(self, options: Options) -> None:
        self._tree, self._lookup = Tree(options), Lookup(options)

    def plan(self, seen: Observation) -> Step | None:
        guess = self._lookup.guess(seen)
        step = self._tree.plan(seen)
        if guess is None:
            return step
        if step is None:
            step = Step(floor=PUSH_FLOOR * nearness(seen))
        return replace(step, known=(guess,))
