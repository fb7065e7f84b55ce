"""Who is connected, what they asked for, and which slots are free. Pure.

`handle` takes one message and returns the answers. A peer's fault becomes an
`Error` for that peer and changes nothing for the others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from bus.errors import BadSetup, Code, ProtocolError
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
from bus.packed import Ids
from strategies import name_in
from strategies.acceptance import Acceptance
from verifier_cuda.checks import check_draft, check_hello, check_open
from verifier_cuda.lobby import FIRST_OFFER, Lobby, for_guest
from verifier_cuda.planner import Pace
from verifier_cuda.session import Session
from verifier_cuda.settings import Settings
from verifier_cuda.slots import Slots
from verifier_cuda.source import Source

MAX_PEERS = 1024
MAX_FINISHED = 64
"""Finished texts remembered for one peer, so that a lost last Commit can be said again."""


@dataclass(frozen=True)
class Reply:
    """A message for a peer."""

    peer: bytes
    message: Message


@dataclass
class _Peer:
    heard_at: float
    model: str
    pace: Pace = field(default_factory=Pace)
    sessions: dict[int, Session] = field(default_factory=dict)
    guest_of: dict[int, Session] = field(default_factory=dict)
    """Others' sessions that it drafts for, by the number it knows them by."""
    joined: int = 0
    """The secret whose sessions it wants to be offered."""


