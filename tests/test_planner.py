"""Which rows a pass gets, and when drafts are waited for: hand-computed numbers."""

import pytest
from fakes import guess
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.acceptance import Rows
from strategies.costs import Costs
from strategies.tree import DraftTree
from verifier_cuda.layout import BLOCK
from verifier_cuda.planner import (
    Mean,
    Pace,
    Prospect,
    Selection,
    best_rows,
    best_width,
    pays_together,
    prospect,
    select,
)

# Which rows --------------------------------------------------------------------------


def drafted(
    tokens: list[int], parents: list[int], chances: list[float], text: int = 3
) -> DraftTree:
    tree = DraftTree(range(1, text + 1), 512)
    tree.insert(guess(tree.tokens, tokens, parents, chances=chances))
    return tree


def test_rows_are_the_likeliest_paths_and_lie_where_the_layout_says() -> None:
    # Two children of the tip, and two of the likelier one.
    tree = drafted([10, 11, 20, 21], [0, 0, 1, 1], [0.75, 0.5, 0.5, 0.25])
    chosen = select(tree, 9, 9, Pace().chance)
    assert chosen.rows == Rows((3, 10, 11, 20, 21), (0, 0, 0, 1, 1))
    assert chosen.chances == (1.0, 0.75, 0.5, 0.375, 0.1875)
    assert chosen.places == (2, 3, 19, 4, 20)
    assert [node.token for node in chosen.nodes] == [10, 11, 20, 21]
    assert chosen.cut(3) == Selection(
        chosen.nodes[:2], Rows((3, 10, 11), (0, 0, 0)), (2, 3, 19), (1.0, 0.75, 0.5)
    )
    assert chosen.cut(5) is chosen.cut(99) is chosen
    assert select(tree, 3, 9, Pace().chance) == chosen.cut(3)


def test_a_pass_of_one_row_has_no_drafts() -> None:
    assert select(drafted([10], [0], [0.9]), 1, 9, Pace().chance).rows == Rows((3,), (0,))


def test_no_row_is_deeper_than_the_room_or_all_but_sure_to_be_wrong() -> None:
    tree = drafted([10, 20, 30, 11, 12], [0, 1, 2, 0, 0], [0.9, 0.9, 0.9, 0.01, 0.0099])
    assert select(tree, 9, 2, Pace().chance).rows.tokens == (3, 10, 20, 11)


def test_what_is_likely_is_learned_from_the_text() -> None:
    tree = drafted([10, 11], [0, 0], [0.75, 0.5])
    pace = Pace()
    for _ in range(20):
        pace.calibration.saw(0, 0.75, False)
        pace.calibration.saw(1, 0.5, True)
    chosen = select(tree, 9, 9, pace.chance)
    assert chosen.rows.tokens == (3, 11, 10)
    # Of 20 none, of 20 all; the prior counts for 6.
    assert chosen.chances == pytest.approx((1.0, (20 + 6 * 0.5) / 26, 6 * 0.75 / 26))


picks = st.lists(st.tuples(st.integers(0, 99), st.sampled_from([0.2, 0.5, 0.9])), max_size=60)


@settings(deadline=None, max_examples=150)
@given(picks, st.integers(1, 40), st.integers(1, 20), st.sampled_from([3, 180, BLOCK, 380]))
def test_no_child_is_chosen_without_its_parent(
    grown: list[tuple[int, float]], width: int, room: int, text: int
) -> None:
    parents = [at % (row + 1) for row, (at, _) in enumerate(grown)]
    tree = drafted([*range(600, 600 + len(grown))], parents, [c for _, c in grown], text)
    chosen = select(tree, width, room, Pace().chance)
    rows = [tree.root, *chosen.nodes]
    assert len(rows) == len(chosen.places) == len({*chosen.places}) <= width
    assert chosen.rows.tokens == tuple(node.token for node in rows)
    for row, node in enumerate(chosen.nodes, 1):
        parent = chosen.rows.parents[row]
        assert parent < row and rows[parent] is node.parent
        assert node.position - tree.tip < room
        assert chosen.places[row] // BLOCK == node.position // BLOCK
        assert chosen.places[row] > chosen.places[parent]
    assert list(chosen.chances) == sorted(chosen.chances, reverse=True)


def chances(*values: float) -> Selection:
    return Selection((), Rows((), ()), tuple(range(len(values))), values)


STEEP = {1: 1.0, 2: 1.1, 3: 1.3, 4: 1.6, 8: 4.0}


@pytest.mark.parametrize(
    ("selections", "costs", "rest_s", "width"),
    [
        # 1, 1.64, 1.77, 1.5 tokens a second
        ([chances(1, 0.8, 0.5, 0.1)], STEEP, 0.0, 3),
        # 0.11, 0.178, 0.223, 0.226: what a pass costs anyway makes rows cheap
        ([chances(1, 0.8, 0.5, 0.1)], STEEP, 9.0, 4),
        ([chances(1, 0.05)], STEEP, 0.0, 1),  # 1, 0.95
        ([chances(1, 0.2, 0.2, 0.2)], {1: 1.0, 4: 1.0}, 0.0, 4),  # for nothing
        # Two sessions, 2, 4, 6 rows: 2 / 1.1, 3.1 / 1.6, 3.6 / 2.8
        ([chances(1, 0.8, 0.5), chances(1, 0.3)], STEEP, 0.0, 2),
        # 2 / 1.1, 2.2 / 1.6: the other session's rows cost, too
        ([chances(1, 0.2), chances(1)], STEEP, 0.0, 1),
        # 1, 0.95, 1.33, 1.7: a dear second row hides no cheap fourth
        ([chances(1, 0.8, 0.8, 0.8)], {1: 1.0, 2: 1.9, 3: 1.95, 4: 2.0}, 0.0, 4),
        ([chances(1, 0.8, 0.5, 0.1)], {}, 0.0, 4),  # nothing was measured
    ],
)
def test_a_pass_has_the_width_of_most_tokens_a_second(
    selections: list[Selection], costs: dict[int, float], rest_s: float, width: int
) -> None:
    assert best_width(selections, Costs(costs), rest_s) == width


