"""Bias and penalties once more, token by token, so that a fault of ours is not shared."""

from collections.abc import Sequence

import numpy as np

from bus.messages import Sampling


def adjusted(
    logits: np.ndarray, sampling: Sampling, prompt: Sequence[int], text: Sequence[int]
) -> np.ndarray:
    """The logits `[vocab]` of the token after `prompt` and `text`, float32."""
    found = np.array(logits, np.float32)
    for token, value in sampling.logit_bias:
        found[token] += np.float32(value)
    for token in {*prompt, *text}:
        if found[token] > 0:
            found[token] /= np.float32(sampling.repetition_penalty)
        else:
            found[token] *= np.float32(sampling.repetition_penalty)
    for token in text:
        found[token] -= np.float32(sampling.frequency_penalty)
    for token in {*text}:
        found[token] -= np.float32(sampling.presence_penalty)
    return found
