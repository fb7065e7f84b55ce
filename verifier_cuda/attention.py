"""Attention on the CPU, in float32: scores, softmax, sum, each as one plain operation.

For the few rows of a pass it is as fast as PyTorch's fused kernel, it does not
copy the keys of grouped heads, and, with the places that `layout` gives, a row's
result does not depend on the rows beside it. It goes session by session, so a pass
needs no padding.
"""

from typing import Any

import torch
from torch.nn.functional import pad
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from verifier_cuda.cache import SlotCache
from verifier_cuda.layout import BLOCK

NAME = "draftbus"
_UNKNOWN = ("softcap", "s_aux", "sliding_window")


def connect(network: torch.nn.Module, cache: SlotCache) -> None:
    """Let every attention layer of `network` find the pass that `cache` holds."""
    for module in network.modules():
        if hasattr(module, "layer_idx"):
            module.slot_cache = cache  # type: ignore[assignment]


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """`query` `[1, heads, rows, dim]`, `key` and `value` `[slots, kv heads, places, dim]`.

    Who sees what is said by the cache that the module is connected to; the mask is not
    read. Returns `[1, rows, heads, dim]`. NotImplementedError for what plain attention
    has not.
    """
    del attention_mask, dropout
    if unknown := [name for name in _UNKNOWN if options.get(name) is not None]:
        raise NotImplementedError(f"attention with {', '.join(unknown)}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    result = torch.zeros_like(query)
    for part, mask in module.slot_cache.parts:
        rows = slice(part.first, part.first + part.count)
        held = slice(part.slot, part.slot + 1)
        result[:, :, rows] = of_one(
            query[:, :, rows], key[held, :, : part.length], value[held, :, : part.length],
            mask, scale,
        )  # fmt: skip
    return result.transpose(1, 2), None


def of_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """One session: `query` `[1, heads, rows, dim]`, the rest `[1, kv heads, places, dim]`.

    `mask` `[rows, places]` is added to the scores; it may have more rows than `query`.
    """
    _, heads, count, dim = query.shape
    rows, groups = len(mask), key.shape[1]
    asked = pad(query.float() * scale, (0, 0, 0, rows - count)).reshape(1, groups, -1, dim)
    scores = torch.matmul(asked, key.float().transpose(-1, -2))
    scores = scores.view(1, groups, heads // groups, rows, -1) + mask
    weights = torch.softmax(scores, -1).view(1, groups, heads // groups * rows, -1)
    summed = _summed(weights, value.float()).view(1, heads, rows, dim)
    return summed[:, :, :count].to(query.dtype)


def _summed(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The product, summed block by block: libraries cut long sums elsewhere on each machine."""
    total = torch.matmul(weights[..., :BLOCK], value[..., :BLOCK, :])
    for start in range(BLOCK, value.shape[-2], BLOCK):
        end = start + BLOCK
        total += torch.matmul(weights[..., start:end], value[..., start:end, :])
    return total


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
