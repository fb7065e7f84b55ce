"""From logits to a token: the reference that the torch and MLX versions follow.

The order is bias and penalties (`strategies.penalties`, which the logits here have gone
through), temperature, top-k, top-p, min-p, as in vLLM and transformers. Ties at a cut
are all kept, so the result does not depend on how a sort breaks them.
"""

import numpy as np
import numpy.typing as npt

from bus.messages import Sampling
from strategies import noise

Floats = npt.NDArray[np.float32]


def filtered(logits: Floats, sampling: Sampling) -> Floats:
    """Logits `[vocab]` over the temperature, with minus infinity for what is cut off.

    Only meaningful where sampling is not greedy. At least one token is kept.
    """
    scaled = (logits / np.float32(sampling.temperature)).astype(np.float32)
    if 0 < sampling.top_k < scaled.size:
        smallest = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        scaled = np.where(scaled < smallest, np.float32(-np.inf), scaled)
    if sampling.top_p < 1:
        ordered = np.sort(scaled)[::-1].astype(np.float64)
        chance = np.exp(ordered - ordered[0])
        chance /= chance.sum()
        kept = int((np.cumsum(chance) - chance < sampling.top_p).sum())
        scaled = np.where(scaled < ordered[max(kept, 1) - 1], np.float32(-np.inf), scaled)
    if sampling.min_p > 0:
        floor = scaled.max() + np.log(np.float32(sampling.min_p))
        scaled = np.where(scaled < floor, np.float32(-np.inf), scaled)
    return scaled


def scores(logits: Floats, sampling: Sampling, position: int) -> Floats:
    """What the keyed choice is the argmax of: `[vocab]` to `[vocab]`.

    `position` is the absolute index of the token to be chosen. At temperature 0
    these are the logits themselves.
    """
    if sampling.greedy:
        return logits
    kept = filtered(logits, sampling)
    return kept + noise.gumbel(noise.key(sampling.seed, position), kept.size)


def choose(logits: Floats, sampling: Sampling, position: int) -> int:
    """The keyed choice; the lowest id of several equal ones."""
    return int(np.argmax(scores(logits, sampling, position)))
