"""One request at the drafter: its text, its guesses, and what has been pushed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from bus.errors import Code, ProtocolError
from bus.messages import (
    MAX_NODES,
    Anchor,
    Anchors,
    Commit,
    Confidences,
    Draft,
    Finish,
    Ids,
    Open,
    Parents,
    Sampling,
)
from drafter_mlx.experience import Experience
from drafter_mlx.stats import Stats
from strategies.drafting import Drafting, Observation, Step
from strategies.tree import MAX_TREE_NODES, DraftTree, Node

Origin = Literal["accepted", "correction", "bonus", "plain", "end"]
"""Drafted and accepted; the target's instead of a draft; the target's after accepted drafts;
without drafts; an end id, which is not text."""
Child = tuple[int, float]
"""A guessed token and the draft model's own chance of it."""
REPUSH_AFTER = 8
"""Passes in a row without drafts, though drafts were sent, after which all are sent again."""


@dataclass(frozen=True)
class Request:
    """What a user wants continued. `committed` holds what an earlier run produced."""

    prompt: Ids
    sampling: Sampling
    acceptance: str = "exact"
    committed: Ids = field(default_factory=Ids)
    lockstep: bool = False


@dataclass(frozen=True)
class Piece:
    """Newly committed tokens, each with where it came from."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]


class _Batch:
    """Nodes that fit one Draft, each after its parent or under an anchor."""

    def __init__(self) -> None:
        self._anchors: list[Node] = []
        self._nodes: list[Node] = []
        self._places: dict[int, int] = {}  # by digest, as `Parents` counts them
        self._parents: list[int] = []

    @property
    def full(self) -> bool:
        return len(self._nodes) >= MAX_NODES

    def add(self, node: Node) -> None:
        assert node.parent is not None
        place = self._places.get(node.parent.digest)
        if place is None:
            place = MAX_NODES + 1 + len(self._anchors)
            self._anchors.append(node.parent)
            self._places[node.parent.digest] = place
        self._parents.append(place)
        self._nodes.append(node)
        self._places[node.digest] = len(self._nodes)

    def message(self, session_id: int) -> Draft:
        order = sorted(range(len(self._anchors)), key=lambda i: self._anchors[i].position)
        first, *more = [self._anchors[i] for i in order]
        known_as = {MAX_NODES + 1 + old: MAX_NODES + new for new, old in enumerate(order)}
        parents = [known_as.get(place, place) for place in self._parents]
        parents = [0 if place == MAX_NODES else place for place in parents]
        return Draft(
            session_id,
            first.position + 1,
            first.digest,
            Ids(node.token for node in self._nodes),
            Confidences(min(1.0, max(0.0, node.confidence)) for node in self._nodes),
            Parents() if parents == list(range(len(parents))) else Parents(parents),
            Anchors(Anchor(node.position - first.position, node.digest) for node in more),
        )


class Session:
    """A request while it is worked on."""

    def __init__(
        self,
        session_id: int,
        request: Request,
        drafting: Drafting,
        window: int,
        experience: Experience | None = None,
    ) -> None:
        self.id = session_id
        self.request = request
        self.finish: Finish | None = None
        self.stats = Stats(len(request.prompt))
        self.tree = DraftTree((*request.prompt, *request.committed), MAX_TREE_NODES)
        self.ends: frozenset[int] = frozenset(request.sampling.stop_ids)
        self.max_len = 1 << 31
        self._drafting = drafting
        self._window = window
        self._experience = experience or Experience()
        self._calibration = self._experience.calibration(request.sampling)
        self._pass_s = 0.0
        self.rtt_s = 0.0
        """From a question to the verifier to its answer, as far as was measured."""
        self._answering: float | None = None  # when the Commit was read that no push answered yet
        self._unpushed: list[Node] = []
        self._lost = False
        self._floor = 0.0
        self._idle_passes = 0

    @property
    def committed(self) -> tuple[int, ...]:
        """The text so far, without the prompt."""
        return tuple(self.tree.tokens[len(self.request.prompt) :])

    def welcome(self, ends: frozenset[int], max_len: int, max_nodes: int) -> None:
        """Take over the verifier's limits; called again after every reconnection."""
        stop_ids = frozenset(self.request.sampling.stop_ids)
        self.ends = stop_ids if self.request.sampling.ignore_eos else stop_ids | ends
        self.max_len = max_len
        self.tree.max_nodes = min(max_nodes, MAX_TREE_NODES)

    def open(self) -> Open:
        """The message that starts or resumes this session. What was pushed is pushed again."""
        self.push_again()
        request = self.request
        return Open(
            self.id, request.prompt, Ids(self.committed), request.sampling, request.acceptance,
            request.lockstep,
        )  # fmt: skip

    # Drafting --------------------------------------------------------------------

    def plan(self) -> Step | None:
        """What the strategy wants next; None to wait."""
        if self.finish is not None:
            return None
        last = min(len(self.request.prompt) + self.request.sampling.max_tokens, self.max_len)
        # The last open token needs no draft: the target's own choice fills it.
        room = min(self._window, last - self.tree.tip - 1)
        unpushed = len(self._unpushed)
        known = self._experience
        step = self._drafting.plan(
            Observation(self.tree, room, self.ends, unpushed, len(self.tree) - unpushed,
                        known.step_costs, self._pass_s, self.rtt_s)
        )  # fmt: skip
        return Step(floor=self._floor) if step is None and self._lost else step

    def tokens_to(self, node: Node) -> list[int]:
        """The whole sequence that ends with `node`."""
        return self.tree.tokens + [step.token for step in node.path()]

    def expanded(
        self, step: Step, found: Sequence[Sequence[Child]], now: float = 0.0
    ) -> list[Draft]:
        """Take in the children of `step.expand`, best first; returns what to push."""
        for node, children in zip(step.expand, found, strict=True):
            for token, raw in children:
                count = len(self.tree)
                chance = self._calibration.chance(len(node.children), raw)
                child = self.tree.add(node, token, chance, raw)
                if child is not None and len(self.tree) > count:
                    self._unpushed.append(child)
        pushes = self.pushes(step.floor) if step.push else []
        if pushes and self._answering is not None:
            turnaround_s = self.rtt_s + max(0.0, now - self._answering)
            first = msgspec.structs.replace(pushes[0], turnaround_us=1 + int(turnaround_s * 1e6))
            pushes[0], self._answering = first, None
        return pushes

    def pushes(self, floor: float = 0.0) -> list[Draft]:
        """What was not sent yet and is likely enough, in as few messages as possible."""
        self._lost, self._floor = False, floor
        batches: list[_Batch] = []
        ready, later = [], []
        known = {self.tree.root.digest: 1.0}
        for node in self._unpushed:
            (ready if not floor or _path_chance(node, known) >= floor else later).append(node)
        for node in ready:
            if not batches or batches[-1].full:
                batches.append(_Batch())
            batches[-1].add(node)
        self._unpushed = later
        return [batch.message(self.id) for batch in batches]

    def push_again(self) -> None:
        """Count every live node as not sent: a push was lost. A node sent twice does no harm."""
        self._unpushed = list(self.tree.nodes())
        self._lost = bool(self._unpushed)

    # Commits ---------------------------------------------------------------------

    def on_commit(self, commit: Commit, now: float) -> Piece | None:
        """Append what is new. None when there is a gap before it: open again.

        ProtocolError when the verifier says something else than it said before.
        """
        known = self.tree.tip - commit.position
        if known < 0:
            return None
        said = self.tree.tokens[commit.position : commit.position + len(commit.tokens)]
        if list(commit.tokens[:known]) != said or commit.position < len(self.request.prompt):
            raise ProtocolError(
                Code.BAD_MESSAGE, "the verifier changed text that it had committed", self.id
            )
        fresh = commit.tokens[known:]
        if self.finish is not None:
            return Piece((), ())
        if fresh:
            self._answering = now
            self._follow(fresh, commit)
            self.stats.count(commit, len(fresh), now)
        if commit.finish is not None:
            self.finish = commit.finish
            self.stats.ended_at = now
        return Piece(tuple(fresh), _origins(commit, len(fresh)))

    def _follow(self, fresh: Sequence[int], commit: Commit) -> None:
        """Move the root; count what that says about our guesses."""
        drafted = self.tree.chain()
        self._learn(fresh)
        followed = self.tree.advance(fresh)
        on_path = sum(node is first for node, first in zip(followed, drafted, strict=False))
        if on_path < min(len(fresh), len(drafted)):
            self.stats.rollbacks += 1
            self.stats.rollback_tokens += len(drafted) - on_path
        taken = followed[: commit.accepted]
        self.stats.hedge_hits += sum(node is not None and node.rank > 0 for node in taken)
        if commit.timings.pass_us:
            pass_s = commit.timings.pass_us / 1e6
            self._pass_s += (0.2 if self._pass_s else 1.0) * (pass_s - self._pass_s)
        alive = {node.digest for node in self.tree.nodes()}
        self._unpushed = [node for node in self._unpushed if node.digest in alive]
        foreseen_for_nothing = commit.width == 1 and followed[0] is not None
        self._idle_passes = self._idle_passes + 1 if foreseen_for_nothing else 0
        if self._idle_passes >= REPUSH_AFTER:
            self._idle_passes = 0
            self.push_again()

    def _learn(self, fresh: Sequence[int]) -> None:
        """The text tells of all guesses along it whether they were right."""
        node: Node | None = self.tree.root
        for token in fresh:
            for child in node.children if node else ():
                right = child.token == token
                self._calibration.saw(child.rank, child.raw, right)
                self.stats.judged(child.rank, right)
            node = node.child(token) if node else None


def _path_chance(node: Node, known: dict[int, float]) -> float:
    """The chance that a node is reached; `known` keeps those of the nodes above it."""
    if node.digest not in known:
        assert node.parent is not None, "the root is known"
        known[node.digest] = node.confidence * _path_chance(node.parent, known)
    return known[node.digest]


def _origins(commit: Commit, fresh: int) -> tuple[Origin, ...]:
    last: Origin = "correction" if commit.rejected else "bonus" if commit.accepted else "plain"
    origins: list[Origin] = ["plain"] * len(commit.tokens)
    if commit.width:
        own = len(commit.tokens) - commit.accepted
        origins = ["accepted"] * commit.accepted + [last] * own
    if commit.finish == "stop" and origins:
        origins[-1] = "end"
    return tuple(origins[len(origins) - fresh :])
