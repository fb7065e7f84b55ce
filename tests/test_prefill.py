"""How prompts are read: fairly, and without keeping those waiting that decode."""

import pytest
from fakes import Verifier, opening
from test_scheduler import serving


def served(verifier: Verifier, passes: int) -> list[list[int]]:
    """The sessions of each of the next passes, a second apart; a piece of prompt is negative."""
    parts = []
    for turn in range(1, passes + 1):
        work = verifier.scheduler.plan(float(turn))
        parts.append([entry.session.id * (1 if entry.selection else -1) for entry in work])
        views = verifier.target.forward([entry.block for entry in work])
        _, keeps = verifier.scheduler.complete(work, views, 0.0, float(turn))
        verifier.target.keep(keeps)
    return parts


@pytest.mark.parametrize(("ragged", "rest"), [(True, [[1, -2], [1, 2, -3]]), (False, [[-2], [-3]])])
def test_the_longest_unserved_of_three_prompts_is_read_next(
    ragged: bool, rest: list[list[int]]
) -> None:
    verifier = serving(*(opening([1] * 9, number) for number in (1, 2, 3)), ragged=ragged)
    assert served(verifier, 6) == [[-1], [-2], [-3], [-1], *rest]
    assert {*served(verifier, 1)[0]} == {1, 2, 3}


def test_a_long_prompt_is_read_in_pieces_between_the_passes_of_the_others() -> None:
    verifier = serving(opening([1]), opening([2], 3), opening([1] * 17, 2), ragged=False)
    assert served(verifier, 9) == [[1, 3], [-2]] * 4 + [[1, 3, 2]]


def test_where_rows_need_no_padding_prompts_are_read_beside_the_others() -> None:
    opened = opening([1]), opening([2], 3), opening([1] * 17, 2)
    assert served(serving(*opened), 5) == [[1, 3, -2]] * 4 + [[1, 3, 2]]
    verifier = serving(*opened)
    verifier.step()
    assert [verifier.finish(each.session) for each in opened] == [
        verifier.plain(each)[0] for each in opened
    ]


def test_a_piece_beside_others_is_as_long_as_the_pass_may_stretch() -> None:
    costs = {1: 1.0, 64: 1.0, 128: 2.0}
    verifier = serving(opening([1]), opening([2] * 390, 2), prefill_chunk=512, costs=costs)
    verifier.scheduler.plan(0.0)
    sizes = [len(entry.block.tokens) for entry in verifier.scheduler.plan(0.0)]
    assert sizes == [1, 64], "another 64 would make it 2.0156 times as long"
    dear = serving(opening([1]), opening([2] * 390, 2), prefill_chunk=512, costs={1: 1.0, 2: 2.0})
    assert [len(entry.block.tokens) for entry in dear.scheduler.plan(0.0)] == [1, 16]


def test_several_short_prompts_are_read_in_one_pass() -> None:
    opened = [opening([1] * 5, 1), opening([2] * 7, 2), opening([3] * 9, 3)]
    verifier = serving(*opened, prefill_chunk=16)
    sizes = [len(entry.block.tokens) for entry in verifier.scheduler.plan(0.0)]
    assert sizes == [4, 6, 6], "16 in all, and the rest in the next pass"
    assert [verifier.finish(each.session) for each in opened] == [
        verifier.plain(each)[0] for each in opened
    ]
