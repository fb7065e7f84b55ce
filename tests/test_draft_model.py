"""The draft: what mlx-lm says after a path, however the cache got there."""

import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]' on Linux")

from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache  # noqa: E402

from bench.pair import DRAFT  # noqa: E402
from bus.errors import BadSetup  # noqa: E402
from bus.messages import Sampling  # noqa: E402
from drafter_mlx import model as draft_model  # noqa: E402
from drafter_mlx.cache import check_trimmable  # noqa: E402
from drafter_mlx.config import Config  # noqa: E402
from strategies.sampling import scores  # noqa: E402


@pytest.fixture(scope="module")
def draft() -> draft_model.DraftModel:
    return draft_model.load(Config("tcp://127.0.0.1:1", str(DRAFT)))


def test_children_are_the_best_of_the_torch_model_in_order(draft):
    network = AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()
    tokens = list(range(40, 80))
    with torch.inference_mode():
        logits = network(input_ids=torch.tensor([tokens])).logits[0, -1].numpy()
    for sampling in (Sampling(), Sampling(temperature=0.8, top_p=0.9, seed=4)):
        got = draft.children(draft.reading(), tokens, sampling, 3)
        wanted = np.argsort(-scores(logits, sampling, len(tokens)), kind="stable")[:3]
        assert [token for token, _ in got] == wanted.tolist()
        assert all(0 < chance <= 1 for _, chance in got)
        assert [c for _, c in got] == sorted((c for _, c in got), reverse=True)


def test_rollback_to_any_position_gives_what_a_fresh_cache_gives(draft):
    rng = random.Random(1)
    reading = draft.reading()
    tokens = [rng.randrange(500) for _ in range(30)]
    for _ in range(25):
        cut = rng.randint(1, len(tokens))
        tokens = tokens[:cut] + [rng.randrange(500) for _ in range(rng.randint(0, 5))]
        got = draft.children(reading, tokens, Sampling(), 4)
        fresh = draft.children(draft.reading(), tokens, Sampling(), 4)
        assert reading.tokens == tokens
        assert [token for token, _ in got] == [token for token, _ in fresh]
        np.testing.assert_allclose([c for _, c in got], [c for _, c in fresh], atol=1e-4)


def test_a_long_prompt_is_read_in_chunks(draft, monkeypatch):
    tokens = [number % 300 for number in range(100)]
    whole = draft.children(draft.reading(), tokens, Sampling(), 2)
    monkeypatch.setattr(draft_model, "PREFILL_CHUNK", 7)
    reading, calls = draft.reading(), 1
    while not draft.catch_up(reading, tokens):
        calls += 1
        assert len(reading.tokens) % 7 == 0
    pieces = draft.children(reading, tokens, Sampling(), 2)
    assert calls == 15, "14 chunks, and then two tokens are left"
    assert [token for token, _ in pieces] == [token for token, _ in whole]


class Keeps:
    """A network that keeps the given kinds of state."""

    def __init__(self, *layers):
        self.layers = layers

    def make_cache(self):
        return list(self.layers)


def test_untrimmable_caches_are_refused_with_their_types_named():
    check_trimmable(Keeps(KVCache(), KVCache()))
    rotating = RotatingKVCache(max_size=4)
    rotating.offset = 10
    with pytest.raises(BadSetup, match=r"ArraysCache, RotatingKVCache.*cannot be rolled back"):
        check_trimmable(Keeps(KVCache(), rotating, ArraysCache(2)))


def test_a_rotating_cache_is_refused_before_it_has_rotated():
    with pytest.raises(BadSetup, match="RotatingKVCache"):
        check_trimmable(Keeps(RotatingKVCache(max_size=4)))


def test_a_wrong_model_path_is_one_line_that_says_what_to_give():
    with pytest.raises(BadSetup, match=r"cannot load the draft '/nowhere/model'.*hub id") as caught:
        draft_model.load(Config("tcp://127.0.0.1:1", "/nowhere/model"))
    assert "\n" not in str(caught.value)
