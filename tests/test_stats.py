"""What a request tells of itself in the end."""

import pytest
from fakes import END
from test_drafter_session import chain, grow, session

from bus.messages import Commit, Timings
from bus.packed import Ids


def test_a_story_is_counted_as_it_was_told() -> None:
    made = session("tree")
    first, _ = grow(made, made.tree.root, 5, 8)
    then, _ = grow(made, first, 6, 9)
    grow(made, then, 7)
    made.on_commit(Commit(1, 2, Ids([5, 9, 4]), 2, 6, None, Timings(500_000, 250_000)), 10.0)
    chain(made, 3, 2)  # turned down at once
    made.on_commit(Commit(1, 5, Ids([6]), 0, 2, rejected=1), 11.0)
    made.on_commit(Commit(1, 6, Ids([2]), 0, 1), 12.0)
    made.on_commit(Commit(1, 7, Ids([7, 7])), 13.0)  # said again after a loss
    chain(made, 1, 1)
    made.on_commit(Commit(1, 9, Ids([1, 1, END]), 2, 3, "stop"), 14.5)
    stats = made.stats
    assert (stats.tokens, stats.passes, stats.empty_passes, stats.rejections) == (10, 4, 1, 1)
    assert (stats.drafted, stats.accepted, stats.histogram) == (8, 4, {2: 2, 0: 2})
    assert (stats.hedge_hits, stats.rollbacks, stats.rollback_tokens) == (1, 2, 4)
    assert stats.alpha == pytest.approx(4 / 5)
    assert (stats.prefilled_at, stats.seconds) == (9.5, 5.0)
    assert (stats.verifier_busy_s, stats.verifier_wait_s) == (0.5, 0.25)
    figures = stats.metrics()["speculative_decoding"]
    assert (figures["acceptance_histogram"], figures["mean_acceptance_length"]) == ([2, 0, 2], 2.0)
    assert stats.timings()["predicted_per_second"] == 2.0


def test_a_story_without_drafts_has_no_acceptance() -> None:
    made = session()
    assert made.stats.alpha is None
    assert made.stats.metrics()["speculative_decoding"]["mean_acceptance_length"] is None
    made.on_commit(Commit(1, 2, Ids([5]), width=1), 1.0)
    assert made.stats.alpha is None
    assert made.stats.metrics()["speculative_decoding"]["draft_acceptance_rate"] is None
