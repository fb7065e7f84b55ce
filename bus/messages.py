"""The messages, and what each may hold. `docs/protocol.md` says what they mean.

Each is a frozen Struct that travels as a MessagePack array `[tag, field, ...]`.
Rules of evolution: a new field goes last and has a default, a field never
changes its type or meaning, a tag is never used again. Anything else needs a
new PROTOCOL number.
"""

import struct
from typing import Annotated, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta

PROTOCOL = 2

MAX_PAYLOAD = 1 << 20
"""Bytes in one message; the sockets refuse a larger frame unread."""
MAX_TOKENS = 1 << 17
"""Token ids in one field, which fit MAX_PAYLOAD however large they are."""
MAX_ID = (1 << 32) - 1
MIN_TEMPERATURE = 1e-5
"""Below this a temperature counts as 0: dividing logits by less overflows float32."""
MAX_NODES = 64
"""Nodes in one Draft."""
MAX_SESSION = (1 << 32) - 1

Name = Annotated[str, Meta(max_length=200)]
Text = Annotated[str, Meta(max_length=1000)]
SessionId = Annotated[int, Meta(ge=0, le=MAX_SESSION)]
Position = Annotated[int, Meta(ge=0, le=1 << 31)]
Word = Annotated[int, Meta(ge=0)]
"""64 bits; MessagePack has no larger integer."""
Prefix = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
"""The rolling digest of a prefix, as `strategies.tree` makes it."""
Count = Annotated[int, Meta(ge=0, le=1 << 31)]
Finish = Literal["stop", "length"]
"""Why a text is over: an end id, or no room for more."""
Micros = Annotated[int, Meta(ge=0, le=1 << 62)]
"""Microseconds."""


class Ids(tuple[int, ...]):
    """Token ids; travel as LEB128, seven bits a byte, low ones first: two or three bytes each."""

    __slots__ = ()

    def pack(self) -> bytes:
        data = bytearray()
        for token in self:
            while token > 0x7F:
                data.append(token & 0x7F | 0x80)
                token >>= 7
            data.append(token)
        return bytes(data)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        ids: list[int] = []
        token = shift = 0
        for byte in data:
            token |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if token > MAX_ID or (byte == 0 and shift > 7):
                    raise ValueError("an id is too large, or written longer than it is")
                ids.append(token)
                token = shift = 0
            elif shift > 28:
                raise ValueError("an id is too large")
        if shift or len(ids) > MAX_TOKENS:
            raise ValueError(f"{len(data)} bytes are not a list of at most {MAX_TOKENS} token ids")
        return cls(ids)


class Confidences(tuple[float, ...]):
    """Chances in [0, 1]; travel as one byte each, in steps of 1/255."""

    __slots__ = ()

    def pack(self) -> bytes:
        return bytes(round(255 * value) for value in self)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        if len(data) > MAX_NODES:
            raise ValueError(f"{len(data)} bytes are not a list of at most {MAX_NODES} confidences")
        return cls(byte / 255 for byte in data)


class Parents(tuple[int, ...]):
    """For each node of a Draft: 0 for the anchor, i for the message's i-th node.

    MAX_NODES + j stands for the j-th further anchor. Travels as one byte each.
    Empty means a chain: every node under the one before.
    """

    __slots__ = ()

    def pack(self) -> bytes:
        return bytes(self)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        if len(data) > MAX_NODES or any(
            index < parent <= MAX_NODES for index, parent in enumerate(data)
        ):
            raise ValueError("a parent does not come before its child")
        return cls(data)


class Anchor(NamedTuple):
    """A further prefix that nodes of a Draft continue."""

    offset: int
    """Tokens in it beyond the Draft's position."""
    digest: int


class Anchors(tuple[Anchor, ...]):
    """Further anchors; travel as one byte of offset and a little-endian u32 each."""

    __slots__ = ()

    def pack(self) -> bytes:
        return b"".join(struct.pack("<BI", *anchor) for anchor in self)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        if len(data) % 5 or len(data) > 5 * MAX_NODES:
            raise ValueError(f"{len(data)} bytes are not a list of at most {MAX_NODES} anchors")
        return cls(Anchor(*pair) for pair in struct.iter_unpack("<BI", data))


