"""Everything a verifier can be told, checked once and never changed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verifier_cuda.scheduler import MAX_WIDTH

Device = Literal["auto", "cuda", "cpu"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Config:
    """One verifier daemon."""

    model: str
    host: str = "127.0.0.1"
    port: int = 7700
    device: Device = "auto"
    dtype: Dtype = "auto"
    """`auto` is bfloat16 on CUDA and float32 on the CPU."""
    max_sessions: int = 8
    max_model_len: int | None = None
    """Tokens of prompt and text together; None for the model's own limit, at most 8192."""
    max_width: int = MAX_WIDTH
    """Most rows of one session in one pass."""
    lease_s: float = 10.0
    """A drafter that says nothing for this long loses its sessions."""
    drain_s: float = 10.0
    """Time that running sessions get to finish after SIGTERM."""
    bitwise: bool = True
    """Drafts must not change even the last bit of a logit; on CUDA this costs wide passes."""
    insecure: bool = False
    trust_remote_code: bool = False
    pass_log: Path | None = None
    """File that gets one JSON line for each pass."""
    emulate_network: bool = False
    """Hear only drafters of this machine that emulate a slow network (for benchmarks)."""
