"""When to run a pass and with which rows. Pure: time and measurements are arguments.

One rule: the highest expected tokens per second. Waiting for drafts costs the
session's measured turnaround and gains the tokens that drafts usually bring; an
empty pass brings one token for the price of a pass. The rows are the likeliest
nodes, up to a fixed width.
"""

from dataclasses import dataclass, field

from strategies.acceptance import Rows
from strategies.tree import DraftTree, Node

_BLEND = 0.2
"""Weight of a new measurement in a running mean."""
_FIRST_WAIT = 2.0
"""Passes' worth of time that an unmeasured drafter is waited for."""
_MAX_PROBE_GAP = 64
"""Most passes between two tries to wait for a drafter that did not pay."""


@dataclass
class Mean:
    """A running mean that forgets; None until the first measurement."""

    value: float | None = None

    def add(self, sample: float) -> None:
        if self.value is None:
            self.value = sample
        else:
            self.value += _BLEND * (sample - self.value)


@dataclass
class Pace:
    """What one session has taught about waiting for its drafts. Times in seconds."""

    turnaround_s: Mean = field(default_factory=Mean)
    """From a Commit to the first draft below its tip, when the tree was empty."""
    gain: Mean = field(default_factory=Mean)
    """Drafted tokens accepted in a pass that had drafts."""
    _probe_gap: int = 1
    _until_probe: int = 0

    def pays(self, pass_s: float) -> bool:
        """True when waiting for drafts is known to bring more than an empty pass does."""
        if self.turnaround_s.value is None or self.gain.value is None:
            return False
        return self.gain.value * pass_s > self.turnaround_s.value

    def patience_s(self, pass_s: float) -> float:
        """How long an empty tree is worth waiting for, from the last Commit on."""
        if self.pays(pass_s) and self.gain.value is not None:
            return self.gain.value * pass_s
        return _FIRST_WAIT * pass_s if self._until_probe <= 0 else 0.0

    def saw_draft(self, after_s: float) -> None:
        """A draft arrived for an empty tree, `after_s` seconds after the Commit."""
        self.turnaround_s.add(after_s)

    def saw_pass(self, drafted: int, accepted: int, pass_s: float) -> None:
        """A pass was judged; while waiting does not pay, tries to wait become rarer."""
        if drafted:
            self.gain.add(accepted)
        if self.pays(pass_s):
            self._probe_gap, self._until_probe = 1, 0
        elif self._until_probe > 0:
            self._until_probe -= 1
        else:
            self._probe_gap = min(2 * self._probe_gap, _MAX_PROBE_GAP)
            self._until_probe = self._probe_gap


@dataclass(frozen=True)
class Selection:
    """The rows of one session in one pass: row 0 is the tip, row i is `nodes[i - 1]`."""

    nodes: tuple[Node, ...]
    rows: Rows


def select(tree: DraftTree, width: int, room: int) -> Selection:
    """The likeliest nodes, best first, at most `width` rows and `room` tokens deep."""
    nodes: list[Node] = []
    row_of = {tree.root.digest: 0}
    parents = [0]
    for node, _ in tree.best_first():
        if len(nodes) + 1 >= width:
            break
        parent = row_of.get(node.parent.digest) if node.parent else None
        if parent is None or node.position - tree.tip >= room:
            continue
        nodes.append(node)
        row_of[node.digest] = len(nodes)
        parents.append(parent)
    tokens = (tree.root.token, *(node.token for node in nodes))
    return Selection(tuple(nodes), Rows(tokens, tuple(parents)))
