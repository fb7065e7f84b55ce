"""What a pass says about one session's rows, computed when a strategy asks for it."""

from collections.abc import Sequence

import numpy as np
import torch

from bus.messages import Sampling
from bus.packed import Logprob
from strategies import noise
from strategies.acceptance import Chances
from verifier_cuda.sampling import filtered

_LEAST = -9999.0
"""Stands for the logprob of what is impossible, which no JSON can hold."""


class View:
    """The rows of one block. All but `choice` costs a copy from the device."""

    def __init__(
        self,
        choices: Sequence[int],
        logits: torch.Tensor | None = None,
        sampling: Sampling | None = None,
        positions: Sequence[int] = (),
        raw: torch.Tensor | None = None,
    ) -> None:
        """`logits` `[rows, vocab]`; `positions` are those of the tokens after each row.

        `raw` are the logits before bias and penalties, if they are others.
        """
        self._choices = choices
        self._logits = logits
        self._raw = logits if raw is None else raw
        self._sampling = sampling or Sampling()
        self._positions = positions

    def choice(self, row: int) -> int:
        return self._choices[row]

    def distribution(self, row: int) -> Chances:
        rows = self._row(row)
        if self._sampling.greedy:
            chances = np.zeros(rows.shape[-1])
            chances[self._choices[row]] = 1.0
            return chances
        return _softmax(filtered(rows, self._sampling))

    def likelihoods(self, row: int) -> Chances:
        return _softmax(self._row(row))

    def logprobs(self, rows: Sequence[int], tokens: Sequence[int], top: int) -> list[Logprob]:
        found = [self._told(row, token, top) for row, token in zip(rows, tokens, strict=True)]
        told = torch.stack(found).cpu().numpy()  # one copy from the device
        top = told.shape[1] // 2
        values, ids = told[:, : 1 + top].astype(np.float32).tolist(), told[:, 1 + top :].astype(int)
        return [
            Logprob(own, tuple(sorted(zip(names, others, strict=True), key=_best_first)))
            for (own, *others), names in zip(values, ids.tolist(), strict=True)
        ]

    def _told(self, row: int, token: int, top: int) -> torch.Tensor:
        """The logprob of `token`, those of the likeliest, and their ids: `[1 + 2 * top]`.

        Row by row, so that not even which of two equal ones is told depends on other rows.
        """
        assert self._raw is not None, "a piece of prompt has no view"
        logprobs = self._raw[row].double().log_softmax(-1).nan_to_num(_LEAST, neginf=_LEAST)
        likeliest = logprobs.clamp_(_LEAST, 0).topk(min(top, len(logprobs)))
        return torch.cat([logprobs[token : token + 1], likeliest.values, likeliest.indices])

    def uniform(self, row: int, number: int) -> float:
        return noise.uniform(self._sampling.seed, self._positions[row], number)

    def _row(self, row: int) -> torch.Tensor:
        assert self._logits is not None, "a piece of prompt has no view"
        return self._logits[row : row + 1].float()


def _softmax(rows: torch.Tensor) -> Chances:
    chances: Chances = rows[0].double().softmax(-1).cpu().numpy()
    return chances


def _best_first(entry: tuple[int, float]) -> tuple[float, int]:
    token, logprob = entry
    return -logprob, token
