"""Like `fixed`, but as long as one more token is expected to raise the tokens per second.

The length follows the measured goodput (arXiv:2406.14066 calls it so): step times,
pass times, round trip, and how often drafts were accepted lately. There is no
acceptance target to be tuned.
"""

from collections.abc import Sequence
from math import prod

from strategies.drafting import Observation, Options, Outcome, Step, push_rest

PRIOR = (2.0, 3.0)
"""Accepted of judged tokens that are believed before anything was seen."""


class Adaptive:
    """A chain of the length that pays best, pushed at once; nothing while it is in flight."""

    def __init__(self, options: Options) -> None:
        self._at_first = options.num_draft_tokens

    def plan(self, seen: Observation) -> Step | None:
        if seen.in_flight:
            return None
        leaf = seen.open_leaf()
        if leaf is None or (seen.unpushed and not self._goes_on(seen)):
            return push_rest(seen)
        return Step((leaf,), push=False)

    def _goes_on(self, seen: Observation) -> bool:
        if not seen.pass_s or not seen.step_costs:  # nothing was measured yet
            return seen.unpushed < self._at_first
        return another_pays(seen)


def another_pays(seen: Observation) -> bool:
    """True while one more token raises the expected tokens per second of a round."""
    chain = seen.tree.chain()
    path = [node.confidence for node in chain]
    expected = 1 + sum(prod(path[:depth]) for depth in range(1, len(path) + 1))
    step_s = seen.step_costs.at(1)
    round_s = len(chain) * step_s + seen.rtt_s + seen.pass_s
    return prod(path) * alpha(seen.outcomes) * round_s > expected * step_s


def alpha(outcomes: Sequence[Outcome]) -> float:
    """The chance that a drafted token is accepted, given those before it."""
    accepted = sum(outcome.accepted for outcome in outcomes)
    rejected = sum(outcome.accepted < outcome.drafted for outcome in outcomes)
    return (PRIOR[0] + accepted) / (PRIOR[1] + accepted + rejected)
