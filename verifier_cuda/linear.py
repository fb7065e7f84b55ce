"""Linear layers whose weights are laid out for oneDNN once, at start-up.

On a CPU that is 1.3 to 2.2 times as fast in bfloat16 for the few rows of a pass as
PyTorch's own, which lays them out anew each time. And from 2 to 32 rows a row's result
does not depend on how many others there are, which PyTorch's does. More rows go in
several turns, because beyond 32 there are machines (those with AMX) where it does.
"""

import torch
from torch import nn

_ROWS = 16
"""The width the layout is chosen for."""
MOST = 32
"""Rows in one turn."""


class PackedLinear(nn.Module):
    """A linear layer for inference; `weight` stays only where something else uses it."""

    def __init__(self, linear: nn.Linear, keep_weight: bool) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.weight = linear.weight if keep_weight else None
        self.bias = linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`[..., in]` to `[..., out]`."""
        count = rows.numel() // self.in_features
        if count <= MOST:
            return self._turn(rows)
        # Turns of equal size: a last one of a single row would be rounded differently.
        turns = rows.reshape(count, self.in_features).tensor_split(-(-count // MOST))
        result = torch.cat([self._turn(turn) for turn in turns])
        return result.view(*rows.shape[:-1], self.out_features)

    def _turn(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._packed, self.bias, "none", [], ""
        )
        return result


def can_pack(network: nn.Module) -> bool:
    """True for a network on a CPU in a precision that oneDNN has kernels for."""
    device, dtype = next(network.parameters()).device, next(network.parameters()).dtype
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


@torch.inference_mode()
def pack(network: nn.Module) -> None:
    """Replace every plain linear layer of `network`."""
    shared = {id(module.weight) for module in network.modules() if isinstance(module, nn.Embedding)}
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child, id(child.weight) in shared))
