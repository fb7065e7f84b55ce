"""Deterministic stand-ins for the models, and a verifier that is driven by hand.

The fake target keeps a cache per slot as the real one does, and answers only
from what lies there: a wrong `cached`, slot, parent, place or Keep changes its text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import strategies
from bus.messages import PROTOCOL, AnyMessage, Draft, Hello, Limits, Message, Open, Sampling
from bus.packed import Anchor, Anchors, Confidences, Ids, Logprob, Parents
from strategies.acceptance import Acceptance
from strategies.costs import Costs
from strategies.tree import ROOT_DIGEST, extend
from verifier_cuda.layout import BLOCK
from verifier_cuda.registry import Registry, Reply, Settings
from verifier_cuda.scheduler import Block, Keep, Scheduler
from verifier_cuda.session import Session

VOCAB = 16
END = 0
"""The fake target's own end id."""
TOKENIZER = bytes(range(32))
PEER = b"peer"
_START = 0x5EED
_MASK = (1 << 64) - 1


def mixed(word: int, *values: int) -> int:
    """A 64-bit hash; not the project's own, so that a fault there is not shared."""
    for value in values:
        word = ((word ^ (value & _MASK)) + 0x632BE59BD9B4E019) * 0xD6E8FEB86659FD93 & _MASK
        word ^= word >> 32
    return word


@dataclass(frozen=True)
class Voice:
    """What a target says: a hash of the whole prefix, the sampling and the position."""

    salt: int = 0
    end_every: int = 40
    """One token in so many ends the text; 0 for never."""

    def after(self, digest: int, position: int, sampling: Sampling) -> int:
        """The token at `position`, after a prefix with this digest."""
        seed = sampling.seed + 1 if sampling.temperature else 0
        word = mixed(digest, self.salt, position, seed)
        if self.end_every and word % self.end_every == 0:
            return END
        return 1 + (word >> 20) % (VOCAB - 1)

    def next(self, tokens: Sequence[int], sampling: Sampling) -> int:
        """The token after `tokens`."""
        return self.after(mixed(_START, *tokens), len(tokens), sampling)


def plain_decode(
    voice: Voice, prompt: Sequence[int], sampling: Sampling, stop_ids: frozenset[int], max_len: int
) -> tuple[tuple[int, ...], str]:
    """The text of the target alone and why it ends: what every pipeline must say."""
    ends = set(sampling.stop_ids) | (set() if sampling.ignore_eos else stop_ids)
    text: list[int] = []
    while True:
        text.append(voice.next((*prompt, *text), sampling))
        if text[-1] in ends:
            return tuple(text), "stop"
        if len(text) == sampling.max_tokens or len(prompt) + len(text) >= max_len:
            return tuple(text), "length"


class Cached(NamedTuple):
    """One place of a slot: a token, and the digest of all that its row could see."""

    token: int
    digest: int


@dataclass(frozen=True)
class FakeView:
    """The target's choice after each row; prefill has none."""

    choices: Sequence[int]

    def choice(self, row: int) -> int:
        return self.choices[row]

    def logprobs(self, rows: Sequence[int], tokens: Sequence[int], top: int) -> list[Logprob]:
        """Which row was asked for which token is what they say."""
        likely = tuple((token, -1.0) for token in range(top))
        return [Logprob(-1 - t - row / 64, likely) for row, t in zip(rows, tokens, strict=True)]


