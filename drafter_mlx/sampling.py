"""The keyed choice in MLX: what the target will most likely choose, by the draft's logits.

`gumbel_units` equals `strategies.noise.gumbel_units` bit for bit. The filters
follow `strategies.sampling`, but in float32, where the cumulative sum of a large
vocabulary is off by up to 3e-4: a cut that falls differently costs a rejected
draft and nothing else.
"""

import functools
from collections.abc import Sequence

import mlx.core as mx

from bus.messages import Sampling
from strategies import noise
from strategies.penalties import Adjustment


@functools.cache
def _table() -> mx.array:
    return mx.array(noise.table())


def _finalize(word: mx.array) -> mx.array:
    word = (word ^ (word >> 16)) * mx.array(noise.MIX_1, mx.uint32)
    word = (word ^ (word >> 13)) * mx.array(noise.MIX_2, mx.uint32)
    return word ^ (word >> 16)


def gumbel_units(keys: Sequence[noise.Key], vocab_size: int) -> mx.array:
    """Noise of ids 0 to `vocab_size` - 1 under each key in units, int32 `[keys, vocab_size]`."""
    low, high = mx.array([list(key) for key in keys], mx.uint32)[:, :, None].transpose(1, 0, 2)
    ids = mx.arange(vocab_size, dtype=mx.uint32)[None]
    word = _finalize(_finalize(ids * mx.array(noise.GOLDEN, mx.uint32) + low) ^ high)
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


def adjusted(logits: mx.array, adjustment: Adjustment | None) -> mx.array:
    """Logits `[rows, vocab]` as the text has them, float32; the same ones without adjustment."""
    if adjustment is None:
        return logits
    ids, bias, divisor, minus = map(mx.array, adjustment)
    logits = logits.astype(mx.float32)
    found = logits[:, ids] + bias
    found = mx.where(found > 0, found / divisor, found * divisor) - minus
    return mx.put_along_axis(logits, mx.broadcast_to(ids, found.shape), found, axis=1)


def filtered(logits: mx.array, sampling: Sampling) -> mx.array:
    """Logits `[rows, vocab]` over the temperature, minus infinity where cut off."""
    scaled = logits / sampling.temperature
    if 0 < sampling.top_k < scaled.shape[-1]:
        smallest = mx.topk(scaled, sampling.top_k, axis=-1).min(-1, keepdims=True)
        scaled = mx.where(scaled < smallest, -mx.inf, scaled)
    if sampling.top_p < 1:
        ordered = mx.sort(scaled, axis=-1)[:, ::-1]
        chance = mx.softmax(ordered, axis=-1, precise=True)
        before = mx.cumsum(chance, axis=-1) - chance
        kept = mx.maximum((before < sampling.top_p).sum(-1, keepdims=True), 1)
        scaled = mx.where(scaled < mx.take_along_axis(ordered, kept - 1, axis=-1), -mx.inf, scaled)
    if sampling.min_p > 0:
        likeliest = scaled.max(-1, keepdims=True)
        floor = likeliest + mx.log(mx.array(sampling.min_p, mx.float32))
        scaled = mx.where(scaled < floor, -mx.inf, scaled)
    return scaled


def scores(logits: mx.array, sampling: Sampling, positions: Sequence[int]) -> mx.array:
    """What the keyed choices at `positions` are the argmax of, float32 `[rows, vocab]`."""
    logits = logits.astype(mx.float32)
    if sampling.greedy:
        return logits
    keys = [noise.key(sampling.seed, position) for position in positions]
    units = gumbel_units(keys, logits.shape[-1])
    return filtered(logits, sampling) + units.astype(mx.float32) * 2.0**-noise.UNIT_BITS
