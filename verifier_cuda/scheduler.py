"""Which session is served next, and what a pass decided. Pure.

`plan` names the next piece of work, `complete` turns what the model said about it
into commits. Fair: whoever was served longest ago comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bus.errors import Code
from bus.messages import Error, Sampling, Timings
from strategies.acceptance import TargetView
from verifier_cuda.planner import Mean, Selection
from verifier_cuda.registry import Registry, Reply
from verifier_cuda.session import Session

MAX_WIDTH = 16
"""Most rows of one session in one pass."""
PREFILL_CHUNK = 512
"""Prompt tokens read in one pass, so that a long prompt does not stall the others."""


def chain(rows: int) -> list[int]:
    """The parents of rows that follow one another."""
    return [max(0, row - 1) for row in range(rows)]


@dataclass(frozen=True)
class Block:
    """The rows of one session in one pass, as the model needs them."""

    slot: int
    start: int
    """Tokens already cached in the slot; row 0 has this position."""
    tokens: Sequence[int]
    parents: Sequence[int]
    sampling: Sampling | None
    """None for a piece of prompt, whose logits nobody needs."""


@dataclass(frozen=True)
class Entry:
    """One session's part in a piece of work."""

    owner: bytes
    session: Session
    block: Block
    selection: Selection | None
    """None for a piece of prompt."""


@dataclass(frozen=True)
class Keep:
    """Rows of a block whose cache entries stay, in order; they move to `start` and up."""

    slot: int
    start: int
    rows: tuple[int, ...]


@dataclass
class Counters:
    """Totals since start-up."""

    passes: int = 0
    empty_passes: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    busy_s: float = 0.0


class Scheduler:
    """Plans the passes for a registry's sessions. Times are seconds of the caller's clock."""

    def __init__(
        self, registry: Registry, max_width: int = MAX_WIDTH, prefill_chunk: int = PREFILL_CHUNK
    ) -> None:
        self.counters = Counters()
        self._registry = registry
        self._max_width = max_width
        self._prefill_chunk = prefill_chunk
        self._pass_s = Mean()

    def _ready_at(self, session: Session) -> float:
        """When the session should decode: at once with drafts, else when waiting stops paying."""
        if session.unread or len(session.tree):
            return session.committed_at
        return session.committed_at + session.pace.patience_s(self._pass_s.value or 0.0)

    def patience_s(self, now: float) -> float:
        """How long the daemon may wait for messages before there is work."""
        idle_s = 0.01 if self._registry.holding else 0.2
        times = [self._ready_at(session) for _, session in self._registry.waiting()]
        return max(0.0, min([now + idle_s, *times]) - now)

    def plan(self, now: float) -> list[Entry]:
        """The next pass: a piece of one prompt, or the rows of every session that is ready."""
        ready = [pair for pair in self._registry.waiting() if self._ready_at(pair[1]) <= now]
        if not ready:
            return []
        owner, first = ready[0]
        if first.unread:
            end = first.cached + min(first.unread, self._prefill_chunk)
            tokens = first.tree.tokens[first.cached : end]
            block = self._block(first, tokens, chain(len(tokens)), None)
            return [Entry(owner, first, block, None)]
        entries = []
        for owner, session in ready:
            if not session.unread:
                chosen = session.select(self._max_width)
                rows = chosen.rows
                block = self._block(session, rows.tokens, rows.parents, session.sampling)
                entries.append(Entry(owner, session, block, chosen))
        return entries

    def _block(
        self, session: Session, tokens: Sequence[int], parents: Sequence[int], s: Sampling | None
    ) -> Block:
        assert session.slot is not None, "an unfinished session has a slot"
        return Block(session.slot, session.cached, tokens, parents, s)

    def complete(
        self, work: list[Entry], views: Sequence[TargetView], elapsed_s: float, now: float
    ) -> tuple[list[Reply], list[Keep]]:
        """Judge a pass: the commits to send, and the cache rows that stay.

        Between `plan` and `complete` no message may be handled.
        """
        replies: list[Reply] = []
        keeps: list[Keep] = []
        self.counters.busy_s += elapsed_s
        for entry, view in zip(work, views, strict=True):
            session, block = entry.session, entry.block
            session.served_at = now
            if entry.selection is None:
                session.cached += len(block.tokens)
                session.prefill_s += elapsed_s
                session.committed_at = now
                continue
            reply, kept = self._judge(entry, entry.selection, view, elapsed_s, now)
            replies.append(reply)
            if kept:
                keeps.append(Keep(block.slot, block.start, kept))
        if any(entry.selection is not None for entry in work):
            self._pass_s.add(elapsed_s)
        return replies, keeps

    def _judge(
        self, entry: Entry, chosen: Selection, view: TargetView, elapsed_s: float, now: float
    ) -> tuple[Reply, tuple[int, ...]]:
        session, count = entry.session, self.counters
        waited_s = max(0.0, now - elapsed_s - session.committed_at)
        timings = Timings(int(elapsed_s * 1e6), int(waited_s * 1e6), int(session.prefill_s * 1e6))
        session.prefill_s = 0.0
        try:
            verdict = session.acceptance.judge(chosen.rows, view)
            if not 0 <= verdict.token < self._registry.settings.vocab_size:
                raise ValueError(f"token {verdict.token} is outside the vocabulary")
            commit, kept = session.commit(chosen, verdict, timings)
        except Exception as error:  # a strategy is foreign code: its session ends, nothing else
            self._registry.errors += 1
            self._registry.close(entry.owner, session.id)
            text = f"acceptance {session.opened.acceptance!r} raised {error!r}"
            return Reply(entry.owner, Error(Code.STRATEGY_FAILED, text[:1000], session.id)), ()
        session.committed_at = now
        count.passes += 1
        count.empty_passes += not chosen.nodes
        count.tokens += len(commit.tokens)
        count.drafted += len(chosen.nodes)
        count.accepted += commit.accepted
        if session.finish is not None:
            self._registry.release(session)
            kept = ()
        return Reply(entry.owner, commit), kept
