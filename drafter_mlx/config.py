"""Everything a drafter can be told, checked once and never changed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from strategies.drafting import Options

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Config:
    """One drafter daemon."""

    verifier: str
    model: str
    dtype: Dtype = "auto"
    """`auto` is what the model was stored in, but float32 on a CPU, where it is faster."""
    insecure: bool = False
    trust_remote_code: bool = False
    deadline_s: float = 30.0
    """How long a verifier may be missing before requests fail."""
    calibration: Path | None = None
    """File that keeps what was learned about the draft's chances."""
    delay_s: float | None = None
    """One-way delay of an emulated network, to a verifier with --emulate-network; None for none."""
    jitter_s: float = 0.0


@dataclass(frozen=True)
class Drafts:
    """How one request is drafted for, and how its drafts are accepted."""

    drafting: str = "tree"
    acceptance: str = "exact"
    options: Options = field(default_factory=Options)
    shared: int = 0
    """The word of a secret by which other drafters may help; 0 for none."""


@dataclass(frozen=True)
class Serving:
    """The drafter's HTTP front."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    served_model_name: str | None = None
    """None for the target's own name."""
    chat_template: str | None = None
    """None for the model's own."""
    max_concurrent: int = 8
    """Texts that are made at a time."""
    max_queue: int = 64
    """Texts that wait, after which requests are refused."""
