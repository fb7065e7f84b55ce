"""One request at the drafter: its text, its guesses, and what has been pushed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from bus.errors import Code, ProtocolError
from bus.messages import MAX_NODES, Commit, Confidences, Draft, Finish, Ids, Open, Parents, Sampling
from drafter_mlx.stats import Stats
from strategies.drafting import Drafting, Observation, Step
from strategies.tree import MAX_TREE_NODES, DraftTree, Node

Origin = Literal["accepted", "correction", "bonus", "plain", "end"]
"""Drafted and accepted; the target's instead of a draft; the target's after accepted drafts;
without drafts; an end id, which is not text."""
Child = tuple[int, float]
"""A guessed token and the chance that it is accepted, given that its parent is."""
REPUSH_AFTER = 8
"""Passes in a row without drafts, though drafts were sent, after which all are sent again."""


@dataclass(frozen=True)
class Request:
    """What a user wants continued. `committed` holds what an earlier run produced."""

    prompt: Ids
    sampling: Sampling
    acceptance: str = "exact"
    committed: Ids = field(default_factory=Ids)


@dataclass(frozen=True)
class Piece:
    """Newly committed tokens, each with where it came from."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]


class _Batch:
    """Nodes that fit one Draft: below one anchor, each after its parent."""

    def __init__(self, anchor: Node) -> None:
        self._anchor = anchor
        self._nodes: list[Node] = []
        self._rows = {anchor.digest: 0}

    def takes(self, node: Node) -> bool:
        """True when `node` may join."""
        assert node.parent is not None
        return len(self._nodes) < MAX_NODES and node.parent.digest in self._rows

    def add(self, node: Node) -> None:
        self._nodes.append(node)
        self._rows[node.digest] = len(self._nodes)

    def message(self, session_id: int) -> Draft:
        parents = [self._rows[node.parent.digest] for node in self._nodes if node.parent]
        return Draft(
            session_id,
            self._anchor.position + 1,
            self._anchor.digest,
            Ids(node.token for node in self._nodes),
            Confidences(min(1.0, max(0.0, node.confidence)) for node in self._nodes),
            Parents() if parents == list(range(len(parents))) else Parents(parents),
        )


class Session:
    """A request while it is worked on."""

    def __init__(self, session_id: int, request: Request, drafting: Drafting, window: int) -> None:
        self.id = session_id
        self.request = request
        self.finish: Finish | None = None
        self.stats = Stats(len(request.prompt))
        self.tree = DraftTree((*request.prompt, *request.committed), MAX_TREE_NODES)
        self.ends: frozenset[int] = frozenset(request.sampling.stop_ids)
        self.max_len = 1 << 31
        self._drafting = drafting
        self._window = window
        self._unpushed: list[Node] = []
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
            self.id, request.prompt, Ids(self.committed), request.sampling, request.acceptance
        )

    # Drafting --------------------------------------------------------------------

    def plan(self) -> Step | None:
        """What the strategy wants next; None to wait."""
        if self.finish is not None:
            return None
        last = min(len(self.request.prompt) + self.request.sampling.max_tokens, self.max_len)
        # The last open token needs no draft: the target's own choice fills it.
        room = min(self._window, last - self.tree.tip - 1)
        unpushed = len(self._unpushed)
        return self._drafting.plan(
            Observation(self.tree, room, self.ends, unpushed, len(self.tree) - unpushed)
        )

    def tokens_to(self, node: Node) -> list[int]:
        """The whole sequence that ends with `node`."""
        return self.tree.tokens + [step.token for step in node.path()]

    def expanded(self, step: Step, found: Sequence[Sequence[Child]]) -> list[Draft]:
        """Take in the children of `step.expand`, best first; returns what to push."""
        for node, children in zip(step.expand, found, strict=True):
            for token, chance in children:
                count = len(self.tree)
                child = self.tree.add(node, token, chance)
                if child is not None and len(self.tree) > count:
                    self._unpushed.append(child)
        return self.pushes() if step.push else []

    def pushes(self) -> list[Draft]:
        """All nodes that were not sent yet, in as few messages as their anchors allow."""
        batches: list[_Batch] = []
        for node in self._unpushed:
            assert node.parent is not None
            batch = next((batch for batch in batches if batch.takes(node)), None)
            if batch is None:
                batch = _Batch(node.parent)
                batches.append(batch)
            batch.add(node)
        self._unpushed = []
        return [batch.message(self.id) for batch in batches]

    def push_again(self) -> None:
        """Count every live node as not sent: a push was lost. A node sent twice does no harm."""
        self._unpushed = [node for node, _ in self.tree.best_first()]

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
            self._follow(fresh, commit)
            self.stats.count(commit, len(fresh), now)
        if commit.finish is not None:
            self.finish = commit.finish
            self.stats.ended_at = now
        return Piece(tuple(fresh), _origins(commit, len(fresh)))

    def _follow(self, fresh: Sequence[int], commit: Commit) -> None:
        """Move the root; count what that says about our guesses."""
        drafted = self.tree.chain()
        followed = self.tree.advance(fresh)
        on_path = sum(node is first for node, first in zip(followed, drafted, strict=False))
        if on_path < min(len(fresh), len(drafted)):
            self.stats.rollbacks += 1
            self.stats.rollback_tokens += len(drafted) - on_path
        taken = followed[: commit.accepted]
        self.stats.hedge_hits += sum(node is not None and node.rank > 0 for node in taken)
        alive = {node.digest for node, _ in self.tree.best_first()}
        self._unpushed = [node for node in self._unpushed if node.digest in alive]
        foreseen_for_nothing = commit.width == 1 and followed[0] is not None
        self._idle_passes = self._idle_passes + 1 if foreseen_for_nothing else 0
        if self._idle_passes >= REPUSH_AFTER:
            self._idle_passes = 0
            self.push_again()


def _origins(commit: Commit, fresh: int) -> tuple[Origin, ...]:
    last: Origin = "correction" if commit.rejected else "bonus" if commit.accepted else "plain"
    origins: list[Origin] = ["plain"] * len(commit.tokens)
    if commit.width:
        own = len(commit.tokens) - commit.accepted
        origins = ["accepted"] * commit.accepted + [last] * own
    if commit.finish == "stop" and origins:
        origins[-1] = "end"
    return tuple(origins[len(origins) - fresh :])
