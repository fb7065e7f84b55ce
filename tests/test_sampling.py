"""From logits to a token: what the filters keep, in numpy, torch and MLX alike."""

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from msgspec.structs import replace

from bus.messages import Sampling
from strategies import sampling as reference
from verifier_cuda import sampling as torch_sampling

VOCAB = 24
smooth = st.floats(-12, 12, width=32)
tied = st.integers(-2, 2).map(float)


def normal(seed: int, size: int, scale: float) -> Any:
    return (np.random.default_rng(seed).normal(size=size) * scale).astype(np.float32)


def listed(items: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    return arrays(np.float32, st.integers(1, VOCAB), elements=items, fill=st.nothing())


logits_of = st.one_of(
    st.builds(normal, st.integers(0, 1 << 32), st.integers(1, VOCAB), st.floats(0.1, 6)),
    listed(smooth), listed(tied), listed(smooth | tied),
)  # fmt: skip
thousandths = st.sampled_from([n / 1000 for n in range(1, 1001)])  # evenly, unlike st.floats
samplings = st.builds(
    Sampling,
    temperature=st.floats(0.05, 5),
    top_k=st.just(0) | st.integers(1, VOCAB + 2),
    top_p=st.just(1.0) | thousandths,
    min_p=st.just(0.0) | thousandths,
    seed=st.integers(0, (1 << 64) - 1),
)
positions = st.lists(st.integers(0, 1 << 31), min_size=1, max_size=4)
many = settings(max_examples=200, deadline=None)


def mlx() -> Any:
    """The drafter's sampling and MLX itself; skips where MLX is not installed."""
    core = pytest.importorskip("mlx.core")
    return importlib.import_module("drafter_mlx.sampling"), core


def numpy_filtered(logits: Any, sampling: Sampling) -> Any:
    return reference.filtered(logits, sampling)


def torch_filtered(logits: Any, sampling: Sampling) -> Any:
    return torch_sampling.filtered(torch.from_numpy(logits)[None], sampling)[0].numpy()


def mlx_filtered(logits: Any, sampling: Sampling) -> Any:
    sampler, core = mlx()
    return np.array(sampler.filtered(core.array(logits)[None], sampling)[0])


def kept(scores: Any) -> list[int]:
    return np.flatnonzero(np.isfinite(scores)).tolist()


def logs(*chances: float) -> Any:
    return np.log(np.array(chances)).astype(np.float32)


every = pytest.mark.parametrize("filtered", [numpy_filtered, torch_filtered, mlx_filtered])


# The same in all three ---------------------------------------------------------------


@many
@given(logits_of, samplings)
def test_torch_keeps_what_numpy_keeps(logits: Any, sampling: Sampling) -> None:
    ours, theirs = numpy_filtered(logits, sampling), torch_filtered(logits, sampling)
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.99, 0.999])
def test_torch_keeps_what_numpy_keeps_of_a_large_vocabulary(top_p: float) -> None:
    for seed in range(4):
        logits, sampling = normal(seed, 50_000, 3.0), Sampling(temperature=1.0, top_p=top_p)
        assert kept(torch_filtered(logits, sampling)) == kept(numpy_filtered(logits, sampling))


def is_borderline(logits: Any, sampling: Sampling, token: int) -> bool:
    """True when the mass above `token`, or its share of the largest, is at the cut but for 1e-5."""
    before_p = numpy_filtered(logits, replace(sampling, top_p=1.0, min_p=0.0)).astype(np.float64)
    chance = np.exp(before_p - before_p.max())
    above = chance[before_p > before_p[token]].sum() / chance.sum()
    at_min_p = sampling.min_p > 0 and abs(chance[token] - sampling.min_p) < 1e-5
    return bool(abs(above - sampling.top_p) < 1e-5 or at_min_p)


@many
@given(logits_of, samplings)
def test_mlx_keeps_what_numpy_keeps_but_for_float32_at_a_cut(
    logits: Any, sampling: Sampling
) -> None:
    ours, theirs = kept(numpy_filtered(logits, sampling)), kept(mlx_filtered(logits, sampling))
    for token in set(ours) ^ set(theirs):
        assert is_borderline(logits, sampling, token)


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.99])
def test_mlx_keeps_what_numpy_keeps_of_a_large_vocabulary_but_for_a_thousandth_of_its_mass(
    top_p: float,
) -> None:
    logits, sampling = normal(5, 50_000, 3.0), Sampling(temperature=1.0, top_p=top_p)
    ours, theirs = kept(numpy_filtered(logits, sampling)), kept(mlx_filtered(logits, sampling))
    chance = np.exp(logits.astype(np.float64))
    # MLX sums the chances in float32, which loses some 1e-4 of them.
    assert chance[sorted(set(ours) ^ set(theirs))].sum() / chance.sum() < 1e-3


def test_a_borderline_is_not_what_a_plain_cut_looks_like() -> None:
    logits, sampling = logs(0.5, 0.3, 0.2), Sampling(temperature=1.0, top_p=0.6, min_p=0.45)
    assert not any(is_borderline(logits, sampling, token) for token in range(3))
    assert is_borderline(logits, Sampling(temperature=1.0, top_p=0.5), 1)
    assert is_borderline(logits, Sampling(temperature=1.0, min_p=0.6), 1)


