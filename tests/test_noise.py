"""The keyed noise: golden vectors, three implementations equal to the bit, and its statistics."""

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from bus.messages import Sampling
from strategies import noise
from strategies.sampling import choose
from verifier_cuda import sampling as torch_sampling

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("noise.json").read_text("utf-8"))
TABLE_SHA256 = "73dbf139b9c7ee117ba48f00cc19b3079ba951c94eb210f1a0fe259865c2b8b4"
DRAWS = 100_000
LOGITS = np.array([1.0, 0.3, -0.5, 2.0, 0.0, -1.2], np.float32)
words = st.integers(0, (1 << 64) - 1)
vocabs = st.integers(1, 50_000)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
few = settings(max_examples=25, deadline=None)


def numpy_units(key: noise.Key, vocab_size: int) -> Any:
    return noise.gumbel_units(key, np.arange(vocab_size, dtype=np.uint32))


def torch_units(key: noise.Key, vocab_size: int, device: str = "cpu") -> Any:
    return torch_sampling.gumbel_units([key], vocab_size, torch.device(device))[0].cpu().numpy()


def mlx_units(key: noise.Key, vocab_size: int) -> Any:
    pytest.importorskip("mlx.core")
    sampling = importlib.import_module("drafter_mlx.sampling")
    return np.array(sampling.gumbel_units([key], vocab_size)[0])


# One function, three times -----------------------------------------------------------


@pytest.mark.parametrize("units", [numpy_units, torch_units, mlx_units])
def test_the_noise_of_every_golden_vector_is_pinned(units: Any) -> None:
    keys = {(seed, position) for seed, position, _, _ in GOLDEN}
    known = {pair: units(noise.key(*pair), (1 << 18) + 1) for pair in keys}
    assert [known[s, p][token] for s, p, token, _ in GOLDEN] == [golden for *_, golden in GOLDEN]


def test_golden_vectors_reach_the_extremes() -> None:
    seeds, positions, tokens, _ = zip(*GOLDEN, strict=True)
    assert {0, (1 << 64) - 1} < set(seeds)
    assert {0, 1 << 31} < set(positions)
    assert max(tokens) == 1 << 18


@pytest.mark.parametrize("device", DEVICES)
@few
@given(words, st.integers(0, 1 << 31), vocabs)
@example(0, 0, 1 << 18)
def test_torch_equals_numpy_to_the_bit(
    device: str, seed: int, position: int, vocab_size: int
) -> None:
    key = noise.key(seed, position)
    assert np.array_equal(torch_units(key, vocab_size, device), numpy_units(key, vocab_size))


@few
@given(words, st.integers(0, 1 << 31), vocabs)
@example(0, 0, 1 << 18)
def test_mlx_equals_numpy_to_the_bit(seed: int, position: int, vocab_size: int) -> None:
    key = noise.key(seed, position)
    assert np.array_equal(mlx_units(key, vocab_size), numpy_units(key, vocab_size))


def test_the_rows_of_a_batch_do_not_touch_each_other() -> None:
    keys = [noise.key(seed, position) for seed in (0, 5) for position in (0, 1, 7)]
    batch = torch_sampling.gumbel_units(keys, 1000, torch.device("cpu")).numpy()
    assert np.array_equal(batch, [numpy_units(key, 1000) for key in keys])


def test_the_table_is_pinned() -> None:
    table = noise.table().astype("<i4")
    assert hashlib.sha256(table.tobytes()).hexdigest() == TABLE_SHA256


# The right function ------------------------------------------------------------------


def random_bits(monkeypatch: pytest.MonkeyPatch, values: Any) -> Any:
    """The noise, in floats, of given random bits instead of a key's."""
    monkeypatch.setattr(noise, "bits", lambda key, tokens: tokens)
    return noise.gumbel_units(noise.Key(0, 0), values.astype(np.uint32)) / 2.0**noise.UNIT_BITS


def all_octaves() -> Any:
    """Random bits of every size near both ends, and where the octaves meet."""
    powers = 1 << np.arange(32, dtype=np.int64)
    edges = np.concatenate([powers - 1, powers, powers + 1, powers - 2])
    inside = np.random.default_rng(1).integers(0, 1 << 32, 300_000)
    inside >>= np.random.default_rng(2).integers(0, 32, inside.size)
    values = np.concatenate([edges, inside])
    return np.unique(np.concatenate([values, (1 << 32) - 1 - values])) & 0xFFFFFFFF


