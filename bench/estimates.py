"""What can be said from noisy measurements: medians, intervals, and the best of several."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

import numpy as np

Interval = tuple[float, float]
Candidate = TypeVar("Candidate")
Key = TypeVar("Key")
MIN_SAMPLES = 3
"""Fewer samples than this have no interval worth printing."""


def paired_ratios(mine: Mapping[Key, float], theirs: Mapping[Key, float]) -> list[float]:
    """`mine` over `theirs` for every key that both have, in `mine`'s order."""
    return [rate / theirs[key] for key, rate in mine.items() if theirs.get(key)]


def middle(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return median(values) if values else None


def interval(
    values: Sequence[float], seed: int = 0, draws: int = 2000, level: float = 0.95
) -> Interval | None:
    """The bootstrap interval of the median over the values (percentiles, seeded).

    None for fewer than MIN_SAMPLES values. (Efron's percentile method.)
    """
    if len(values) < MIN_SAMPLES:
        return None
    chosen = np.random.default_rng(seed).integers(len(values), size=(draws, len(values)))
    medians = np.median(np.asarray(values)[chosen], axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def best(
    candidates: Sequence[Candidate],
    measure: Callable[[Candidate, int], tuple[int, float]],
    survivors: Sequence[int],
) -> Candidate:
    """The candidate with the highest tokens per second, by successive halving.

    `measure(candidate, round)` returns tokens and seconds on the round's prompt,
    which is the same for all who are still in. After round i the best
    `survivors[i]` by all their rounds together stay; the last one left wins.
    So everyone is tried, and most time goes to telling the best apart.
    """
    assert candidates
    tokens = dict.fromkeys(range(len(candidates)), 0)
    seconds = dict.fromkeys(range(len(candidates)), 0.0)
    left = list(tokens)
    for number, stay in enumerate(survivors):
        if len(left) == 1:
            break
        for index in left:
            more, took = measure(candidates[index], number)
            tokens[index] += more
            seconds[index] += took
        left.sort(key=lambda index: -tokens[index] / max(seconds[index], 1e-9))
        left = left[: max(1, stay)]
    return candidates[left[0]]
