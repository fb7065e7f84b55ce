"""What a user wants continued."""

import hashlib
from dataclasses import dataclass, field

from bus.errors import BadSetup
from bus.messages import Sampling
from bus.packed import Ids, Logprob

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
    logprobs: int | None = None
    """How many likeliest tokens to tell the logprobs of beside each one of the text."""
    told: tuple[Logprob | None, ...] = ()
    """Logprobs of `committed`, as far as the earlier run was told them."""
    shared: int = 0
    """A secret by which other drafters may help; 0 for none."""
    guest: bool = False
    """Whether it is another drafter's request, which this one helps."""


def shared_word(secret: str) -> int:
    """The 64 bits that stand for a secret; BadSetup for one that is soon guessed."""
    if len(secret) < LEAST_SECRET:
        raise BadSetup(
            f"the secret has {len(secret)} characters and needs {LEAST_SECRET} at least: whoever "
            "guesses it reads the prompts"
        )
    return int.from_bytes(hashlib.sha256(secret.encode()).digest()[:8], "little") or 1