def test_fixed_point_noise_is_within_4e_6_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    values = all_octaves()
    chance = (2.0 * values + 1) / 2.0**33  # exact, and so is 1 - chance
    exact = -np.log(-np.where(chance < 0.5, np.log1p(-chance), np.log(1 - chance)))
    assert np.abs(random_bits(monkeypatch, values) - exact).max() < 4e-6


def test_noise_falls_as_its_random_bits_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.all(np.diff(random_bits(monkeypatch, np.sort(all_octaves()))) <= 0)


def test_float32_holds_the_noise_exactly() -> None:
    assert np.abs(noise.table()).max() < 1 << 24
    key = noise.key(3, 4)
    assert np.array_equal(noise.gumbel(key, 5000) * 2.0**noise.UNIT_BITS, numpy_units(key, 5000))


# Statistics --------------------------------------------------------------------------


def softmax(logits: Any) -> Any:
    chance = np.exp(logits.astype(np.float64) - logits.max())
    return chance / chance.sum()


def draws(keys: list[noise.Key]) -> Any:
    """The keyed choice under each key."""
    units = torch_sampling.gumbel_units(keys, LOGITS.size, torch.device("cpu")).numpy()
    return (LOGITS + units * 2.0**-noise.UNIT_BITS).argmax(1)


def joint_p(first: Any, second: Any, chance: Any) -> float:
    """p of the claim that the pairs are independent draws from `chance` each."""
    size = chance.size
    observed = np.bincount(first * size + second, minlength=size * size)
    expected = np.outer(chance, chance).ravel() * len(first)
    possible = expected > 0
    assert not observed[~possible].any()
    return float(chisquare(observed[possible], expected[possible]).pvalue)


def successive_positions(seed: int, count: int) -> Any:
    return draws([noise.key(seed, position) for position in range(count)]).reshape(-1, 2).T


@pytest.mark.parametrize("seed", [0, 20260101])
def test_successive_choices_are_independent_draws_from_the_softmax(seed: int) -> None:
    first, second = successive_positions(seed, 2 * DRAWS)
    assert joint_p(first, second, softmax(LOGITS)) > 1e-4


@pytest.mark.parametrize(("seed_step", "position_step"), [(1, 0), (0, 1), (1, 1), (1, -1)])
def test_neighbouring_keys_draw_independently(seed_step: int, position_step: int) -> None:
    seeds = range(0, 4 * DRAWS, 4)
    first = draws([noise.key(seed, 8) for seed in seeds])
    second = draws([noise.key(seed + seed_step, 8 + position_step) for seed in seeds])
    assert joint_p(first, second, softmax(LOGITS)) > 1e-4


def test_the_test_sees_noise_that_is_used_twice() -> None:
    first, second = successive_positions(0, 2 * DRAWS)
    assert joint_p(first, first, softmax(LOGITS)) < 1e-6
    mostly_fresh = np.where(np.arange(DRAWS) % 20 == 0, first, second)
    assert joint_p(first, mostly_fresh, softmax(LOGITS)) < 1e-6


def test_the_test_sees_a_distribution_that_is_a_little_off() -> None:
    first, second = successive_positions(0, 2 * DRAWS)
    assert joint_p(first, second, softmax(LOGITS * np.float32(1.05))) < 1e-6


def test_filtered_choices_follow_the_filtered_softmax() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=11)
    chosen = np.array([choose(LOGITS, sampling, position) for position in range(DRAWS)])
    chance = softmax(LOGITS / 0.7)
    likeliest = np.argsort(-chance)
    kept = likeliest[: int(np.searchsorted(np.cumsum(chance[likeliest]), 0.9)) + 1]
    expected = np.where(np.isin(np.arange(LOGITS.size), kept), chance, 0.0)
    assert 1 < len(kept) < LOGITS.size
    assert joint_p(*chosen.reshape(-1, 2).T, expected / expected.sum()) > 1e-4
