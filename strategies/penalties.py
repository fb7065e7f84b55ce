"""Logit bias and penalties: what a text does to the logits of its next token. Pure.

The reference that the torch and MLX versions follow, with the meanings of vLLM and
transformers. First the bias is added. Then a token of prompt or text has its logit
divided by the repetition penalty where that is over 0, and multiplied where it is not.
Then each token of the text loses the presence penalty, and the frequency penalty as
many times as it is there. All this comes before the temperature.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bus.messages import Sampling

Floats = npt.NDArray[np.float32]


class Adjustment(NamedTuple):
    """What becomes of the logits of some tokens; all others stay.

    Logit x becomes y = x + bias, then y / divisor where y is over 0 and y · divisor where
    it is not, less `minus`. No row depends on another one: what only another row has seen
    leaves a logit as it is, to the last bit.
    """

    ids: npt.NDArray[np.int64]
    """`[n]`, all different."""
    bias: Floats
    """`[n]`"""
    divisor: Floats
    """`[rows, n]`"""
    minus: Floats
    """`[rows, n]`"""


class Tally:
    """How often each token stands in a text. Follows its list of tokens, which only grows."""

    def __init__(self, tokens: Sequence[int], prompt_length: int) -> None:
        """`tokens` begin with the prompt, which is not text but counts as repeated."""
        self._tokens = tokens
        self._prompt_length = prompt_length
        self._read = 0
        self._counts: dict[int, int] = {}  # in the text; 0 for what is in the prompt alone

    def adjustment(self, sampling: Sampling, paths: Sequence[Sequence[int]]) -> Adjustment | None:
        """For rows that stand after the text and a path of drafted tokens each; None for nothing.

        `paths` has the tokens from the end of the text down to each row, that row's included.
        """
        if not sampling.adjusts:
            return None
        if not sampling.penalizes:
            return _made(sampling, {}, [()] * len(paths))
        self._catch_up()
        return _made(sampling, self._counts, paths)

    def _catch_up(self) -> None:
        counts, start = self._counts, self._read
        self._read = len(self._tokens)
        for place, token in enumerate(self._tokens[start:], start):
            counts[token] = counts.get(token, 0) + (place >= self._prompt_length)


def _made(sampling: Sampling, counts: dict[int, int], paths: Sequence[Sequence[int]]) -> Adjustment:
    biases = dict(sampling.logit_bias)
    ids = list(dict.fromkeys(chain(counts, *paths, biases)))
    column = {token: number for number, token in enumerate(ids)}
    shape = len(paths), len(ids)
    count, seen = np.zeros(shape, np.int64), np.zeros(shape, bool)
    count[:, : len(counts)] = list(counts.values())
    seen[:, : len(counts)] = True
    for row, path in enumerate(paths):
        for token in path:
            count[row, column[token]] += 1
            seen[row, column[token]] = True
    # x + -0.0 is x to the last bit, which x + 0.0 is not.
    bias = np.array([biases.get(token, -0.0) for token in ids], np.float32)
    divisor = np.where(seen, np.float32(sampling.repetition_penalty), np.float32(1))
    minus = sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
    return Adjustment(np.array(ids, np.int64), bias, divisor, minus.astype(np.float32))


def adjusted(logits: Floats, adjustment: Adjustment | None) -> Floats:
    """Logits `[rows, vocab]` as the text has them; the same array where nothing is to be done."""
    if adjustment is None:
        return logits
    ids, bias, divisor, minus = adjustment
    found = logits[:, ids] + bias
    result = logits.copy()
    result[:, ids] = np.where(found > 0, found / divisor, found * divisor) - minus
    return result
