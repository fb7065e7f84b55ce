"""What a verifier tells of itself to whoever greets it."""

from dataclasses import dataclass

from bus.messages import Limits


@dataclass(frozen=True)
class Settings:
    """What a verifier promises: its model, its limits, its strategies."""

    model: str
    boot_id: int
    tokenizer_digest: bytes
    vocab_size: int
    stop_ids: frozenset[int]
    limits: Limits
    strategies: tuple[str, ...]
    lossy: tuple[str, ...] = ()
    """Those of `strategies` that may change the text."""
    drawn: tuple[str, ...] = ()
    """Those that need guesses drawn at random."""
