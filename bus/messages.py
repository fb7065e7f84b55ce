"""The messages, and what each may hold. `docs/protocol.md` says what they mean.

Each is a frozen Struct that travels as a MessagePack array `[tag, field, ...]`.
Rules of evolution: a new field goes last and has a default, a field never
changes its type or meaning, a tag is never used again. Anything else needs a
new PROTOCOL number.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bus.packed import (
    MAX_TOKENS,
    MAX_TOP,
    Anchors,
    Biases,
    Confidences,
    Ids,
    Logprobs,
    Parents,
    Proposals,
)

PROTOCOL = 2

MAX_PAYLOAD = 1 << 20
"""Bytes in one message; the sockets refuse a larger frame unread."""
MIN_TEMPERATURE = 1e-5
"""Below this a temperature counts as 0: dividing logits by less overflows float32."""
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
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Top = Annotated[int, Meta(ge=0, le=MAX_TOP)]
"""How many likeliest tokens are told with each committed one."""
Finish = Literal["stop", "length"]
"""Why a text is over: an end id, or no room for more."""
Micros = Annotated[int, Meta(ge=0, le=1 << 62)]
"""Microseconds."""


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
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    """Divides what is over 0, and multiplies what is not, of tokens in the prompt or the text."""
    presence_penalty: Penalty = 0.0
    """Taken from the logit of each token that is in the text."""
    frequency_penalty: Penalty = 0.0
    """The same, as many times as the token is there."""
    logit_bias: Biases = Biases()

    def __post_init__(self) -> None:
        if self.seed >= 1 << 64:  # msgspec checks no bound beyond 63 bits
            raise ValueError("seed: Expected `int` < 2**64")

    @property
    def greedy(self) -> bool:
        """True when the likeliest token is always taken."""
        return self.temperature < MIN_TEMPERATURE

    @property
    def named(self) -> tuple[int, ...]:
        """The token ids in it."""
        return (*self.stop_ids, *dict(self.logit_bias))

    @property
    def adjusts(self) -> bool:
        """True when the logits are not taken as they are (`strategies.penalties`)."""
        return bool(self.logit_bias) or self.penalizes

    @property
    def penalizes(self) -> bool:
        """True when the next token depends on which tokens are there already."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1, 0, 0)


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
    reused: Count = 0
    """In the first Commit: prompt tokens that an earlier session had left in the cache."""


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
    lossy: tuple[Name, ...] = ()
    """Those of `strategies` under which the text may not be the target's."""
    drawn: tuple[Name, ...] = ()
    """Those that need guesses drawn at random, with the word what from."""


class Open(Message, frozen=True, tag=3):
    """Start a session, or go on with one: `committed` holds what was received already."""

    session: SessionId
    prompt: Ids
    committed: Ids
    sampling: Sampling
    acceptance: Name = "exact"
    lockstep: bool = False
    """Wait for a draft before each pass, as synchronous speculation does (a baseline)."""
    logprobs: Top | None = None
    """Tell the logprobs of the committed tokens and of so many likeliest ones; None for none."""
    shared: Word = 0
    """A secret by which other drafters may join the session; 0 for none."""
    guest: bool = False
    """From a verifier: an offer to join this session. From a drafter: the offer is taken."""


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What one of several drafters gave to a text."""

    model: Name
    drafted: Count
    """Guesses of it that were verified; one that two drafters sent counts for both."""
    accepted: Count
    """Those that became text."""


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
    proposals: Proposals = Proposals()
    """Where guesses were drawn at random: what from. Needed by the acceptance `probabilistic`."""


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
    logprobs: Logprobs = Logprobs()
    """Of the last tokens; those before came with an Open. Before all adjustment, temperature 1."""
    shares: tuple[Share, ...] = ()
    """In the last Commit, when there were several drafters: the opener's first."""


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


class Join(Message, frozen=True, tag=10):
    """Drafter to verifier: offer me the sessions that are open under this secret, now and later."""

    shared: Word


AnyMessage = Hello | Welcome | Open | Draft | Commit | Close | Ping | Pong | Error | Join
