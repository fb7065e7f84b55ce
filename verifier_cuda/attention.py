"""Attention on the CPU, in float32: scores, softmax, sum, each as one plain operation.

For the few rows of a pass it is as fast as PyTorch's fused kernel, it does not
copy the keys of grouped heads, and, with the places that `layout` gives, a row's
result does not depend on the rows beside it.
"""

from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "draftbus"
_UNKNOWN = ("softcap", "s_aux", "sliding_window")


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """`query` `[b, heads, rows, dim]`, `key` and `value` `[b, kv heads, places, dim]`.

    `attention_mask` is added to the scores, `[b, 1, rows, places]`. Returns
    `[b, rows, heads, dim]`. NotImplementedError for what plain attention has not.
    """
    del module, dropout
    if unknown := [name for name in _UNKNOWN if options.get(name) is not None]:
        raise NotImplementedError(f"attention with {', '.join(unknown)}")
    batch, heads, rows, dim = query.shape
    groups = key.shape[1]
    scale = dim**-0.5 if scaling is None else scaling
    asked = (query.float() * scale).reshape(batch, groups, -1, dim)
    scores = torch.matmul(asked, key.float().transpose(-1, -2))
    scores = scores.view(batch, groups, heads // groups, rows, -1) + attention_mask.unsqueeze(2)
    weights = torch.softmax(scores, -1).view(batch, groups, heads // groups * rows, -1)
    summed = torch.matmul(weights, value.float()).view(batch, heads, rows, dim)
    return summed.transpose(1, 2).to(query.dtype), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
