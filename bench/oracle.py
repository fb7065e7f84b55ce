"""Texts and guesses without models, for the simulator: a target and a draft made of hashes.

The target's token is a hash of its whole prefix. The draft knows that token and
names it as often as it is told to; where it does so is a hash of the prefix, too,
so the same prefix always gets the same guesses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strategies.noise import mix64
from strategies.tree import ROOT_DIGEST, Node, extend
from verifier_cuda.scheduler import Block, Keep

VOCAB = 1 << 16
_LUCK = 0x1C0FFEE
_CLASS = 0x5EA50


def chance(word: int) -> float:
    """A hash as a number in [0, 1)."""
    return mix64(word) / 2.0**64


class Text:
    """What the target says after one prompt, worked out beforehand."""

    def __init__(self, number: int, length: int, max_tokens: int) -> None:
        self.number = number
        self.prompt = tuple(mix64(number << 20 | i) % VOCAB for i in range(length))
        self.tokens: list[int] = []
        """What plain decoding says."""
        self.digests = [ROOT_DIGEST]
        """Of the first 0, 1, 2, ... tokens of prompt and text."""
        for token in self.prompt:
            self.digests.append(extend(self.digests[-1], token))
        while len(self.tokens) < max_tokens:
            self.tokens.append(after(self.digests[-1]))
            self.digests.append(extend(self.digests[-1], self.tokens[-1]))


def after(digest: int) -> int:
    """The target's token after the prefix with this digest."""
    return mix64(digest + 1) % VOCAB


@dataclass(frozen=True)
class Choices:
    """The draft's ranking at one place."""

    confidence: Sequence[float]
    """The chance it gives each rank; further ranks get none."""
    rank: int | None
    """Rank of the target's token; None when it is not among them."""


class Acceptance(Protocol):
    """How good the guesses are."""

    def choices(self, text: Text, position: int, digest: int) -> Choices:
        """The ranking after a prefix of so many tokens with this digest."""

    def mean(self, ranks: int) -> tuple[float, ...]:
        """How often the target's token has rank 0, 1, ..., up to `ranks` of them."""


@dataclass(frozen=True)
class Drawn:
    """Guesses that are right by chance, each place for itself."""

    alpha: tuple[float, ...]
    """Chance that the target's token has rank 0, 1, 2, ...: the mean over all places."""
    spread: float = 0.0
    """How far rank 0's chance lies from its mean at one place, at most; 1 for as far as it can."""
    overconfident: float = 1.0
    """1 tells the true chance c; x tells c ** (1 / x), which is more."""
    salt: int = 0

    def mean(self, ranks: int) -> tuple[float, ...]:
        return self.alpha[:ranks]

    def choices(self, text: Text, position: int, digest: int) -> Choices:
        del text, position
        mean = self.alpha[0]
        reach = self.spread * min(mean, 1 - mean)
        first = mean + reach * (2 * chance(digest ^ self.salt ^ _CLASS) - 1)
        others = (1 - first) / (1 - mean) if mean < 1 else 0.0
        chances = [first, *(others * value for value in self.alpha[1:])]
        luck, rank = chance(digest ^ self.salt ^ _LUCK), None
        for place, value in enumerate(chances):
            luck -= value
            if luck < 0:
                rank = place
                break
        return Choices([value ** (1 / self.overconfident) for value in chances], rank)


class Recorded:
    """Guesses as a real draft made them along real texts, place by place."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Each text's `ranks`, of the target's tokens or None, and `confidence` by rank."""
        self._texts = [
            [*map(Choices, record["confidence"], record["ranks"])]
            for record in records
            if record["ranks"]
        ]
        assert self._texts, "nothing was recorded"

    def mean(self, ranks: int) -> tuple[float, ...]:
        found = [choices.rank for text in self._texts for choices in text]
        return tuple(found.count(rank) / len(found) for rank in range(ranks))

    def choices(self, text: Text, position: int, digest: int) -> Choices:
        del digest
        known = self._texts[text.number % len(self._texts)]
        return known[(position - len(text.prompt)) % len(known)]


def children(text: Text, acceptance: Acceptance, node: Node, count: int) -> list[tuple[int, float]]:
    """The draft's `count` likeliest tokens after `node`, best first, with their chances."""
    found = acceptance.choices(text, node.position + 1, node.digest)
    truth = after(node.digest)
    confidence = [*found.confidence[:count], *[0.0] * (count - len(found.confidence))]
    return [
        (truth if rank == found.rank else (truth + 1 + rank) % VOCAB, confidence[rank])
        for rank in range(count)
    ]


@dataclass(frozen=True)
class View:
    """The target's choice after each row of one block."""

    choices: Sequence[int]

    def choice(self, row: int) -> int:
        return self.choices[row]


class Target:
    """A target whose only memory is its slots: the digest of what each place has seen."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[int, int]] = {}

    def forward(self, blocks: Sequence[Block]) -> list[View]:
        return [self._run(block) for block in blocks]

    def keep(self, keeps: Sequence[Keep]) -> None:
        """Move the accepted rows to their places."""
        for kept in keeps:
            slot = self._slots[kept.slot]
            moved = [slot[place] for place in kept.places]
            slot.update(enumerate(moved, kept.start))

    def _run(self, block: Block) -> View:
        slot = self._slots.setdefault(block.slot, {})
        seen: list[int] = []
        for row, (token, parent) in enumerate(zip(block.tokens, block.parents, strict=True)):
            before = seen[parent] if row else slot[block.start - 1] if block.start else ROOT_DIGEST
            seen.append(extend(before, token))
        slot.update(zip(block.places, seen, strict=True))
        return View([after(digest) for digest in seen] if block.sampling is not None else ())
