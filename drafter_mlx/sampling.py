"""The keyed choice in MLX: what the target will most likely choose, by the draft's logits.

`gumbel_units` equals `strategies.noise.gumbel_units` bit for bit. The filters
follow `strategies.sampling`, but in float32, where the cumulative sum of a large
vocabulary is off by up to 3e-4: a cut that falls differently costs a rejected
draft and nothing else.
"""

import functools

import mlx.core as mx

from bus.messages import Sampling
from strategies import noise


@functools.cache
def _table() -> mx.array:
    return mx.array(noise.table())


def _finalize(word: mx.array) -> mx.array:
    word = (word ^ (word >> 16)) * mx.array(noise.MIX_1, mx.uint32)
    word = (word ^ (word >> 13)) * mx.array(noise.MIX_2, mx.uint32)
    return word ^ (word >> 16)


def gumbel_units(key: noise.Key, vocab_size: int) -> mx.array:
    """Noise of ids 0 to `vocab_size` - 1 in units, int32 `[vocab_size]`."""
    ids = mx.arange(vocab_size, dtype=mx.uint32)
    word = _finalize(ids * mx.array(noise.GOLDEN, mx.uint32) + mx.array(key.low, mx.uint32))
    word = _finalize(word ^ mx.array(key.high, mx.uint32))
    upper = word >> 31
    odd = (mx.where(upper == 1, ~word, word) << 1) | mx.array(1, mx.uint32)
    top = (odd & ~(odd >> 1)).astype(mx.float32)
    octave = (top.view(mx.uint32) >> 23) - mx.array(127, mx.uint32)
    mantissa = odd << (mx.array(31, mx.uint32) - octave)
    steps, fractions = 1 << noise.STEP_BITS, 1 << noise.FRACTION_BITS
    step = (mantissa >> (31 - noise.STEP_BITS)) & mx.array(steps - 1, mx.uint32)
    shift = 31 - noise.STEP_BITS - noise.FRACTION_BITS
    fraction = ((mantissa >> shift) & mx.array(fractions - 1, mx.uint32)).astype(mx.int32)
    table = _table()
    index = upper * table.shape[1] + octave * steps + step
    value = table.reshape(-1)[index]
    rise = table.reshape(-1)[index + 1] - value
    return value + ((rise * fraction) >> noise.FRACTION_BITS)


def filtered(logits: mx.array, sampling: Sampling) -> mx.array:
    """Logits `[vocab]` over the temperature, minus infinity where cut off."""
    scaled = logits / sampling.temperature
    if 0 < sampling.top_k < scaled.size:
        smallest = mx.topk(scaled, sampling.top_k).min()
        scaled = mx.where(scaled < smallest, -mx.inf, scaled)
    if sampling.top_p < 1:
        ordered = mx.sort(scaled)[::-1]
        chance = mx.softmax(ordered, precise=True)
        kept = mx.maximum((mx.cumsum(chance) - chance < sampling.top_p).sum(), 1)
        scaled = mx.where(scaled < ordered[kept - 1], -mx.inf, scaled)
    if sampling.min_p > 0:
        floor = scaled.max() + mx.log(mx.array(sampling.min_p, mx.float32))
        scaled = mx.where(scaled < floor, -mx.inf, scaled)
    return scaled


def scores(logits: mx.array, sampling: Sampling, position: int) -> mx.array:
    """What the keyed choice is the argmax of, float32 `[vocab]`."""
    logits = logits.astype(mx.float32)
    if sampling.greedy:
        return logits
    units = gumbel_units(noise.key(sampling.seed, position), logits.size)
    return filtered(logits, sampling) + units.astype(mx.float32) * 2.0**-noise.UNIT_BITS