class FakeTarget:
    """A target whose only memory is its cache, `[slots][places]`."""

    def __init__(self, voice: Voice, slots: int, places: int) -> None:
        self.voice = voice
        self.cache: list[list[Cached | None]] = [[None] * places for _ in range(slots)]

    def forward(self, blocks: Sequence[Block]) -> list[FakeView]:
        """Read every block before any is written, as a pass does."""
        assert len({block.slot for block in blocks}) == len(blocks), "two rows share a slot"
        return [self._run(block) for block in blocks]

    def keep(self, keeps: Sequence[Keep]) -> None:
        """Compact the accepted rows."""
        for kept in keeps:
            slot = self.cache[kept.slot]
            moved = [slot[place] for place in kept.places]
            slot[kept.start : kept.start + len(moved)] = moved

    def holds(self, slot: int, tokens: Sequence[int]) -> bool:
        """True when the slot begins with exactly what reading `tokens` would leave there."""
        return self._read(self.cache[slot][: len(tokens)]) == mixed(_START, *tokens)

    def _run(self, block: Block) -> FakeView:
        digests: list[int] = []
        depths: list[int] = []
        assert block.parents[0] == 0 and block.places[0] == block.start
        assert len({*block.places}) == len(block.places) == len(block.tokens)
        assert min(block.places) == block.start, "a row lies on the text"
        for row, (token, parent) in enumerate(zip(block.tokens, block.parents, strict=True)):
            assert parent < row or row == 0
            before = digests[parent] if row else self._read(self.cache[block.slot][: block.start])
            digests.append(mixed(before, token))
            depths.append(depths[parent] + 1 if row else 0)
        for place, token, digest in zip(block.places, block.tokens, digests, strict=True):
            self.cache[block.slot][place] = Cached(token, digest)
        if block.sampling is None:
            return FakeView(())
        after = [block.start + depth + 1 for depth in depths]
        return FakeView(
            [self.voice.after(d, p, block.sampling) for d, p in zip(digests, after, strict=True)]
        )

    @staticmethod
    def _read(entries: Sequence[Cached | None]) -> int:
        """The digest of what a row sees; anything out of place spoils it."""
        digest = _START
        for entry in entries:
            if entry is None:
                return mixed(digest, -1)
            digest = mixed(digest, entry.token)
            if entry.digest != digest:
                digest = mixed(digest, -2, entry.digest)
        return digest


@dataclass(frozen=True)
class FakeDraft:
    """Guesses the target's token with a chosen accuracy, by a hash of the prefix."""

    voice: Voice
    accuracy: float = 0.7
    hedged: float = 0.7
    """How often the target's token is the runner-up when it is not the first choice."""

    def children(
        self, tokens: Sequence[int], sampling: Sampling, count: int
    ) -> list[tuple[int, float]]:
        """`count` distinct guesses with their chances, best first."""
        word = mixed(77, *tokens)
        truth = self.voice.next(tokens, sampling)
        wrong = [(truth + 1 + (word + i) % (VOCAB - 1)) % VOCAB for i in range(VOCAB - 1)]
        luck, second = word % 1000 / 1000, (word >> 32) % 1000 / 1000
        order = [truth, *wrong]
        if luck >= self.accuracy:
            order = [wrong[0], truth, *wrong[1:]] if second < self.hedged else wrong
        return [(token, 0.75 / (rank + 1)) for rank, token in enumerate(order[:count])]


def guesses(
    style: str, voice: Voice, tokens: Sequence[int], sampling: Sampling, count: int
) -> list[tuple[int, float]]:
    """Guesses after `tokens` in a style: sure, good, fair, bad or odd."""
    if style == "odd":  # the end, again and again, impossible and certain
        return [(END, 0.0), (END, 1.0), (1, 1.0), (VOCAB - 1, 0.5)][: count + 1]
    accuracy = {"sure": 1.0, "good": 0.9, "fair": 0.5, "bad": 0.0}[style]
    return FakeDraft(voice, accuracy, hedged=accuracy).children(tokens, sampling, count)


def hello(**fields: object) -> Hello:
    """A greeting that the fake verifier accepts."""
    known = {"protocol": PROTOCOL, "model": "draft", "tokenizer_digest": TOKENIZER}
    return Hello(**{**known, "vocab_size": VOCAB, **fields})


def opening(prompt: Sequence[int] = (3, 1, 4), session: int = 1, **fields: object) -> Open:
    """An Open; what is not a field of it is one of its sampling."""
    names = fields.keys() & {"committed", "acceptance", "logprobs"}
    own = {name: fields.pop(name) for name in names}
    committed = Ids(own.pop("committed", ()))
    return Open(session, Ids(prompt), committed, Sampling(**fields), **own)


