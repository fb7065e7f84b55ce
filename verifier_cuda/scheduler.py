"""Which session is served next, and what a pass decided. Pure.

`plan` names the next piece of work, `complete` turns what the model said about it
into commits. Fair: whoever was served longest ago comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from bus.errors import Code
from bus.messages import Error, Sampling, Timings
from strategies.acceptance import TargetView, Verdict
from strategies.costs import Costs
from strategies.penalties import Adjustment
from verifier_cuda.layout import in_line
from verifier_cuda.planner import Selection, best_rows, best_width, pays_together
from verifier_cuda.registry import Registry, Reply
from verifier_cuda.session import Session

MAX_WIDTH = 16
"""Most rows of one session in one pass."""
PREFILL_CHUNK = 512
"""Prompt tokens read in one pass, so that a long prompt does not stall the others."""


STRETCH = 2.0
"""A pass may take so many times as long when prompts are read beside it."""
MIN_PIECE = 16
"""Prompt tokens that a pass reads at least, however long it takes."""
_REST_S = 5e-4
"""What a pass costs beside the model."""


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
    places: Sequence[int]
    """Where each row lies in the slot."""
    sampling: Sampling | None
    """None for a piece of prompt, whose logits nobody needs."""
    adjustment: Adjustment | None = None
    """What bias and penalties do to the rows' logits; None for nothing."""


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
    """Cache entries of a block that stay, in order; they move to `start` and up."""

    slot: int
    start: int
    places: tuple[int, ...]


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
        self,
        registry: Registry,
        max_width: int = MAX_WIDTH,
        prefill_chunk: int = PREFILL_CHUNK,
        costs: Costs | None = None,
        ragged: bool = True,
    ) -> None:
        """`costs` are seconds of a pass by its rows, as measured at start-up.

        `ragged` says that a pass costs by the sum of its rows; else all its sessions are
        padded to the widest.
        """
        self.counters = Counters()
        self.costs = costs or Costs()
        self._registry = registry
        self._max_width = max_width
        self._prefill_chunk = prefill_chunk
        self._ragged = ragged

    def _wait_until(self, sessions: Sequence[Session], now: float) -> float:
        """Until when waiting for drafts pays; in the past when it does not."""
        pass_s = self.costs.at(len(sessions))
        found = [session.prospect(pass_s, now) for session in sessions]
        prospects = [one for one in found if one is not None]
        if prospects and pays_together(prospects, len(sessions), now):
            return min(one.until for one in prospects)
        return now

    def patience_s(self, now: float) -> float:
        """How long the daemon may wait for messages before there is work."""
        idle_s = 0.01 if self._registry.holding else 0.2
        sessions = [session for _, session in self._registry.waiting()]
        awake = [session for session in sessions if session.rests_until() <= now]
        alarm = min((session.rests_until() for session in sessions), default=now + idle_s)
        if any(session.unread for session in sessions):
            return 0.0
        until = self._wait_until(awake, now) if awake else alarm
        return max(0.0, min(now + idle_s, until) - now)

    def plan(self, now: float) -> list[Entry]:
        """The next pass: pieces of prompts, or the rows of every session that decodes, or both."""
        waiting = self._registry.waiting()
        reading = [pair for pair in waiting if pair[1].unread]
        decoding = [pair for pair in waiting if not pair[1].unread and pair[1].rests_until() <= now]
        held = bool(decoding) and self._wait_until([s for _, s in decoding], now) > now
        turn = not self._ragged and waiting[:1] == reading[:1]  # a prompt has waited longest
        if reading and (turn or held or not decoding):
            soon = held and self._ragged
            room = self._room_beside(len(decoding)) if soon else self._prefill_chunk
            return self._pieces(reading, room)
        if held or not decoding:
            return []
        for _, session in decoding:
            session.starts(now)
        entries = self._decoding(decoding)
        if self._ragged:
            rows = sum(len(entry.block.tokens) for entry in entries)
            entries += self._pieces(reading, self._room_beside(rows))
        return entries

    def _room_beside(self, rows: int) -> int:
        """Prompt tokens that a pass of `rows` may read without taking much longer."""
        bound, room = STRETCH * self.costs.at(rows), MIN_PIECE
        while room < self._prefill_chunk and self.costs.at(rows + 2 * room) <= bound:
            room *= 2
        return min(room, self._prefill_chunk)

    def _pieces(self, reading: list[tuple[bytes, Session]], room: int) -> list[Entry]:
        """The next `room` tokens of prompts, the one that waits longest first."""
        entries: list[Entry] = []
        for owner, session in reading if self._ragged else reading[:1]:
            if room > 0:
                entries.append(self._piece(owner, session, room))
                room -= len(entries[-1].block.tokens)
        return entries

    def _piece(self, owner: bytes, session: Session, room: int) -> Entry:
        start, count = session.cached, min(session.unread, room)
        tokens = session.tree.tokens[start : start + count]
        assert session.slot is not None, "an unfinished session has a slot"
        block = Block(session.slot, start, tokens, chain(count), in_line(start, count), None)
        return Entry(owner, session, block, None)

    def _decoding(self, decoding: list[tuple[bytes, Session]]) -> list[Entry]:
        chosen = [session.select(self._max_width) for _, session in decoding]
        if self._ragged:
            widths = best_rows(chosen, self.costs, _REST_S)
        else:
            widths = [best_width(chosen, self.costs, _REST_S)] * len(chosen)
        entries = []
        for (owner, session), selection, width in zip(decoding, chosen, widths, strict=True):
            cut = selection.cut(width)
            assert session.slot is not None, "an unfinished session has a slot"
            block = Block(session.slot, session.cached, cut.rows.tokens, cut.rows.parents,
                          cut.places, session.sampling, session.adjustment(cut.rows))  # fmt: skip
            entries.append(Entry(owner, session, block, cut))
        return entries

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
            answers, kept = self._judge(entry, entry.selection, view, elapsed_s, now)
            replies += answers
            if kept:
                places = tuple(block.places[row] for row in kept)
                keeps.append(Keep(block.slot, block.start, places))
        if all(entry.selection is not None for entry in work):
            widths = [len(entry.block.tokens) for entry in work]
            rows = sum(widths) if self._ragged else len(work) * max(widths)
            self.costs.saw(rows, elapsed_s)
        return replies, keeps

    def _judge(
        self, entry: Entry, chosen: Selection, view: TargetView, elapsed_s: float, now: float
    ) -> tuple[list[Reply], tuple[int, ...]]:
        session, count = entry.session, self.counters
        waited_s = max(0.0, now - elapsed_s - session.committed_at)
        timings = Timings(int(elapsed_s * 1e6), int(waited_s * 1e6), int(session.prefill_s * 1e6),
                          session.reused)  # fmt: skip
        session.prefill_s, session.reused = 0.0, 0
        try:
            verdict = session.acceptance.judge(chosen.rows, view)
            verdict = Verdict(tuple(map(index, verdict.accepted)), index(verdict.token))
            if not 0 <= verdict.token < self._registry.settings.vocab_size:
                raise ValueError(f"token {verdict.token} is outside the vocabulary")
            commit, kept = session.commit(chosen, verdict, timings, now)
        except Exception as error:  # a strategy is foreign code: its session ends, nothing else
            self._registry.errors += 1
            session.cached = entry.block.start
            self._registry.close(entry.owner, session.id)
            text = f"acceptance {session.opened.acceptance!r} raised {error!r}"
            return [Reply(entry.owner, Error(Code.STRATEGY_FAILED, text[:1000], session.id))], ()
        commit = session.tell(commit, verdict, view)
        count.passes += 1
        count.empty_passes += not chosen.nodes
        count.tokens += len(commit.tokens)
        count.drafted += len(chosen.nodes)
        count.accepted += commit.accepted
        replies = self._registry.told(session, commit)
        if session.finish is not None:
            self._registry.release(entry.owner, session)
        return replies, kept