class Registry:
    """All peers and sessions of one verifier. Times are seconds of the caller's clock."""

    def __init__(self, settings: Settings, acceptance: Callable[[str], Acceptance]) -> None:
        """`acceptance` makes a strategy from its name, or raises BadSetup."""
        self.settings = settings
        self.draining = False
        self.errors = 0
        self.dropped_drafts = 0
        self._acceptance = acceptance
        self._peers: dict[bytes, _Peer] = {}
        self._lobby = Lobby()
        self.slots = Slots(settings.limits.max_sessions)
        self._unsent: dict[tuple[bytes, int], int] = {}
        self._full_since: dict[bytes, float] = {}
        self._drained_at = 0.0

    @property
    def holding(self) -> bool:
        """True while some commit found no room and waits to be said again."""
        return bool(self._unsent)

    def waiting(self) -> list[tuple[bytes, Session]]:
        """Unfinished sessions that are not held, the one served longest ago first."""
        found = [
            (peer, session)
            for peer, state in self._peers.items()
            for session in state.sessions.values()
            if session.finish is None and (peer, session.id) not in self._unsent
        ]
        return sorted(found, key=lambda pair: pair[1].served_at)

    def handle(self, peer: bytes, content: AnyMessage | ProtocolError, now: float) -> list[Reply]:
        """What a message changes, and the replies to it. Never raises on a peer's fault."""
        if peer in self._peers:
            self._peers[peer].heard_at = now
        try:
            if isinstance(content, ProtocolError):
                raise content
            known = self._lobby.added
            replies = [Reply(peer, answer) for answer in self._answer(peer, content, now)]
            return replies + self._offers(known)
        except ProtocolError as error:
            self.errors += 1
            return [Reply(peer, Error(error.code, error.message[:1000], error.session))]

    def _answer(self, peer: bytes, message: AnyMessage, now: float) -> list[Message]:
        match message:
            case Hello():
                return [self._greet(peer, message, now)]
            case Ping():
                return [Pong(message.sent_us, int(now * 1e6))]
            case _ if peer not in self._peers:
                raise ProtocolError(Code.NOT_GREETED, "say Hello first")
            case Open():
                if message.guest:
                    return [self._attend(peer, message)]
                return [self._open(peer, message, now)]
            case Join():
                self._peers[peer].joined = message.shared
                return [*self._lobby.offers(message.shared, peer)]
            case Draft():
                self._draft(peer, message, now)
            case Close():
                self.close(peer, message.session)
            case _:
                raise ProtocolError(
                    Code.BAD_MESSAGE, f"a verifier takes no {type(message).__name__}"
                )
        return []

    def _greet(self, peer: bytes, hello: Hello, now: float) -> Welcome:
        ours = self.settings
        check_hello(hello, ours.model, ours.tokenizer_digest, ours.vocab_size)
        if peer not in self._peers and len(self._peers) >= MAX_PEERS:
            raise ProtocolError(Code.OVERLOADED, f"{MAX_PEERS} drafters are connected already")
        self._peers.setdefault(peer, _Peer(now, hello.model))
        return Welcome(ours.boot_id, ours.model, ours.limits, ours.strategies,
                       Ids(sorted(ours.stop_ids)), ours.lossy, ours.drawn)  # fmt: skip

    def _open(self, peer: bytes, opened: Open, now: float) -> Message:
        sessions = self._peers[peer].sessions
        known = sessions.get(opened.session)
        if known is None or not known.matches(opened):
            self.close(peer, opened.session)
            known = self._start(peer, opened, now)
        self._unsent.pop((peer, opened.session), None)
        return known.since(len(opened.prompt) + len(opened.committed))

    def _start(self, peer: bytes, opened: Open, now: float) -> Session:
        limits = self.settings.limits
        try:
            check_open(opened, limits, self.settings.vocab_size)
            if name_in(opened.acceptance) not in self.settings.strategies:
                known = ", ".join(self.settings.strategies)
                raise BadSetup(f"no acceptance strategy is called {opened.acceptance!r}; "
                               f"known are: {known}")  # fmt: skip
            acceptance = self._acceptance(opened.acceptance)
        except BadSetup as error:
            raise ProtocolError(Code.UNKNOWN_STRATEGY, str(error), opened.session) from None
        except ProtocolError:
            raise
        except Exception as error:  # a strategy is foreign code
            text = f"acceptance {opened.acceptance!r} raised {error!r}"
            raise ProtocolError(Code.STRATEGY_FAILED, text, opened.session) from None
        state = self._peers[peer]
        opener = Source(peer, opened.session, state.model, state.pace)
        session = Session(opened, acceptance, self.settings.stop_ids, limits.max_model_len,
                          limits.max_tree_nodes, opener)  # fmt: skip
        session.committed_at = session.served_at = now
        if session.finish is None:
            taken = None if self.draining else self.slots.take(peer, session.tree.tokens)
            if taken is None:
                code = Code.SHUTTING_DOWN if self.draining else Code.OVERLOADED
                reason = "is shutting down" if self.draining else "has no free session"
                raise ProtocolError(code, f"the verifier {reason}: try again", opened.session)
            session.slot, shared = taken
            session.reuse(shared)
            self._lobby.add(session)
        self._remember(peer, session)
        return session

    def _offers(self, known: int) -> list[Reply]:
        """What is new is offered to those who wait for it."""
        if self._lobby.added == known:
            return []
        return [
            Reply(peer, offer)
            for peer, state in self._peers.items()
            for offer in self._lobby.offers(state.joined, peer, known)
        ]

    def _remember(self, peer: bytes, session: Session) -> None:
        sessions = self._peers[peer].sessions
        over = [known.id for known in sessions.values() if known.finish is not None]
        for old in over[: max(0, len(over) - MAX_FINISHED)]:
            self.close(peer, old)
        sessions[session.id] = session

    def _attend(self, peer: bytes, opened: Open) -> Message:
        state = self._peers[peer]
        session = self._lobby.enter(opened, peer, state.model, state.pace)
        if session is None:
            raise ProtocolError(
                Code.NOT_SHARED, "no such session is open under this secret", opened.session
            )
        state.guest_of[opened.session] = session
        said = session.since(len(opened.prompt) + len(opened.committed))
        return for_guest(said, opened.session)

    def _draft(self, peer: bytes, draft: Draft, now: float) -> None:
        state = self._peers[peer]
        session = state.sessions.get(draft.session) or state.guest_of.get(draft.session)
        if session is None and draft.session >= FIRST_OFFER:
            return  # the session was somebody else's, who has ended it meanwhile
        if session is None:
            raise ProtocolError(
                Code.UNKNOWN_SESSION, "open the session again with what you have", draft.session
            )
        check_draft(draft, self.settings.vocab_size)
        if session.finish is None:
            session.add_draft(draft, session.source(peer), now, self._drained_at)

    def told(self, session: Session, commit: Commit) -> list[Reply]:
        """A Commit for each drafter of its session, under the number that it knows."""
        opener, *guests = session.sources
        return [Reply(opener.peer, commit)] + [
            Reply(guest.peer, for_guest(commit, guest.number)) for guest in guests if guest.present
        ]

    def close(self, peer: bytes, session_id: int) -> None:
        """A drafter is done with a session: its own ends, another's goes on without it."""
        state = self._peers[peer]
        if joined := state.guest_of.pop(session_id, None):
            joined.source(peer).present = False
        session = state.sessions.pop(session_id, None)
        self._unsent.pop((peer, session_id), None)
        if session is not None:
            self.release(peer, session)

    def release(self, peer: bytes, session: Session) -> None:
        """Nothing more is to be done for a session of `peer`."""
        self._lobby.remove(session)
        for guest in session.sources[1:]:
            if guest.present:
                self.close(guest.peer, guest.number)
        self.dropped_drafts += session.dropped_drafts
        session.dropped_drafts = 0
        if session.slot is not None:
            self.slots.give(session.slot, peer, session.tree.tokens[: session.cached])
            session.slot = None

    def forget(self, peer: bytes) -> None:
        """A peer has left: its sessions end and their slots are free."""
        state = self._peers.get(peer)
        for session_id in [*state.sessions, *state.guest_of] if state else ():
            self.close(peer, session_id)
        self._peers.pop(peer, None)
        self.slots.forget(peer)

    def expire(self, now: float) -> None:
        """All messages are drained: forget who said nothing, or read nothing, for a lease."""
        self._drained_at = now
        lease_s = self.settings.limits.lease_ms / 1000
        full = {peer for peer, _ in self._unsent}
        self._full_since = {peer: self._full_since.get(peer, now) for peer in full}
        for peer, state in list(self._peers.items()):
            if now - min(state.heard_at, self._full_since.get(peer, now)) > lease_s:
                self.forget(peer)

    def hold(self, reply: Reply) -> None:
        """A reply found no room. A Commit is said again later; the rest the peer asks for again."""
        if not isinstance(reply.message, Commit):
            return
        if reply.message.session in self._peers[reply.peer].guest_of:
            self.close(reply.peer, reply.message.session)  # nobody waits for a guest
        else:
            key = (reply.peer, reply.message.session)
            self._unsent[key] = min(self._unsent.get(key, 1 << 31), reply.message.position)

    def held(self) -> list[Reply]:
        """The held commits, to be tried again; each session rests until its own is through."""
        waiting, self._unsent = self._unsent, {}
        return [
            Reply(peer, self._peers[peer].sessions[session_id].since(position))
            for (peer, session_id), position in waiting.items()
        ]
