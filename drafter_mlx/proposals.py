"""What `probabilistic` needs from a drafter: random draws, and the word what from. Pure."""

from collections.abc import Sequence

import numpy as np

from bus.packed import Proposal
from drafter_mlx.session import Child
from strategies import noise

PRIVATE = 0x6472616674
"""Sets apart the drafter's noise from the target's own: a draw must not know its judge."""


def support(likeliest: Sequence[Child]) -> Proposal:
    """A distribution over the likeliest tokens, as it travels: weights rounded to f16."""
    chances = np.array([chance for _, chance in likeliest])
    top = chances.max()
    weights = (chances / top if top > 0 else chances + 1).astype(np.float16)
    kept = [(token, float(w)) for (token, _), w in zip(likeliest, weights, strict=True) if w > 0]
    return Proposal(0, tuple(token for token, _ in kept), tuple(weight for _, weight in kept))


def drawn(proposal: Proposal, seed: int, position: int, count: int) -> list[Child]:
    """`count` tokens in the order of their draw, without replacement (the Gumbel-top-k trick)."""
    key = noise.key(noise.mix64(seed ^ PRIVATE), position)
    units = noise.gumbel_units(key, np.array(proposal.tokens, np.uint32))
    scores = np.log(proposal.weights) + units * 2.0**-noise.UNIT_BITS
    order = np.argsort(-scores, kind="stable")[:count]
    total = sum(proposal.weights)
    return [(proposal.tokens[i], proposal.weights[i] / total) for i in order]
