"""When to run a pass and with which rows. Pure: time and measurements are arguments.

One rule: the most expected tokens a second. A row is worth its place while it
raises (expected tokens) / (pass time at that width). Waiting for a draft is worth
it when it is expected to save more than it costs: drafting goes on during a pass,
so a draft that comes too late for this one is mostly there for the next, and what
waiting saves is a pass, in the case that the text agrees with the drafts up to
there and no further.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from strategies.acceptance import Rows
from strategies.calibration import Calibration
from strategies.costs import Costs
from strategies.tree import DraftTree, Node
from verifier_cuda.layout import Layout

_LOOKAHEAD = 6
"""Most drafts that one decision to wait counts on."""
_DOUBT = 1.3
"""How much longer than in vain one would have had to wait, as far as one knows."""
_SURE = 0.99
"""Nothing is surer than this."""
_YOUNG = 4
"""As many measurements as what is believed beforehand counts for."""
_FLOOR = 0.01
"""A node that is likelier wrong than this is not worth a row, however free."""


@dataclass
class Mean:
    """A running mean that forgets; None until the first measurement."""

    value: float | None = None
    blend: float = 0.2
    """Weight of a new measurement, once there were many."""
    count: int = 0

    def add(self, sample: float) -> None:
        self.count += 1
        if self.value is None:
            self.value = sample
        else:
            weight = max(self.blend, 1 / (self.count + _YOUNG))
            self.value += weight * (sample - self.value)

    def at_least(self, bound: float) -> None:
        """The value was seen to be over `bound`."""
        self.value = max(self.value or 0.0, _DOUBT * bound)


@dataclass
class Pace:
    """What the sessions of one drafter have taught about its drafts. Times in seconds."""

    turnaround_s: Mean = field(default_factory=Mean)
    """From a Commit that no draft foresaw to the first draft that continues it."""
    interval_s: Mean = field(default_factory=Mean)
    """From one draft to the next while the verifier waits."""
    burst: Mean = field(default_factory=lambda: Mean(1.0))
    """Tokens by which the first draft after a correction deepens the optimistic path."""
    growth: Mean = field(default_factory=lambda: Mean(1.0))
    """The same of a draft that follows while the verifier waits."""
    ahead: Mean = field(default_factory=lambda: Mean(1.0))
    """Chance that after a pass which accepted a whole draft the next one is there."""
    alpha: Mean = field(default_factory=lambda: Mean(0.6, blend=0.05))
    """Chance that the first choice after an accepted token is accepted."""
    calibration: Calibration = field(default_factory=Calibration)
    arrives: Mean = field(default_factory=lambda: Mean(1.0))
    """Chance that a draft comes when it is expected."""

    def heard(self, turnaround_s: float) -> None:
        """A draft answered a Commit after so long."""
        known_s = self.turnaround_s.value
        self.arrives.add(float(known_s is None or turnaround_s < known_s + self.slack_s))
        self.turnaround_s.add(turnaround_s)

    def missed(self, waited_s: float) -> None:
        """None came for so long."""
        self.arrives.add(0.0)
        self.turnaround_s.at_least(waited_s)

    @property
    def slack_s(self) -> float:
        """How much later than expected a draft may come and still be believed in."""
        return max(self.interval_s.value or 0.0, 0.5 * (self.turnaround_s.value or 0.0))

    def chance(self, node: Node) -> float:
        """Of a node, given that its parent was accepted."""
        return self.calibration.chance(node.rank, node.confidence)


@dataclass(frozen=True)
class Prospect:
    """What waiting may bring. Times in seconds."""

    saved_s: float
    """Expected time of passes that become needless."""
    at: float
    """When the drafts will be there."""
    until: float
    """When to stop believing in it."""


def prospect(
    pace: Pace, path: Sequence[float], next_at: float, pass_s: float, now: float
) -> Prospect | None:
    """The best that waiting for the next drafts of one session promises; None for nothing.

    `path` has the chances along the optimistic path so far, `next_at` is when the
    next draft is due.
    """
    alpha = min(_SURE, pace.alpha.value or 0.0)
    assert pace.alpha.value is not None and pace.turnaround_s.value is not None
    interval_s = pace.interval_s.value or pace.turnaround_s.value
    due, leaf = max(now, next_at), prod(path)
    growth = pace.growth.value or 0.0
    depth = growth if path else pace.burst.value or 0.0
    dry = alpha * (1 - (pace.ahead.value or 0.0))
    best, profit_s, comes = None, 0.0, pace.arrives.value or 0.0
    for ahead in range(_LOOKAHEAD):
        # Who does not draft on during a pass has no more to offer after it: each draft counts.
        saved_s = comes * leaf * alpha * (1 - alpha**depth) / (1 - dry) * pass_s
        at = due + ahead * interval_s
        if saved_s - (at - now) > profit_s:
            profit_s = saved_s - (at - now)
            best = Prospect(saved_s, at, next_at + pace.slack_s)
        depth += growth
    return best


def pays_together(prospects: Sequence[Prospect], sessions: int, now: float) -> bool:
    """True when some of `prospects` save more than waiting costs all `sessions`."""
    saved_s = 0.0
    for one in sorted(prospects, key=lambda p: p.at):
        saved_s += one.saved_s
        if saved_s > sessions * (one.at - now):
            return True
    return False


@dataclass(frozen=True)
class Selection:
    """The rows of one session in one pass: row 0 is the tip, row i is `nodes[i - 1]`."""

    nodes: tuple[Node, ...]
    rows: Rows
    places: tuple[int, ...]
    """Where each row lies in the cache slot."""
    chances: tuple[float, ...]
    """Path probability of each row; 1 for the tip."""

    def cut(self, width: int) -> "Selection":
        """The first `width` rows."""
        if width >= len(self.places):
            return self
        rows = self.rows
        rows = Rows(rows.tokens[:width], rows.parents[:width], rows.ranks[:width], rows.proposals)
        return Selection(self.nodes[: width - 1], rows, self.places[:width], self.chances[:width])


def select(tree: DraftTree, width: int, room: int, chance: Callable[[Node], float]) -> Selection:
    """The likeliest nodes, best first, at most `width` rows and `room` tokens deep."""
    layout = Layout(tree.tip - 1)
    nodes: list[Node] = []
    row_of = {tree.root.digest: 0}
    tokens, parents, places, chances = [tree.root.token], [0], [tree.tip - 1], [1.0]
    for node, reached in tree.best_first(chance) if width > 1 else ():
        if reached < _FLOOR:
            break
        depth = node.position - tree.tip + 1
        parent = row_of.get(node.parent.digest) if node.parent else None
        if parent is None or depth > room:
            continue
        place = layout.place(depth, layout.branch(places[parent], depth - 1))
        if place is None:
            continue
        nodes.append(node)
        row_of[node.digest] = len(nodes)
        for column, value in (
            (tokens, node.token), (parents, parent), (places, place), (chances, reached)
        ):  # fmt: skip
            column.append(value)  # type: ignore[arg-type]
        if len(places) >= width:
            break
    every = [tree.root, *nodes]
    ranks = tuple(node.rank for node in every)
    drawn = {row: node.proposal for row, node in enumerate(every) if node.proposal is not None}
    rows = Rows(tuple(tokens), tuple(parents), ranks, drawn)
    return Selection(tuple(nodes), rows, tuple(places), tuple(chances))


def best_rows(selections: Sequence[Selection], costs: Costs, rest_s: float) -> list[int]:
    """Rows for each of `selections`: the likeliest of all, as many as pay in tokens a second.

    For passes that cost by the sum of their rows.
    """
    drafted = [(-chance, number) for number, chosen in enumerate(selections)
               for chance in chosen.chances[1:]]  # fmt: skip
    widths = [1] * len(selections)
    best, found, expected = 0.0, list(widths), float(len(selections))
    for rows, (negative, number) in enumerate([(0.0, -1), *sorted(drafted)], len(selections)):
        if number >= 0:
            widths[number] += 1
            expected -= negative
        rate = expected / (costs.at(rows) + rest_s) if costs else rows
        if rate >= best:
            best, found = rate, list(widths)
    return found


def best_width(selections: Sequence[Selection], costs: Costs, rest_s: float) -> int:
    """The common width at which a pass over `selections` commits most tokens a second.

    `rest_s` is what a pass costs beside the model.
    """
    widest = max(len(chosen.places) for chosen in selections)
    best, width, expected = 0.0, 1, 0.0
    for rows in range(1, widest + 1):
        expected += sum(c.chances[rows - 1] for c in selections if len(c.chances) >= rows)
        rate = expected / (costs.at(rows * len(selections)) + rest_s) if costs else rows
        if rate >= best:
            best, width = rate, rows
    return width
