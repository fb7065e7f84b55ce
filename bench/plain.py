"""Plain decoding of the target: what drafting has to beat, and whose text it must equal."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from bus.messages import Sampling
from strategies.penalties import Tally
from verifier_cuda.model import TargetModel
from verifier_cuda.scheduler import Block, chain

disable_progress_bar()


@dataclass(frozen=True)
class Plain:
    """One prompt, decoded without our drafts."""

    tokens: list[int]
    seconds: float
    """From the end of prompt processing to the last token."""


def decode(target: TargetModel, prompt: list[int], sampling: Sampling) -> Plain:
    """One prompt through a loaded engine."""
    if len(prompt) > 1:
        target.forward(
            [Block(0, 0, prompt[:-1], chain(len(prompt) - 1), range(len(prompt) - 1), None)]
        )
    tokens = list(prompt)
    tally = Tally(tokens, len(prompt))
    began = time.perf_counter()
    while len(tokens) - len(prompt) < sampling.max_tokens:
        block = Block(0, len(tokens) - 1, tokens[-1:], [0], [len(tokens) - 1], sampling,
                      tally.adjustment(sampling, [()]))  # fmt: skip
        tokens.append(target.forward([block])[0].choice(0))
        if tokens[-1] in target.stop_ids and not sampling.ignore_eos:
            break
    return Plain(tokens[len(prompt) :], time.perf_counter() - began)


class _Stamps:
    """A streamer that notes when the first tokens came, and how many they were."""

    def __init__(self) -> None:
        self.first_at = 0.0
        self.first_tokens = 0
        self._seen_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if self._seen_prompt and not self.first_at:
            self.first_at, self.first_tokens = time.perf_counter(), value.numel()
        self._seen_prompt = True

    def end(self) -> None:
        pass


@torch.inference_mode()
def generate(
    network: Any, prompt: list[int], max_tokens: int, assistant: Any | None = None
) -> Plain:
    """Decode greedily with `network.generate`, perhaps assisted by a draft.

    The first tokens' time is the prompt's; the others' stands for all of them.
    """
    ids, stamps = torch.tensor([prompt], device=network.device), _Stamps()
    helped = {} if assistant is None else {"assistant_model": assistant}
    began = time.perf_counter()
    full = network.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False,
        pad_token_id=0, streamer=stamps, **helped,
    )  # fmt: skip
    ended = time.perf_counter()
    tokens = full[0, len(prompt) :].tolist()
    rest = len(tokens) - stamps.first_tokens
    seconds = (ended - stamps.first_at) * len(tokens) / rest if rest > 0 else ended - began
    return Plain(tokens, seconds)
