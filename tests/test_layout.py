"""Where rows lie: never two in one place, and each adds up its prefix as text would."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier_cuda.layout import BLOCK, LANES, Layout, in_line


def laid_out(start: int, parents: list[int]) -> list[tuple[int, int, int | None]]:
    """(parent, depth, place) of rows whose parents are rows before them; row 0 is the tip."""
    layout = Layout(start)
    rows: list[tuple[int, int, int | None]] = [(0, 0, start)]
    for parent in parents:
        depth, below = rows[parent][1] + 1, rows[parent][2]
        place = None if below is None else layout.place(depth, layout.branch(below, depth - 1))
        rows.append((parent, depth, place))
    return rows


trees = st.lists(st.integers(0, 99), max_size=60).map(
    lambda picks: [pick % (row + 1) for row, pick in enumerate(picks)]
)
starts = st.integers(0, 3 * BLOCK) | st.sampled_from([BLOCK - 1, BLOCK - 2, 2 * BLOCK - 8])


@settings(deadline=None, max_examples=200)
@given(starts, trees)
def test_a_row_adds_up_its_prefix_as_text_at_its_position_would(
    start: int, parents: list[int]
) -> None:
    rows = laid_out(start, parents)
    for parent, depth, place in rows[1:]:
        if place is None:
            continue
        home, above = start + depth, rows[parent][2]
        assert above is not None
        assert place // BLOCK == home // BLOCK, "the same block as text would be in"
        assert place % LANES == home % LANES, "the same lane"
        assert place >= home
        assert place - home >= above - (start + depth - 1), "not on a lower branch than its parent"
        assert place > above, "sums run upwards"


@settings(deadline=None, max_examples=200)
@given(starts, trees)
def test_no_two_rows_lie_in_one_place(start: int, parents: list[int]) -> None:
    places = [place for _, _, place in laid_out(start, parents) if place is not None]
    assert len({*places}) == len(places)


@settings(deadline=None, max_examples=200)
@given(starts, trees)
def test_the_first_row_of_a_depth_with_all_ancestors_at_home_is_at_home(
    start: int, parents: list[int]
) -> None:
    rows = laid_out(start, parents)
    homes = {0}
    for row, (parent, depth, place) in enumerate(rows[1:], 1):
        if parent in homes and not any(rows[other][1] == depth for other in homes):
            assert place == start + depth
            homes.add(row)
    chain = laid_out(start, list(range(20)))
    assert [place for _, _, place in chain] == list(in_line(start, 21))


def test_siblings_lie_a_lane_apart_and_their_children_above_them() -> None:
    # 100 is the tip; three siblings, a child of each, and a second child of the first.
    rows = laid_out(100, [0, 0, 0, 1, 2, 3, 1])
    assert [place for _, _, place in rows] == [100, 101, 117, 133, 102, 118, 134, 150]


def test_a_child_takes_a_higher_branch_when_its_own_is_taken() -> None:
    layout = Layout(100)
    assert [layout.place(1, 0), layout.place(1, 0), layout.place(1, 1)] == [101, 117, 133]
    assert (layout.branch(101, 1), layout.branch(117, 1), layout.branch(133, 1)) == (0, 1, 2)
    assert (layout.place(2, 2), layout.place(2, 0)) == (134, 102)


@pytest.mark.parametrize(("start", "room"), [(0, 12), (BLOCK - 18, 2), (BLOCK - 17, 1)])
def test_where_a_block_is_full_there_is_no_place(start: int, room: int) -> None:
    layout = Layout(start)
    given_out = [layout.place(1, 0) for _ in range(room + 1)]
    assert given_out == [start + 1 + LANES * branch for branch in range(room)] + [None]
    assert layout.place(2, 0) == start + 2, "a depth with room still has it"


def test_the_next_block_is_empty_when_the_text_gets_there() -> None:
    layout = Layout(BLOCK - 2)
    assert layout.place(1, 0) == BLOCK - 1
    assert layout.place(1, 0) is None
    assert [layout.place(2, 0), layout.place(2, 0)] == [BLOCK, BLOCK + LANES]
    assert layout.place(2, 12) is None, "no branch beyond the block"
