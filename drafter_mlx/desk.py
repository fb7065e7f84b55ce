"""Where other threads leave requests for a daemon, and from where their pieces come back.

The daemon's thread owns the model and the socket; `submit`, `withdraw` and `close`
may be called from any other, and ring it awake. What they ask for is done between
two turns of the loop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import structlog

from bus.errors import DraftbusError, StrategyFailed, Unreachable
from bus.messages import Finish, Welcome
from drafter_mlx.config import Drafts
from drafter_mlx.piece import Piece
from drafter_mlx.request import Request
from drafter_mlx.session import Session
from drafter_mlx.stats import Stats

if TYPE_CHECKING:  # it takes MLX along, which other threads need not wait for
    from drafter_mlx.daemon import Daemon

log = structlog.get_logger()


@dataclass(frozen=True)
class Over:
    """Nothing more comes of a request. Without finish or error it was withdrawn."""

    finish: Finish | None
    stats: Stats
    error: DraftbusError | None = None


@dataclass(eq=False)
class Ticket:
    """A request at the desk. `tell` gets its pieces and then one Over, in the daemon's thread."""

    request: Request
    drafts: Drafts
    tell: Callable[[Piece | Over], None]
    session: Session | None = None
    """Touched by the daemon's thread alone."""


@dataclass(frozen=True)
class Standing:
    """How the daemon stands with its verifier."""

    verifier: Welcome | None = None
    trouble: str = "no verifier has answered yet"
    """Why there is none, as far as is known."""
    rtt_s: float | None = None
    in_flight: int = 0
    """Drafted tokens that no pass has judged yet."""


class Desk:
    """Carries requests into a daemon's loop, and pieces of text out of it."""

    def __init__(self, daemon: "Daemon") -> None:
        self.standing = Standing()
        """Replaced as a whole, so any thread may read it."""
        self._daemon = daemon
        self._errands = SimpleQueue[Callable[[], None]]()
        self._open: list[Ticket] = []
        self._closed = False
        self._wire_bytes = 0

    def submit(
        self, request: Request, drafts: Drafts, tell: Callable[[Piece | Over], None]
    ) -> Ticket:
        """Ask for a text. Its ids must be inside the vocabulary."""
        ticket = Ticket(request, drafts, tell)
        self._ask(partial(self._begin, ticket))
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Free what a request holds, here and at the verifier; harmless when it is over."""
        self._ask(partial(self._end, ticket))

    def close(self) -> None:
        """Make `run` return."""
        self._ask(self._shut)

    def _ask(self, errand: Callable[[], None]) -> None:
        self._errands.put(errand)
        self._daemon.wake()

    # In the daemon's thread ------------------------------------------------------

    def run(self) -> None:
        """Work until `close`. A verifier that is given up fails what is open, and is hoped for."""
        talk = self._daemon.talk
        while not self._closed:
            self._daemon.run(self._turn)
            if talk.failure is not None:
                if str(talk.failure) != self.standing.trouble:
                    log.warning("given up for now", reason=str(talk.failure))
                self._end_all(talk.failure)
                self.standing = Standing(trouble=str(talk.failure))
                talk.start_over(time.monotonic())
        self._end_all(Unreachable("the drafter is shutting down"))

    def _turn(self) -> bool:
        """The loop asks whether it is over; that is when errands are done."""
        talk = self._daemon.talk
        try:
            while True:
                self._errands.get_nowait()()
        except Empty:
            pass
        for ticket in list(self._open):
            assert ticket.session is not None
            error = talk.errors.get(ticket.session.id)
            if ticket.session.finish is not None or error is not None:
                self._end(ticket, error)
        in_flight = sum(len(ticket.session.tree) for ticket in self._open if ticket.session)
        trouble = "the verifier is silent" if talk.welcome else self.standing.trouble
        self.standing = Standing(talk.welcome, trouble, talk.rtt_s, in_flight)
        return self._closed

    def _begin(self, ticket: Ticket) -> None:
        error: DraftbusError
        try:
            ticket.session = self._daemon.start(ticket.request, ticket.drafts, ticket.tell)
            self._open.append(ticket)
            return
        except DraftbusError as refused:
            error = refused
        except Exception as raised:  # a strategy is foreign code, its making too
            error = StrategyFailed(f"the drafting strategy raised {raised!r}")
        ticket.tell(Over(None, Stats(len(ticket.request.prompt)), error))

    def _end(self, ticket: Ticket, error: DraftbusError | None = None) -> None:
        if ticket not in self._open:
            return
        assert ticket.session is not None
        self._open.remove(ticket)
        self._daemon.forget(ticket.session)
        self._daemon.talk.errors.pop(ticket.session.id, None)
        stats, before = ticket.session.stats, self._wire_bytes
        self._wire_bytes = self._daemon.wire_bytes
        stats.wire_bytes = self._wire_bytes - before
        ticket.tell(Over(ticket.session.finish, stats, error))

    def _end_all(self, error: DraftbusError) -> None:
        for ticket in list(self._open):
            self._end(ticket, error)

    def _shut(self) -> None:
        self._closed = True
