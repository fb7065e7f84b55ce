"""Keyed Gumbel noise: the reference that every other version equals bit for bit.

The noise of a token is a function of (seed, absolute position, token id), so the
target's token `argmax(log p + G)` depends on nothing else (the Gumbel-max trick).
To be the same on every device it is computed in integers alone: a hash gives 32
random bits, a table with linear interpolation turns them into a Gumbel value in
fixed point, and only the last step, which is exact, makes a float of it.

The hash is the finalizer of MurmurHash3 (Appleby, public domain), keyed through
SplitMix64 (Steele, Lea, Flood, 2014).
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

UNIT_BITS = 19
"""Noise is counted in units of 2**-19; its largest value, 22.9, is then exact in float32."""
STEP_BITS = 8
"""Table entries per octave of chance, as a power of two."""
FRACTION_BITS = 16

GOLDEN = 0x9E3779B9
MIX_1 = 0x85EBCA6B
MIX_2 = 0xC2B2AE35
_MASK = (1 << 64) - 1


class Key(NamedTuple):
    """The two 32-bit words that stand for a seed at one position."""

    low: int
    high: int


def mix64(value: int) -> int:
    """The output function of SplitMix64: 64 bits to 64 bits, one to one."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def key(seed: int, position: int) -> Key:
    """The key of the token at absolute index `position` under `seed` (64 bits)."""
    word = mix64(mix64(seed & _MASK) + (position + 1) * 0x9E3779B97F4A7C15 & _MASK)
    return Key(word & 0xFFFFFFFF, word >> 32)


JUDGE = 0x6A7564676D656E74
"""Sets apart the noise by which drafts are judged; it must not be that by which they are made."""


def uniform(seed: int, position: int, number: int) -> float:
    """The `number`-th value in (0, 1) that judges drafts for `position`."""
    word = bits(key(mix64(seed & _MASK ^ JUDGE), position), np.array([number], np.uint32))
    return float((int(word[0]) + 0.5) / 2.0**32)


def bits(k: Key, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """32 random bits for each token id, `[n]` to `[n]`."""
    word = _finalize(tokens * np.uint32(GOLDEN) + np.uint32(k.low))
    return _finalize(word ^ np.uint32(k.high))


def _finalize(word: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    word = (word ^ (word >> np.uint32(16))) * np.uint32(MIX_1)
    word = (word ^ (word >> np.uint32(13))) * np.uint32(MIX_2)
    return word ^ (word >> np.uint32(16))


@functools.cache
def table() -> npt.NDArray[np.int32]:
    """Gumbel values in units, `[2, 32 * 2**STEP_BITS + 1]`.

    Row 0 is for chances v below one half, row 1 for the chances above, counted
    down from one. Entry `octave * 2**STEP_BITS + step` stands for the chance
    `2**octave * (1 + step / 2**STEP_BITS) / 2**33`.
    """
    steps = 1 << STEP_BITS
    rows: list[list[int]] = [[], []]
    for index in range(32 * steps + 1):
        chance = 2.0 ** (index // steps - 33) * (1 + index % steps / steps)
        rows[0].append(round(-math.log(-math.log1p(-chance)) * (1 << UNIT_BITS)))
        rows[1].append(round(-math.log(-math.log(chance)) * (1 << UNIT_BITS)))
    return np.array(rows, dtype=np.int32)


def gumbel_units(k: Key, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Noise of each token id in units of 2**-UNIT_BITS, `[n]` to `[n]`."""
    word = bits(k, tokens)
    upper = word >> np.uint32(31)
    # 2x + 1 puts the chance in the middle of its 2**-32 wide cell, and never at 0.
    odd = (np.where(upper == 1, ~word, word) << np.uint32(1)) | np.uint32(1)
    # Clearing the second bit keeps the float from rounding up to the next octave.
    top = odd & ~(odd >> np.uint32(1))
    octave = (top.astype(np.float32).view(np.uint32) >> np.uint32(23)) - np.uint32(127)
    mantissa = odd << (np.uint32(31) - octave)
    step = (mantissa >> np.uint32(31 - STEP_BITS)) & np.uint32((1 << STEP_BITS) - 1)
    shift = 31 - STEP_BITS - FRACTION_BITS
    fraction = (mantissa >> np.uint32(shift)) & np.uint32((1 << FRACTION_BITS) - 1)
    index = (octave << np.uint32(STEP_BITS)) + step
    values = table()
    low = values[upper, index]
    rise = values[upper, index + np.uint32(1)] - low
    units: npt.NDArray[np.int32] = low + ((rise * fraction.astype(np.int32)) >> FRACTION_BITS)
    return units


def gumbel(k: Key, vocab_size: int) -> npt.NDArray[np.float32]:
    """Noise for token ids 0 to `vocab_size` - 1, `[vocab_size]`."""
    units = gumbel_units(k, np.arange(vocab_size, dtype=np.uint32))
    return units.astype(np.float32) * np.float32(2.0**-UNIT_BITS)
