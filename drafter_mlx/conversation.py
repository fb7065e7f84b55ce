"""Everything a drafter says to its verifier, and when: greeting, resuming, giving up. Pure.

Messages come in through `handle`, time through `tick`, and what is to be sent is
taken from `outbox`. Whatever is lost on the way is repaired by opening the
session again with the text so far, which is harmless at any time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bus.errors import Code, DraftbusError, ProtocolError, Refused, Unreachable
from bus.messages import (
    AnyMessage,
    Close,
    Commit,
    Draft,
    Error,
    Hello,
    Join,
    Message,
    Open,
    Ping,
    Pong,
    Welcome,
)
from bus.packed import MAX_TOKENS
from drafter_mlx.piece import Piece
from drafter_mlx.session import Session
from strategies import name_in

GREET_EVERY_S = 0.5
PING_EVERY_S = 1.0
SILENCE_S = 3.0
"""Without any message for this long the verifier counts as gone, and is greeted anew."""
STALL_S = 2.0
"""Without a Commit for this long a session is opened again; the pause doubles each time."""
RETRY = frozenset({Code.OVERLOADED, Code.SHUTTING_DOWN, Code.UNKNOWN_SESSION})
RETRY_EVERY_S = 0.2
RTTS = 16
"""Answers of which the shortest says how long a round trip is."""


@dataclass
class _Line:
    """One session as this conversation sees it. Times in seconds."""

    session: Session
    listener: Callable[[Piece], None]
    open_at: float
    """When to send Open (again)."""
    stall_s: float = STALL_S
    served_at: float = 0.0
    """When the verifier last did something for this session."""
    opened_at: float = 0.0
    placed: bool = True
    """False while the verifier has no room for the session: nothing is drafted for it."""


class Conversation:
    """One drafter's talk with one verifier. Times are seconds of the caller's clock."""

    def __init__(self, hello: Hello, address: str, deadline_s: float, now: float) -> None:
        self.welcome: Welcome | None = None
        self.outbox: list[Message] = []
        self.failure: DraftbusError | None = None
        """Why nothing more will come of this conversation."""
        self.errors: dict[int, DraftbusError] = {}
        """Why a session has failed."""
        self.rtt_s: float | None = None
        self.joined = 0
        """The secret whose sessions this drafter helps; 0 for none."""
        self.offers: dict[int, Open] = {}
        """Others' sessions that may be joined, to be taken from here, by their numbers."""
        self._rtts_s: list[float] = []
        self._hello = hello
        self._address = address
        self._deadline_s = deadline_s
        self._lines: dict[int, _Line] = {}
        self._greetings = 0  # sent since the last Welcome
        self._lost_at = self._heard_at = now
        self._greet_at = self._ping_at = self._ticked_at = self._greeted_at = now

    @property
    def sessions(self) -> list[Session]:
        """Sessions that are still being continued and may be drafted for."""
        lines = self._lines.values() if self.welcome else ()
        return [line.session for line in lines if line.placed]

    def start(self, session: Session, listener: Callable[[Piece], None], now: float) -> None:
        """Begin a session; `listener` gets each piece of text as it is committed."""
        session.stats.opened_at = now
        session.rtt_s = self.rtt_s or 0.0
        self._lines[session.id] = _Line(session, listener, now, served_at=now)
        if self.welcome is not None:
            self._equip(session, self.welcome)

    def cancel(self, session_id: int) -> None:
        """End a session early."""
        if self._lines.pop(session_id, None) is not None:
            self.outbox.append(Close(session_id))

    def push(self, drafts: list[Draft]) -> None:
        """Queue new guesses."""
        self.outbox.extend(drafts)

    def unsent(self, message: Message) -> None:
        """A message found no room. Drafts and Close are sent again; the rest repeats by itself."""
        if message is self._hello:
            self._greetings -= 1
        if isinstance(message, Close) and self.welcome is not None:
            self.outbox.append(message)  # or the verifier would go on for nobody
        if isinstance(message, Draft) and message.session in self._lines:
            self._lines[message.session].session.push_again()

    # Arrivals --------------------------------------------------------------------

    def handle(self, message: AnyMessage, now: float) -> None:
        """Take in what the verifier said."""
        self._heard_at = now
        match message:
            case Welcome():
                self._greeted(message, now)
            case Commit():
                self._committed(message, now)
            case Pong():
                self._measured(max(0.0, now - message.sent_us / 1e6))
            case Error():
                self._refused(message, now)
            case Open() if message.session not in self._lines:
                self.offers[message.session] = message
            case _:
                pass  # nothing else is said to a drafter

    def _measured(self, rtt_s: float) -> None:
        """A question was answered. Most answers waited for a pass, so the shortest counts."""
        self._rtts_s = [*self._rtts_s[1 - RTTS :], rtt_s]
        self.rtt_s = min(self._rtts_s)
        for line in self._lines.values():
            line.session.rtt_s = self.rtt_s

    def _greeted(self, welcome: Welcome, now: float) -> None:
        if self._greetings == 1:  # of several it is not known which was answered
            self._measured(now - self._greeted_at)
        self._greetings = 0
        self._ping_at = now if self.joined else self._ping_at
        again = self.welcome is None or self.welcome.boot_id != welcome.boot_id
        self.welcome = welcome
        for line in list(self._lines.values()) if again else ():
            line.open_at = now
            self._equip(line.session, welcome)

    def _equip(self, session: Session, welcome: Welcome) -> None:
        limits = welcome.limits
        ends = frozenset(welcome.stop_ids)
        name = name_in(session.request.acceptance)
        drawn = name in welcome.drawn
        session.welcome(ends, limits.max_model_len, limits.max_tree_nodes, drawn)
        session.stats.lossy = name in welcome.lossy
        length = len(session.request.prompt)
        if length >= min(limits.max_model_len, MAX_TOKENS):
            reason = (
                f"the prompt has {length} tokens and the verifier takes at most "
                f"{min(limits.max_model_len, MAX_TOKENS) - 1}: shorten it, or raise "
                "--max-model-len there"
            )
            self.fail(session.id, Refused(Code.PROMPT_TOO_LONG, reason))

    def _committed(self, commit: Commit, now: float) -> None:
        line = self._lines.get(commit.session)
        if line is None:
            return  # closed meanwhile
        try:
            piece = line.session.on_commit(commit, now)
        except ProtocolError as error:
            self.fail(commit.session, error)
            return
        line.served_at, line.stall_s, line.placed = now, STALL_S, True
        if piece is None:
            line.open_at = min(line.open_at, now + RETRY_EVERY_S)
            return
        if piece.tokens:
            line.listener(piece)
        if line.session.finish is not None:
            self.cancel(commit.session)

    def _refused(self, error: Error, now: float) -> None:
        line = self._lines.get(error.session) if error.session is not None else None
        if error.code == Code.NOT_GREETED:
            self.welcome, self._greet_at = None, now
        elif error.code in RETRY and line is not None:
            line.placed = False
            # Room comes when another session of ours ends, so waiting is right while one moves.
            if now - max(other.served_at for other in self._lines.values()) > self._deadline_s:
                self.fail(line.session.id, Refused(error.code, error.message))
            line.open_at = min(line.open_at, now + RETRY_EVERY_S)
        elif line is not None:
            self.fail(line.session.id, Refused(error.code, error.message))
        elif self.welcome is None and error.session is None and error.code not in RETRY:
            self.failure = Refused(error.code, error.message)

    def fail(self, session_id: int, error: DraftbusError) -> None:
        """A session ends here, for this reason."""
        self.errors[session_id] = error
        self.cancel(session_id)

    # Time ------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due: greet, ping, open, give up."""
        pause_s, self._ticked_at = now - self._ticked_at, now
        if pause_s > SILENCE_S:
            self._lost_at += pause_s  # time in which nobody listened is not the verifier's fault
        if self.welcome is not None and now - self._heard_at > SILENCE_S:
            self.welcome, self._greet_at = None, now
        if self.welcome is None:
            self._greet(now)
            return
        self._lost_at = now
        if now >= self._ping_at:
            lease_s = self.welcome.limits.lease_ms / 1000
            self._ping_at = now + min(PING_EVERY_S, lease_s / 3)
            self.outbox.append(Ping(int(now * 1e6)))
            if self.joined:  # again and again: an offer may be lost, or the connection another
                self.outbox.append(Join(self.joined))
        for line in self._lines.values():
            if now - max(line.served_at, line.opened_at) > line.stall_s:
                line.stall_s = min(2 * line.stall_s, 60.0)
                line.open_at = min(line.open_at, now)
            if now >= line.open_at:
                line.opened_at, line.open_at = now, float("inf")
                line.session.stats.resumed += line.session.stats.passes > 0
                self.outbox.append(line.session.open())

    def _greet(self, now: float) -> None:
        if now - self._lost_at > self._deadline_s:
            self.failure = Unreachable(
                f"no verifier answers at {self._address} (tried for {self._deadline_s:g} s): start "
                "one there with `draftbus-verifier serve --model ...`, or check --verifier"
            )
        elif now >= self._greet_at:
            self._greet_at, self._greeted_at = now + GREET_EVERY_S, now
            self._greetings += 1
            self.outbox.append(self._hello)

    def start_over(self, now: float) -> None:
        """Hope again after a failure: a verifier may come yet, within another deadline."""
        self.failure, self._lost_at = None, now

    def missing_s(self, now: float) -> float:
        """How long no verifier has answered; 0 while one does."""
        return 0.0 if self.welcome is not None else now - self._lost_at

    def wake_in_s(self, now: float) -> float:
        """Seconds until `tick` has something to do."""
        if self.welcome is None:
            return max(0.0, self._greet_at - now)
        times = [self._ping_at, *(line.open_at for line in self._lines.values())]
        return max(0.0, min(times) - now)
