"""What a user wants continued, and what comes back piece by piece."""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from bus.errors import BadSetup
from bus.messages import Sampling
from bus.packed import Ids

Origin = Literal["accepted", "correction", "bonus", "plain", "end"]
"""Drafted and accepted; the target's instead of a draft; the target's after accepted drafts;
without drafts; an end id, which is not text."""
LEAST_SECRET = 8
"""Characters of a secret, at least."""


@dataclass(frozen=True)
class Request:
    """What a user wants continued. `committed` holds what an earlier run produced."""

    prompt: Ids
    sampling: Sampling
    acceptance: str = "exact"
    committed: Ids = field(default_factory=Ids)
    lockstep: bool = False
    shared: int = 0
    """A secret by which other drafters may help; 0 for none."""
    guest: bool = False
    """Whether it is another drafter's request, which this one helps."""


@dataclass(frozen=True)
class Piece:
    """Newly committed tokens, each with where it came from."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]


def shared_word(secret: str) -> int:
    """The 64 bits that stand for a secret; BadSetup for one that is soon guessed."""
    if len(secret) < LEAST_SECRET:
        raise BadSetup(
            f"the secret has {len(secret)} characters and needs {LEAST_SECRET} at least: whoever "
            "guesses it reads the prompts"
        )
    return int.from_bytes(hashlib.sha256(secret.encode()).digest()[:8], "little") or 1
