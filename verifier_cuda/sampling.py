"""The keyed choice in torch: `strategies.sampling` and `strategies.noise` for many rows at once.

The noise equals the numpy reference bit for bit, on the CPU and on CUDA: it is
computed in 64-bit integers that hold 32-bit words.
"""

import functools
from collections.abc import Sequence

import torch

from bus.messages import Sampling
from strategies import noise
from strategies.penalties import Adjustment

_WORD = 0xFFFFFFFF


@functools.cache
def _table(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(noise.table().astype("int64")).to(device)


def _finalize(word: torch.Tensor) -> torch.Tensor:
    word = (word ^ (word >> 16)) * noise.MIX_1 & _WORD
    word = (word ^ (word >> 13)) * noise.MIX_2 & _WORD
    return word ^ (word >> 16)


def gumbel_units(keys: Sequence[noise.Key], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Noise of ids 0 to `vocab_size` - 1 under each key, int64 `[keys, vocab_size]`."""
    low, high = torch.tensor(keys, dtype=torch.int64).to(device).unsqueeze(-1).unbind(1)
    ids = torch.arange(vocab_size, device=device)
    word = _finalize(_finalize((ids * noise.GOLDEN + low) & _WORD) ^ high)
    upper = word >> 31
    odd = (torch.where(upper == 1, word ^ _WORD, word) << 1 & _WORD) | 1
    top = (odd & ~(odd >> 1)).to(torch.float32)
    octave = (top.view(torch.int32) >> 23).long() - 127
    mantissa = odd << (31 - octave) & _WORD
    steps, fractions = 1 << noise.STEP_BITS, 1 << noise.FRACTION_BITS
    step = (mantissa >> (31 - noise.STEP_BITS)) & (steps - 1)
    shift = 31 - noise.STEP_BITS - noise.FRACTION_BITS
    fraction = (mantissa >> shift) & (fractions - 1)
    table = _table(device)
    index = octave * steps + step
    value = table[upper, index]
    return value + ((table[upper, index + 1] - value) * fraction >> noise.FRACTION_BITS)


def adjusted(logits: torch.Tensor, adjustment: Adjustment | None) -> torch.Tensor:
    """Logits `[rows, vocab]` as the text has them, float32; the same ones without adjustment.

    By `strategies.penalties`, bit for bit: division is by a tensor, because CUDA replaces
    that by a number with a product.
    """
    if adjustment is None:
        return logits
    ids, bias, divisor, minus = (torch.from_numpy(part).to(logits.device) for part in adjustment)
    found = logits[:, ids].float() + bias
    found = torch.where(found > 0, found / divisor, found * divisor) - minus
    return logits.float().index_copy(1, ids, found)


def filtered(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits `[rows, vocab]` over the temperature, minus infinity where cut off."""
    scaled = logits.float() / sampling.temperature
    cut = -torch.inf
    if 0 < sampling.top_k < scaled.shape[-1]:
        smallest = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < smallest, cut)
    if sampling.top_p < 1:
        ordered = scaled.sort(dim=-1, descending=True).values
        chance = ordered.double().softmax(-1)
        kept = (chance.cumsum(-1) - chance < sampling.top_p).sum(-1, keepdim=True).clamp(min=1)
        scaled = scaled.masked_fill(scaled < ordered.gather(-1, kept - 1), cut)
    if sampling.min_p > 0:
        likeliest = scaled.amax(-1, keepdim=True)
        floor = likeliest + torch.tensor(sampling.min_p, dtype=torch.float32).log().to(
            scaled.device
        )
        scaled = scaled.masked_fill(scaled < floor, cut)
    return scaled


def choose(logits: torch.Tensor, sampling: Sampling, positions: Sequence[int]) -> torch.Tensor:
    """The keyed choices of rows `[rows, vocab]`, whose tokens will have `positions`."""
    if sampling.greedy:
        return logits.argmax(-1)
    keys = [noise.key(sampling.seed, position) for position in positions]
    units = gumbel_units(keys, logits.shape[-1], logits.device)
    return (filtered(logits, sampling) + units.float() * 2.0**-noise.UNIT_BITS).argmax(-1)
