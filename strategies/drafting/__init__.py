"""The contract of a drafting strategy: what to guess next, and when to push it.

A strategy is a pure function of an observation. It never sends, sleeps or holds
a model; the drafter's loop does what the returned step says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

from strategies.costs import Costs
from strategies.tree import DraftTree, Node


@dataclass(frozen=True)
class Options:
    """What a user may set; a strategy uses what it knows."""

    num_draft_tokens: int = 4
    """Draft length of strategies with a fixed one."""
    window: int = 16
    """How many tokens beyond the tip may be drafted."""
    branches: int = 3
    """Children of a node in strategies that hedge, the first choice included; the number of
    candidates, and the width of a beam."""
    step_nodes: int = 4
    """Most nodes that a strategy feeds to the draft model at once."""


OPTIONS = tuple(option.name for option in fields(Options))
"""Their names."""


class Outcome(NamedTuple):
    """What became of the drafts in one pass."""

    drafted: int
    """Drafted tokens that the verifier looked at."""
    accepted: int


@dataclass(frozen=True)
class Observation:
    """All that a strategy may look at."""

    tree: DraftTree
    """Read only."""
    room: int
    """Tokens that may still be drafted along a path from the tip, at most the window."""
    ended: frozenset[int]
    """Token ids that end the text: nothing is worth drafting after them."""
    unpushed: int
    """Nodes in the tree that were not sent yet."""
    in_flight: int
    """Nodes in the tree that were sent and not judged yet."""
    step_costs: Costs
    """Seconds of a draft step by the number of nodes it expands."""
    pass_s: float
    """Seconds of a verifier's pass, lately; 0 before the first."""
    rtt_s: float
    """Seconds from a question to the verifier to its answer, lately; 0 before the first."""
    outcomes: Sequence[Outcome] = ()
    """Of the last passes, the newest last."""

    def open_leaf(self) -> Node | None:
        """The end of the optimistic path if it may be expanded, else None."""
        leaf = self.tree.leaf()
        return leaf if self.may_expand(leaf) else None

    def may_expand(self, node: Node) -> bool:
        """True when tokens after `node` may be drafted."""
        deep = node.position + 1 - self.tree.tip >= self.room
        full = deep or len(self.tree) >= self.tree.max_nodes
        drafted = node is not self.tree.root
        return not (full or (drafted and node.token in self.ended))


class Guess(NamedTuple):
    """Tokens that continue a node, from a source that is not the draft model."""

    node: Node
    tokens: tuple[int, ...]
    confidence: float
    """The chance of each, given those before it."""


@dataclass(frozen=True)
class Step:
    """One step: add what is known, feed `expand` to the draft model, then perhaps push."""

    expand: tuple[Node, ...] = ()
    """Nodes without children (the root among them) that get some."""
    children: int = 1
    """Children of each expanded node, best first."""
    push: bool = True
    """Send nodes that were not sent yet, after expanding."""
    floor: float = 0.0
    """Nodes with a path probability below this are not sent (yet)."""
    known: tuple[Guess, ...] = ()
    """Guesses that need no model."""


def push_rest(seen: Observation) -> Step | None:
    """What is left to do when nothing can be expanded."""
    return Step() if seen.unpushed else None


class Drafting(Protocol):
    """Decides what is guessed next."""

    def plan(self, seen: Observation) -> Step | None:
        """The next step, or None to wait for the verifier."""