@pytest.mark.parametrize(
    ("selections", "costs", "rest_s", "widths"),
    [
        ([chances(1, 0.8, 0.5, 0.1)], STEEP, 0.0, [3]),  # as above
        # 2 / 1.1, then 2.9 / 1.3, 3.7 / 1.6, 4.2 / 2.2, 4.5 / 2.8: the likeliest of both
        ([chances(1, 0.9, 0.8), chances(1, 0.5, 0.3)], STEEP, 0.0, [3, 1]),
        ([chances(1, 0.2), chances(1), chances(1, 0.9)], {1: 1.0, 8: 1.0}, 0.0, [2, 1, 2]),
        ([chances(1, 0.9), chances(1)], {1: 1.0, 2: 2.0, 3: 4.0}, 0.0, [1, 1]),
        ([chances(1, 0.5, 0.4)], {}, 0.0, [3]),  # nothing was measured
    ],
)
def test_rows_go_to_whoever_has_most_use_for_them(
    selections: list[Selection], costs: dict[int, float], rest_s: float, widths: list[int]
) -> None:
    assert best_rows(selections, Costs(costs), rest_s) == widths


# When to wait ------------------------------------------------------------------------


def paced(alpha: float, turnaround_s: float, interval_s: float | None = None) -> Pace:
    pace = Pace()
    pace.alpha.value = alpha
    pace.turnaround_s.add(turnaround_s)
    if interval_s is not None:
        pace.interval_s.add(interval_s)
    return pace


def test_a_wait_looks_ahead_as_far_as_it_pays() -> None:
    pace = paced(0.5, 1.0, 0.5)
    # One more token each 0.5 s from 1.0 s on. The text leaves the drafts just there, in the
    # pass that is saved, with a chance of 0.25, 0.375, 0.4375, 0.46875, ...
    # A pass of 10 s: a profit of 1.5, 2.25, 2.375, 2.1875 s.
    assert prospect(pace, [], 1.0, 10.0, 0.0) == Prospect(4.375, 2.0, 1.5)
    # Of 5 s: 0.25, 0.375, 0.1875. Of 4 s: none.
    assert prospect(pace, [], 1.0, 5.0, 0.0) == Prospect(1.875, 1.5, 1.5)
    assert prospect(pace, [], 1.0, 4.0, 0.0) is None


def test_a_longer_path_makes_its_next_token_worth_less() -> None:
    pace = paced(0.5, 1.0, 0.5)
    # Behind a path of 0.5 and 0.5 a quarter of that: 0.0625 of a pass at 0.5 s, 0.09375 at 1.0 s.
    assert prospect(pace, [0.5, 0.5], 0.5, 10.0, 0.0) == Prospect(0.625, 0.5, 1.0)
    assert prospect(pace, [0.5, 0.5], 0.5, 8.0, 0.0) is None


def test_the_first_draft_may_bring_more_than_those_after_it() -> None:
    pace = paced(0.5, 1.0, 0.5)
    pace.burst.value, pace.growth.value = 4.0, 2.0
    # 4, 6, ... tokens deep: 15/32, 63/128 of a pass of 4 s.
    assert prospect(pace, [], 1.0, 4.0, 0.0) == Prospect(1.875, 1.0, 1.5)
    assert prospect(pace, [1.0], 0.5, 4.0, 0.0) == Prospect(1.5, 0.5, 1.0)


def test_nothing_is_promised_by_a_drafter_that_is_always_wrong() -> None:
    assert prospect(paced(0.0, 0.1, 0.1), [], 0.1, 9.0, 0.0) is None


def test_one_that_is_always_right_drafts_on_during_the_pass_and_is_not_waited_for() -> None:
    assert prospect(paced(1.0, 0.1, 0.1), [], 0.1, 9.0, 0.0) is None


def test_what_several_sessions_are_promised_pays_together() -> None:
    early, late = Prospect(1.0, 1.0, 1.5), Prospect(2.5, 2.0, 2.5)
    assert pays_together([late, early], 1, 0.0)
    assert not pays_together([early], 1, 0.0)
    assert pays_together([late], 1, 0.0)
    assert not pays_together([late, early], 2, 0.0), "3.5 s for 2 s of two sessions"
    assert pays_together([late, early], 2, 0.5)
    assert not pays_together([], 1, 0.0)


def test_a_mean_moves_a_fifth_of_the_way_and_obeys_bounds() -> None:
    mean = Mean()
    assert mean.value is None
    mean.add(1.0)
    mean.add(2.0)
    assert mean.value == pytest.approx(1.2)
    mean.at_least(0.5)
    assert mean.value == pytest.approx(1.2)
    mean.at_least(1.0)
    assert mean.value == pytest.approx(1.3), "longer than what was waited for in vain"
