"""What a pass says about one session's rows, computed when a strategy asks for it."""

from collections.abc import Sequence

import numpy as np
import torch

from bus.messages import Sampling
from strategies import noise
from strategies.acceptance import Chances
from verifier_cuda.sampling import filtered


class View:
    """The rows of one block. All but `choice` costs a copy from the device."""

    def __init__(
        self,
        choices: Sequence[int],
        logits: torch.Tensor | None = None,
        sampling: Sampling | None = None,
        positions: Sequence[int] = (),
    ) -> None:
        """`logits` `[rows, vocab]`; `positions` are those of the tokens after each row."""
        self._choices = choices
        self._logits = logits
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

    def uniform(self, row: int, number: int) -> float:
        return noise.uniform(self._sampling.seed, self._positions[row], number)

    def _row(self, row: int) -> torch.Tensor:
        assert self._logits is not None, "a piece of prompt has no view"
        return self._logits[row : row + 1].float()


def _softmax(rows: torch.Tensor) -> Chances:
    chances: Chances = rows[0].double().softmax(-1).cpu().numpy()
    return chances