@many
@given(logits_of, samplings, positions)
def test_torch_chooses_what_numpy_chooses(
    logits: Any, sampling: Sampling, positions: list[int]
) -> None:
    rows = np.stack([np.roll(logits, shift) for shift in range(len(positions))])
    chosen = torch_sampling.choose(torch.from_numpy(rows), sampling, positions).tolist()
    assert chosen == [
        reference.choose(row, sampling, position)
        for row, position in zip(rows, positions, strict=True)
    ]


@many
@given(logits_of, samplings, st.integers(0, 1 << 31))
def test_mlx_scores_equal_those_of_numpy_where_both_keep_a_token(
    logits: Any, sampling: Sampling, position: int
) -> None:
    sampler, core = mlx()
    theirs = np.array(sampler.scores(core.array(logits)[None], sampling, [position])[0])
    ours = reference.scores(logits, sampling, position)
    both = np.isfinite(ours) & np.isfinite(theirs)
    assert both.any()
    assert np.array_equal(ours[both], theirs[both])


# What is kept ------------------------------------------------------------------------


@every
@many
@given(logits_of, samplings)
def test_the_likeliest_token_is_always_kept(filtered: Any, logits: Any, sampling: Sampling) -> None:
    assert int(logits.argmax()) in kept(filtered(logits, sampling))


@every
@many
@given(logits_of, samplings)
def test_tied_tokens_share_their_fate(filtered: Any, logits: Any, sampling: Sampling) -> None:
    staying = kept(filtered(logits, sampling))
    assert staying == np.flatnonzero(np.isin(logits, logits[staying])).tolist()


@every
@pytest.mark.parametrize("cut", [{"top_k": 2}, {"top_k": 3}, {"top_p": 0.4}, {"top_p": 0.6}])
def test_ties_at_a_cut_are_all_kept(filtered: Any, cut: dict[str, Any]) -> None:
    sampling = Sampling(temperature=1.0, **cut)
    assert kept(filtered(logs(0.1, 0.2, 0.3, 0.2, 0.2), sampling)) == [1, 2, 3, 4]


@every
@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1.0), [0, 1, 2, 3]),
        (Sampling(temperature=1.0, top_k=1), [0]),
        (Sampling(temperature=1.0, top_k=3), [0, 1, 2]),
        (Sampling(temperature=1.0, top_k=9), [0, 1, 2, 3]),
        (Sampling(temperature=1.0, top_p=0.39), [0]),
        (Sampling(temperature=1.0, top_p=0.41), [0, 1]),
        (Sampling(temperature=1.0, top_p=0.71), [0, 1, 2]),
        (Sampling(temperature=1.0, min_p=1.0), [0]),
        (Sampling(temperature=1.0, min_p=0.49), [0, 1, 2]),
    ],
)
def test_each_filter_alone_cuts_where_it_says(
    filtered: Any, sampling: Sampling, expected: list[int]
) -> None:
    assert kept(filtered(logs(0.4, 0.3, 0.2, 0.1), sampling)) == expected


@every
@pytest.mark.parametrize(
    ("chances", "sampling", "expected"),
    [
        # Top-p of the untempered chances would keep [0] alone.
        ((0.6, 0.3, 0.1), Sampling(temperature=2.0, top_p=0.55), [0, 1]),
        # Min-p of the untempered chances would keep [0] alone.
        ((0.6, 0.3, 0.1), Sampling(temperature=2.0, min_p=0.6), [0, 1]),
        # Top-p before top-k would keep [0, 1].
        ((0.4, 0.3, 0.2, 0.1), Sampling(temperature=1.0, top_k=2, top_p=0.5), [0]),
        # Min-p before top-p would keep [0] alone.
        ((0.4, 0.3, 0.2, 0.1), Sampling(temperature=1.0, top_p=0.5, min_p=0.6), [0, 1]),
    ],
)
def test_the_order_is_temperature_top_k_top_p_min_p(
    filtered: Any, chances: tuple[float, ...], sampling: Sampling, expected: list[int]
) -> None:
    assert kept(filtered(logs(*chances), sampling)) == expected


# What is chosen ----------------------------------------------------------------------


@many
@given(logits_of, st.integers(0, 1 << 31), st.integers(0, (1 << 64) - 1))
def test_temperature_0_takes_the_first_of_the_largest(
    logits: Any, position: int, seed: int
) -> None:
    sampling = Sampling(temperature=0.0, top_k=3, top_p=0.5, min_p=0.5, seed=seed)
    best = int(logits.argmax())
    assert reference.choose(logits, sampling, position) == best
    assert torch_sampling.choose(torch.from_numpy(logits)[None], sampling, [position]) == best
    sampler, core = mlx()
    scores = sampler.scores(core.array(logits)[None], sampling, [position])
    assert core.argmax(scores[0]).item() == best


@pytest.mark.parametrize("temperature", [1e-46, 1e-38, 9e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, top_p=0.5, seed=3)
    logits = np.array([1, 2, -1], np.float32)
    assert reference.choose(logits, sampling, 0) == 1
