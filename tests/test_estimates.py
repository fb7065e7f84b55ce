"""Medians, bootstrap intervals, and the search for the best of several noisy candidates."""

import random

import pytest

from bench import estimates, tuning


def test_the_ratio_is_the_median_over_the_same_prompts():
    plain = {"a": 10.0, "b": 20.0, "c": 40.0, "not drafted": 1.0}
    drafted = {"a": 20.0, "b": 30.0, "c": 20.0, "not plain": 99.0}
    ratios = estimates.paired_ratios(drafted, plain)
    assert ratios == [2.0, 1.5, 0.5]
    assert estimates.middle(ratios) == 1.5
    assert estimates.middle([]) is None


def test_the_interval_is_a_function_of_the_seed_and_holds_the_median():
    values = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 2.5]
    low, high = estimates.interval(values, seed=1)
    assert min(values) <= low < 1.3 < high <= max(values)
    rough = [estimates.interval(values, seed, draws=20) for seed in range(9)]
    assert [estimates.interval(values, seed, draws=20) for seed in range(9)] == rough
    assert len(set(rough)) > 1


def test_the_interval_of_equal_values_is_a_point_and_few_values_have_none():
    assert estimates.interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert estimates.interval([1.0, 2.0]) is None


def test_the_interval_covers_the_median_about_as_often_as_it_says():
    rng = random.Random(0)
    hits = 0
    for seed in range(200):
        low, high = estimates.interval([rng.gauss(1, 0.2) for _ in range(24)], seed, draws=400)
        hits += low <= 1 <= high
    assert 180 <= hits <= 197


@pytest.mark.parametrize("peak", range(1, 13))
def test_the_search_finds_the_peak_of_a_noisy_unimodal_curve(peak):
    """Any of the twelve may win; with 3 % of noise the winner is at most one step off."""
    rng = random.Random(peak)
    tried = set()

    def measure(k, number):
        tried.add(k)
        rate = 30 / (1 + 0.04 * (k - peak) ** 2)
        return 64, 64 / (rate * (1 + 0.01 * number) * rng.gauss(1, 0.01))

    found = estimates.best(tuning.DRAFT_LENGTHS, measure, (5, 3, 1))
    assert tried == set(range(1, 13))
    assert abs(found - peak) <= 1


def test_the_search_counts_all_rounds_of_a_candidate():
    tokens = {("a", 0): 10, ("b", 0): 4, ("c", 0): 1, ("a", 1): 1, ("b", 1): 6}
    found = estimates.best("abc", lambda name, number: (tokens[name, number], 1.0), (2, 1))
    assert found == "a"