Packed = Ids | Confidences | Parents | Anchors


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages."""


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """What the text depends on, beside model and prompt."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 128
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    seed: Word = 0
    stop_ids: Ids = Ids()
    """Ids that end the text, beside the model's own; the id itself is committed."""
    ignore_eos: bool = False
    """Do not stop at the model's own end ids (for benchmarks)."""

    def __post_init__(self) -> None:
        if self.seed >= 1 << 64:  # msgspec checks no bound beyond 63 bits
            raise ValueError("seed: Expected `int` < 2**64")

    @property
    def greedy(self) -> bool:
        """True when the likeliest token is always taken."""
        return self.temperature < MIN_TEMPERATURE


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """What a verifier accepts."""

    max_sessions: Count
    max_model_len: Count
    """Tokens of prompt and text together."""
    max_tree_nodes: Count
    """Drafted nodes held for one session; more are dropped."""
    lease_ms: Count
    """A peer that says nothing for this long loses its sessions."""


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """How long the verifier took for one Commit, in microseconds."""

    pass_us: Micros = 0
    wait_us: Micros = 0
    """Time spent waiting for drafts before the pass."""
    prefill_us: Micros = 0


class Hello(Message, frozen=True, tag=1):
    """Drafter to verifier, first on every connection."""

    protocol: Count
    model: Name
    tokenizer_digest: Annotated[bytes, Meta(min_length=32, max_length=32)]
    vocab_size: Count
    """One more than the largest token id of the tokenizer."""
    agent: Name = ""


class Welcome(Message, frozen=True, tag=2):
    """Verifier to drafter: the answer to Hello."""

    boot_id: Word
    """Drawn at start-up; another value means the verifier has forgotten every session."""
    model: Name
    limits: Limits
    strategies: tuple[Name, ...]
    """Acceptance strategies that an Open may name."""
    stop_ids: Ids = Ids()
    """The target's own end ids."""


class Open(Message, frozen=True, tag=3):
    """Start a session, or go on with one: `committed` holds what was received already."""

    session: SessionId
    prompt: Ids
    committed: Ids
    sampling: Sampling
    acceptance: Name = "exact"
    lockstep: bool = False
    """Wait for a draft before each pass, as synchronous speculation does (a baseline)."""


class Draft(Message, frozen=True, tag=4):
    """Guesses: small subtrees under nodes whose prefixes have these digests. Idempotent."""

    session: SessionId
    position: Position
    """Tokens in the anchor's prefix, which is the index of the first guessed token."""
    digest: Prefix
    tokens: Ids
    confidence: Confidences
    """Chance of each node, given that its parent was accepted."""
    parents: Parents = Parents()
    more: Anchors = Anchors()
    """Further anchors."""
    turnaround_us: Micros = 0
    """In the first push after a Commit: the round trip, and how long the answer took."""


class Commit(Message, frozen=True, tag=5):
    """The authoritative text from `position` on. Append-only; a repeat is harmless."""

    session: SessionId
    position: Position
    tokens: Ids
    accepted: Count = 0
    """How many of the tokens were drafted."""
    width: Count = 0
    """Rows of the pass, the tip's included; 0 when the Commit repeats older passes."""
    finish: Finish | None = None
    timings: Timings = Timings()
    rejected: Count = 0
    """Drafted tokens that were turned down where the last token stands; 0 makes it a bonus."""


class Close(Message, frozen=True, tag=6):
    """Drafter to verifier: the session is no longer wanted."""

    session: SessionId


class Ping(Message, frozen=True, tag=7):
    """Are you there? Answered by the loop that owns the model."""

    sent_us: Micros


class Pong(Message, frozen=True, tag=8):
    """The answer to Ping, with the answering side's clock."""

    sent_us: Micros
    now_us: Micros


class Error(Message, frozen=True, tag=9):
    """Something was refused; `session` is set when only that session is meant."""

    code: Name
    message: Text
    session: SessionId | None = None


AnyMessage = Hello | Welcome | Open | Draft | Commit | Close | Ping | Pong | Error