def guess(
    anchor: Sequence[int],
    tokens: Sequence[int],
    parents: Sequence[int] = (),
    session: int = 1,
    more: Sequence[Sequence[int]] = (),
    chances: Sequence[float] = (),
) -> Draft:
    """A Draft of `tokens` under the end of the whole sequence `anchor`, and of those in `more`."""
    sure = Confidences(chances or [0.9] * len(tokens))
    further = Anchors(Anchor(len(p) - len(anchor), digest_of(p)) for p in more)
    return Draft(session, len(anchor), digest_of(anchor), Ids(tokens), sure, Parents(parents),
                 further)  # fmt: skip


def digest_of(prefix: Sequence[int]) -> int:
    """The digest of a whole sequence."""
    digest = ROOT_DIGEST
    for token in prefix:
        digest = extend(digest, token)
    return digest


@dataclass
class Verifier:
    """A verifier's pure half with a fake target, driven by hand."""

    voice: Voice = field(default_factory=Voice)
    limits: Limits = field(default_factory=lambda: Limits(3, 64, 32, 5000))
    boot_id: int = 1
    prefill_chunk: int = 4
    width: int = 6
    foreign: dict[str, Callable[[], Acceptance]] = field(default_factory=dict)
    """Acceptance strategies beside the project's own."""
    costs: dict[int, float] = field(default_factory=dict)
    """Seconds of a pass by its rows, as measured before the start."""
    ragged: bool = True

    def __post_init__(self) -> None:
        named = (*strategies.names("acceptance"), *self.foreign)
        self.settings = Settings(
            "target", self.boot_id, TOKENIZER, VOCAB, frozenset({END}), self.limits, named
        )
        self.registry = Registry(self.settings, self._acceptance)
        self.scheduler = Scheduler(
            self.registry, self.width, self.prefill_chunk, Costs(self.costs), self.ragged
        )
        places = -(-self.limits.max_model_len // BLOCK) * BLOCK
        self.target = FakeTarget(self.voice, self.limits.max_sessions, places)

    def _acceptance(self, name: str) -> Acceptance:
        return self.foreign[name]() if name in self.foreign else strategies.make_acceptance(name)

    def say(self, message: AnyMessage, now: float = 0.0, peer: bytes = PEER) -> list[Message]:
        """What `peer` is answered."""
        replies = self.registry.handle(peer, message, now)
        assert all(reply.peer == peer for reply in replies)
        return [reply.message for reply in replies]

    def step(self, now: float = 0.0, elapsed_s: float = 0.0) -> list[Reply]:
        """One pass that begins at `now`: plan, views, complete, keep."""
        work = self.scheduler.plan(now)
        if not work:
            return []
        views = self.target.forward([entry.block for entry in work])
        replies, keeps = self.scheduler.complete(work, views, elapsed_s, now + elapsed_s)
        self.target.keep(keeps)
        return replies

    @property
    def free(self) -> int:
        """Slots that no session has."""
        return len(self.registry.slots.free)

    def session(self, number: int = 1, peer: bytes = PEER) -> Session:
        """A session as the verifier sees it."""
        return self.registry._peers[peer].sessions[number]

    def finish(self, number: int = 1, peer: bytes = PEER) -> tuple[int, ...]:
        """Run until a session is over; its text."""
        session = self.session(number, peer)
        for turn in range(300):
            if session.finish is not None:
                break
            self.step(1000.0 + turn, 0.1)
        assert session.finish is not None
        return tuple(session.tree.tokens[session.prompt_length :])

    def plain(self, opened: Open) -> tuple[tuple[int, ...], str]:
        """What the session of `opened` has to say in the end."""
        return plain_decode(
            self.voice, opened.prompt, opened.sampling, frozenset({END}), self.limits.max_model_len
        )
