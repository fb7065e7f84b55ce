"""Who is worked for and who waits: a bounded queue in front of the desk.

Lives in the event loop's thread; what the desk says comes in through
`call_soon_threadsafe`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from bus.errors import DraftbusError, Unreachable
from drafter_mlx.config import Drafts
from drafter_mlx.desk import Desk, Over, Ticket
from drafter_mlx.http.metrics import Metrics, Watch
from drafter_mlx.http.problems import Problem
from drafter_mlx.piece import Piece
from drafter_mlx.request import Request
from drafter_mlx.stats import Stats


@dataclass(eq=False)
class Entry:
    """One text that somebody asked for."""

    request: Request
    drafts: Drafts
    tell: Callable[[Piece | Over], None]
    watch: Watch
    ticket: Ticket | None = None
    """None while it waits."""


class Reception:
    """Hands entries to the desk, in order, so many at a time."""

    def __init__(self, desk: Desk, metrics: Metrics, max_concurrent: int, max_queue: int) -> None:
        self._desk = desk
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._max_concurrent = max_concurrent
        self._max_queue = max_queue
        self.waiting = deque[Entry]()
        self.running = set[Entry]()

    def admit(self, entries: Sequence[Entry]) -> None:
        """Queue the texts of one request, all or none. Problem (429) when the queue is full."""
        busy = len(self.running) >= self._max_concurrent
        if busy and len(self.waiting) >= self._max_queue:
            raise Problem(
                429, f"{len(self.running)} texts are being made and {len(self.waiting)} wait: "
                "try again soon", code="queue_full",
            )  # fmt: skip
        self.waiting.extend(entries)
        self._fill()

    def dismiss(self, entry: Entry) -> None:
        """It is no longer wanted. Its place is free when the desk has let go of it."""
        if entry in self.running and entry.ticket is not None:
            self._desk.withdraw(entry.ticket)
        elif entry in self.waiting:
            self.waiting.remove(entry)

    def end_all(self, error: DraftbusError) -> None:
        """End every text with this error."""
        self._end_waiting(error)
        for entry in self.running:
            self.dismiss(entry)
            entry.tell(_failed(entry, error))

    def _end_waiting(self, error: DraftbusError) -> None:
        waiting, self.waiting = self.waiting, deque()
        for entry in waiting:
            entry.tell(_failed(entry, error))

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self._max_concurrent:
            entry = self.waiting.popleft()
            self.running.add(entry)
            entry.watch.started()
            told = partial(self._from_desk, entry)
            entry.ticket = self._desk.submit(entry.request, entry.drafts, told)

    def _from_desk(self, entry: Entry, event: Piece | Over) -> None:
        """In the daemon's thread."""
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._deliver, entry, event)

    def _deliver(self, entry: Entry, event: Piece | Over) -> None:
        if isinstance(event, Over):
            self.running.discard(entry)
            self._metrics.ended(entry.watch, event.stats)
            if isinstance(event.error, Unreachable):  # whoever waits has waited as long
                self._end_waiting(event.error)
            self._fill()
        else:
            entry.watch.got(len(event.tokens))
        entry.tell(event)


def _failed(entry: Entry, error: DraftbusError) -> Over:
    return Over(None, Stats(len(entry.request.prompt)), error)
