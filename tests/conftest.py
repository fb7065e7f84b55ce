"""Real parts that several tests share: the tiny pair, its prompts, a running verifier."""

from collections.abc import Iterator
from dataclasses import dataclass

import by_hand
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from bench import processes
from bench.pair import DRAFT, TARGET, corpus
from bus.messages import Sampling
from strategies.sampling import choose


@dataclass
class Reference:
    """The target alone, by transformers and numpy: no line of ours but the keyed choice."""

    network: object
    ends: frozenset[int]

    @torch.inference_mode()
    def continue_(self, prompt: list[int], sampling: Sampling) -> list[int]:
        """The text of the target alone, one token at a time, end id included."""
        cache = DynamicCache(config=self.network.config)
        tokens, fed = list(prompt), 0
        while len(tokens) - len(prompt) < sampling.max_tokens:
            logits = self.network(
                input_ids=torch.tensor([tokens[fed:]]), past_key_values=cache, use_cache=True
            ).logits[0, -1]
            fed, row = len(tokens), np.asarray(logits)
            if sampling.adjusts:
                row = by_hand.adjusted(row, sampling, prompt, tokens[len(prompt) :])
            tokens.append(choose(row, sampling, len(tokens)))
            if tokens[-1] in self.ends and not sampling.ignore_eos:
                break
        return tokens[len(prompt) :]


@pytest.fixture(scope="session")
def reference() -> Reference:
    network = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    return Reference(network, frozenset([network.config.eos_token_id]))


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """24 held-out prompts of 64 tokens."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    return [ids for _, ids in corpus.held_out_prompts(tokenizer.encode, 24, 64)]


@pytest.fixture(scope="session")
def verifier() -> Iterator[str]:
    """The address of a verifier process on the tiny target that all tests share."""
    with processes.verifier(TARGET, threads=1) as running:
        yield running.address


@pytest.fixture(scope="session")
def front(verifier) -> Iterator[str]:
    """The URL of a drafter process that serves HTTP, beside the verifier that all tests share."""
    with processes.front(verifier, DRAFT, ["--served-model-name", "tiny"]) as running:
        yield running.url
