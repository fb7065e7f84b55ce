"""Who is connected, what they asked for, and which slots are free. Pure.

`handle` takes one message and returns the answers. A peer's fault becomes an
`Error` for that peer and changes nothing for the others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from bus.errors import BadSetup, Code, ProtocolError
from bus.messages import (
    PROTOCOL,
    AnyMessage,
    Close,
    Commit,
    Draft,
    Error,
    Hello,
    Limits,
    Message,
    Open,
    Ping,
    Pong,
    Welcome,
)
from bus.packed import MAX_NODES, Ids
from strategies import name_in
from strategies.acceptance import Acceptance
from verifier_cuda.planner import Pace
from verifier_cuda.session import Session
from verifier_cuda.slots import Slots

MAX_PEERS = 1024
MAX_FINISHED = 64
"""Finished texts remembered for one peer, so that a lost last Commit can be said again."""


@dataclass(frozen=True)
class Settings:
    """What a verifier promises: its model, its limits, its strategies."""

    model: str
    boot_id: int
    tokenizer_digest: bytes
    vocab_size: int
    stop_ids: frozenset[int]
    limits: Limits
    strategies: tuple[str, ...]
    lossy: tuple[str, ...] = ()
    """Those of `strategies` that may change the text."""


@dataclass(frozen=True)
class Reply:
    """A message for a peer."""

    peer: bytes
    message: Message


@dataclass
class _Peer:
    heard_at: float
    pace: Pace = field(default_factory=Pace)
    sessions: dict[int, Session] = field(default_factory=dict)


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
            return [Reply(peer, answer) for answer in self._answer(peer, content, now)]
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
                return [self._open(peer, message, now)]
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
        if hello.protocol != PROTOCOL:
            raise ProtocolError(
                Code.PROTOCOL_MISMATCH,
                f"the verifier speaks protocol {PROTOCOL}, the drafter {hello.protocol}: "
                "install the same draftbus release on both sides",
            )
        if hello.tokenizer_digest != ours.tokenizer_digest or hello.vocab_size != ours.vocab_size:
            raise ProtocolError(
                Code.TOKENIZER_MISMATCH,
                f"{hello.model!r} ({hello.vocab_size} ids) and {ours.model!r} ({ours.vocab_size} "
                "ids) number their tokens differently: use a draft of the target's model family",
            )
        if peer not in self._peers and len(self._peers) >= MAX_PEERS:
            raise ProtocolError(Code.OVERLOADED, f"{MAX_PEERS} drafters are connected already")
        self._peers.setdefault(peer, _Peer(now))
        return Welcome(ours.boot_id, ours.model, ours.limits, ours.strategies,
                       Ids(sorted(ours.stop_ids)), ours.lossy)  # fmt: skip

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
            self._check(opened)
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
        session = Session(opened, acceptance, self.settings.stop_ids, limits.max_model_len,
                          limits.max_tree_nodes, self._peers[peer].pace)  # fmt: skip
        session.committed_at = session.served_at = now
        if session.finish is None:
            taken = None if self.draining else self.slots.take(peer, session.tree.tokens)
            if taken is None:
                code = Code.SHUTTING_DOWN if self.draining else Code.OVERLOADED
                reason = "is shutting down" if self.draining else "has no free session"
                raise ProtocolError(code, f"the verifier {reason}: try again", opened.session)
            session.slot, shared = taken
            session.reuse(shared)
        self._remember(peer, session)
        return session

    def _remember(self, peer: bytes, session: Session) -> None:
        sessions = self._peers[peer].sessions
        over = [known.id for known in sessions.values() if known.finish is not None]
        for old in over[: max(0, len(over) - MAX_FINISHED)]:
            self.close(peer, old)
        sessions[session.id] = session

    def _check(self, opened: Open) -> None:
        limits, vocab_size = self.settings.limits, self.settings.vocab_size
        if not opened.prompt:
            raise ProtocolError(Code.EMPTY_PROMPT, "the prompt has no tokens", opened.session)
        if len(opened.prompt) >= limits.max_model_len:
            raise ProtocolError(
                Code.PROMPT_TOO_LONG,
                f"the prompt has {len(opened.prompt)} tokens and the verifier takes at most "
                f"{limits.max_model_len - 1}: shorten it, or raise --max-model-len there",
                opened.session,
            )
        if len(opened.committed) > opened.sampling.max_tokens:
            raise ProtocolError(
                Code.BAD_PARAMS, "more was committed than max_tokens allows", opened.session
            )
        named = max(*opened.prompt, *opened.committed, *opened.sampling.named, 0)
        if named >= vocab_size:
            raise ProtocolError(
                Code.TOKEN_OUT_OF_RANGE,
                f"token id {named} is outside the vocabulary of {vocab_size}",
                opened.session,
            )

    def _draft(self, peer: bytes, draft: Draft, now: float) -> None:
        session = self._peers[peer].sessions.get(draft.session)
        if session is None:
            raise ProtocolError(
                Code.UNKNOWN_SESSION, "open the session again with what you have", draft.session
            )
        lengths = {len(draft.tokens), len(draft.confidence), len(draft.parents or draft.tokens)}
        if len(lengths) != 1:
            raise ProtocolError(
                Code.BAD_MESSAGE, "tokens, confidence and parents differ in length", draft.session
            )
        if max(draft.parents, default=0) > MAX_NODES + len(draft.more):
            raise ProtocolError(
                Code.BAD_MESSAGE, "a parent names an anchor that is not there", draft.session
            )
        if max(draft.tokens, default=0) >= self.settings.vocab_size:
            raise ProtocolError(
                Code.TOKEN_OUT_OF_RANGE,
                f"drafted id {max(draft.tokens)} is outside the vocabulary", draft.session,
            )  # fmt: skip
        self._check_proposals(draft)
        if session.finish is None:
            session.add_draft(draft, now, self._drained_at)

    def _check_proposals(self, draft: Draft) -> None:
        anchors = range(MAX_NODES + 1, MAX_NODES + 1 + len(draft.more))
        for place, tokens, _ in draft.proposals:
            if place > len(draft.tokens) and place not in anchors:
                raise ProtocolError(
                    Code.BAD_MESSAGE, "a proposal stands at a place that is not there",
                    draft.session,
                )  # fmt: skip
            if max(tokens) >= self.settings.vocab_size:
                raise ProtocolError(
                    Code.TOKEN_OUT_OF_RANGE,
                    f"proposed id {max(tokens)} is outside the vocabulary", draft.session,
                )  # fmt: skip

    def close(self, peer: bytes, session_id: int) -> None:
        session = self._peers[peer].sessions.pop(session_id, None)
        self._unsent.pop((peer, session_id), None)
        if session is not None:
            self.release(peer, session)

    def release(self, peer: bytes, session: Session) -> None:
        self.dropped_drafts += session.dropped_drafts
        session.dropped_drafts = 0
        if session.slot is not None:
            self.slots.give(session.slot, peer, session.tree.tokens[: session.cached])
            session.slot = None

    def forget(self, peer: bytes) -> None:
        """A peer has left: its sessions end and their slots are free."""
        for session_id in list(self._peers[peer].sessions) if peer in self._peers else ():
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
        if isinstance(reply.message, Commit):
            key = (reply.peer, reply.message.session)
            self._unsent[key] = min(self._unsent.get(key, 1 << 31), reply.message.position)

    def held(self) -> list[Reply]:
        """The held commits, to be tried again; each session rests until its own is through."""
        waiting, self._unsent = self._unsent, {}
        return [
            Reply(peer, self._peers[peer].sessions[session_id].since(position))
            for (peer, session_id), position in waiting.items()
        ]
