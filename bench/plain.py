"""Plain decoding of the target: what drafting has to beat, and whose text it must equal."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from bus.messages import Sampling
from verifier_cuda.config import Config
from verifier_cuda.model import load
from verifier_cuda.scheduler import Block, chain

disable_progress_bar()


@dataclass(frozen=True)
class Plain:
    """One prompt, decoded without drafts."""

    tokens: list[int]
    seconds: float
    """From the end of prompt processing to the last token."""


def with_engine(model: str | Path, prompts: Sequence[list[int]], sampling: Sampling) -> list[Plain]:
    """Decode with the verifier's own engine, one row a pass, no bus and no drafter."""
    target = load(Config(str(model), max_sessions=1))
    results = []
    for prompt in prompts:
        if len(prompt) > 1:
            target.forward([Block(0, 0, prompt[:-1], chain(len(prompt) - 1), None)])
        tokens = list(prompt)
        began = time.perf_counter()
        while len(tokens) - len(prompt) < sampling.max_tokens:
            block = Block(0, len(tokens) - 1, tokens[-1:], [0], sampling)
            tokens.append(target.forward([block])[0].choice(0))
            if tokens[-1] in target.stop_ids and not sampling.ignore_eos:
                break
        results.append(Plain(tokens[len(prompt) :], time.perf_counter() - began))
    return results


@torch.inference_mode()
def with_transformers(
    model: str | Path, prompts: Sequence[list[int]], max_tokens: int
) -> list[Plain]:
    """Decode greedily with `transformers.generate`, in float32 on the CPU."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    results = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        times = []
        for length in (1, max_tokens):  # the first token's time is the prompt's
            began = time.perf_counter()
            full = network.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=length,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip
            times.append(time.perf_counter() - began)
        tokens = full[0, len(prompt) :].tolist()
        seconds = times[1] - times[0] if len(tokens) > 1 else times[1]
        results.append(Plain(tokens, seconds * len(tokens) / max(1, len(tokens) - 1)))
    return results
