"""Candidates, beams, lookups and lengths that adapt: what each decides on small trees."""

import pytest
from test_drafting import END, Drafter

from strategies.drafting import Options, Outcome
from strategies.drafting.adaptive import Adaptive, alpha
from strategies.drafting.beam import Beam
from strategies.drafting.lookup import CHANCES, Index, Lookup
from strategies.drafting.multi import ROUNDS, Multi, candidates
from strategies.drafting.tree_lookup import TreeLookup
from strategies.tree import DraftTree


def paths(drafter: Drafter) -> list[list[int]]:
    """All paths to the leaves, as tokens."""
    leaves = [node for node in drafter.tree.nodes() if not node.children]
    return sorted([step.token for step in leaf.path()] for leaf in leaves)


# Several candidates ------------------------------------------------------------------


def test_candidates_are_continued_all_at_once_and_pushed_together() -> None:
    drafter = Drafter(Multi(Options(num_draft_tokens=3, branches=3)))
    assert drafter.steps() == [((1,), 3, False), ((2, 2, 2), 1, False), ((3, 3, 3), 1, True)]
    assert paths(drafter) == [[20, 21, 22], [120, 21, 22], [220, 21, 22]]
    assert drafter.plan() is None, "nothing while they are in flight"


def test_a_candidate_that_ends_is_left_while_the_others_go_on() -> None:
    drafter = Drafter(Multi(Options(num_draft_tokens=3, branches=2)), says=(END, 21, 22))
    drafter.steps()
    assert paths(drafter) == [[END], [END + 100, 21, 22]]
    assert drafter.unpushed == 0


def test_there_are_fewer_candidates_while_little_is_accepted() -> None:
    bad, good, idle = Outcome(8, 0), Outcome(8, 2), Outcome(0, 0)
    assert candidates(4, 4, []) == candidates(4, 4, [bad] * (ROUNDS - 1)) == 4
    assert candidates(4, 4, [bad] * ROUNDS) == 3
    assert candidates(4, 4, [bad] * ROUNDS * 2) == 2
    assert candidates(4, 4, [bad] * 99) == 1
    assert candidates(4, 4, [bad] * 99 + [good]) == 4, "one good round brings them all back"
    assert candidates(4, 4, [bad, idle] * ROUNDS) == 3, "passes without drafts say nothing"
    assert candidates(4, 20, [Outcome(20, 3)] * ROUNDS) == 3, "3 of 20 are less than a fifth"
    drafter = Drafter(Multi(Options(num_draft_tokens=2, branches=3)), outcomes=[bad] * ROUNDS)
    assert drafter.steps()[0] == ((1,), 2, False)


# A beam ------------------------------------------------------------------------------


def test_a_beam_goes_on_from_the_likeliest_nodes_of_each_depth() -> None:
    # Children get 0.5 and 0.25: of [20], [120] come 0.25, 0.125, 0.125, 0.0625.
    drafter = Drafter(Beam(Options(num_draft_tokens=3, branches=2)))
    assert drafter.steps() == [((1,), 2, False), ((2, 2), 2, False), ((3, 3), 2, True)]
    deep = [path[:2] for path in paths(drafter) if len(path) == 3]
    assert {tuple(path) for path in deep} == {(20, 21), (20, 121)}, "the two likeliest, ties first"


def test_a_wide_beam_takes_the_likeliest_of_all_and_not_of_the_first() -> None:
    drafter = Drafter(Beam(Options(num_draft_tokens=3, branches=3)))
    drafter.steps()
    deep = {tuple(path[:2]) for path in paths(drafter) if len(path) == 3}
    # 0.25, 0.125, 0.125; the third child of the first has 0.0625.
    assert deep == {(20, 21), (20, 121), (120, 21)}


# Lookup ------------------------------------------------------------------------------


def looking(tokens: list[int], **situation: object) -> Drafter:
    return Drafter(Lookup(Options()), tree=DraftTree(tokens, 100), **situation)


def test_what_followed_the_same_words_before_is_guessed_without_a_model() -> None:
    drafter = looking([5, 6, 7, 8, 9, 1, 5, 6, 7], room=3)
    assert drafter.steps() == [((), 1, True)]
    assert paths(drafter) == [[8, 9, 1]]
    assert drafter.tree.chain()[0].confidence == CHANCES[3]
    assert drafter.plan() is None, "the same is not guessed twice"


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([1, 2, 9, 2, 1, 2], (2, 2)),  # the longer match, though another is later
        ([4, 1, 4, 2, 4], (1, 3)),  # of equal ones the latest
        ([1, 1, 1], (2, 2)),  # it may overlap the end, but is not the end itself
        ([1, 2, 3], None),
        ([1], None),
    ],
)
def test_the_longest_and_then_the_latest_match_counts(tokens: list[int], found: object) -> None:
    assert Index().find(tokens) == found
    growing = Index()
    for end in range(1, len(tokens)):
        growing.find(tokens[:end])
    assert growing.find(tokens) == found, "read at once or as it grew"


def test_a_lookup_ends_with_the_text_the_window_and_the_room_for_nodes() -> None:
    ending = looking([7, END, 8, 7])
    ending.steps()
    assert paths(ending) == [[END]]
    assert looking([7, 8, 9, 7], room=0).steps() == []
    full = Drafter(Lookup(Options()), tree=DraftTree([7, 8, 9, 7], 1))
    full.tree.add(full.tree.root, 3, 1.0)
    full.unpushed = 0
    assert full.plan() is None


def test_a_lookup_goes_on_below_what_is_already_guessed() -> None:
    drafter = looking([7, 8, 9, 7], room=1)
    drafter.steps()
    drafter.room = 3
    drafter.steps()
    assert paths(drafter) == [[8, 9, 7]]


def test_lookup_and_model_feed_one_tree() -> None:
    tree = DraftTree([7, 8, 9, 7], 100)
    drafter = Drafter(TreeLookup(Options(branches=2)), tree=tree, room=2)
    step = drafter.plan()
    assert step is not None and [guess.tokens for guess in step.known] == [(8, 9)]
    assert step.expand == (tree.root,)


# A length that adapts ----------------------------------------------------------------


def length(**situation: object) -> int:
    drafter = Drafter(Adaptive(Options()), room=16, **situation)
    steps = drafter.steps()
    assert steps[-1] == ((), 1, True)
    return len(drafter.tree.chain())


def test_a_draft_is_as_long_as_another_token_pays() -> None:
    # α is 2/3 before anything was seen. At 0.9 a token, steps of 1 s and passes of 10 s, six
    # tokens make 5.22 / 16 = 0.326 a second and a seventh adds 0.354; seven make 0.335, and
    # an eighth would add 0.319.
    kept = {"chances": (0.9,), "costs": {1: 1.0}, "pass_s": 10.0}
    assert length(**kept) == 7
    assert length(**{**kept, "costs": {1: 5.0}}) < 4, "dear steps"
    assert length(**{**kept, "chances": (0.3,)}) == 2, "unsure guesses"
    assert length(**{**kept, "outcomes": [Outcome(4, 0)] * 30}) == 1, "drafts that are rejected"


def test_what_was_accepted_says_how_good_drafts_are() -> None:
    assert alpha([]) == pytest.approx(2 / 3)
    assert alpha([Outcome(4, 4)] * 10) == pytest.approx(42 / 43)
    assert alpha([Outcome(4, 1)] * 10) == pytest.approx(12 / 23)
    assert alpha([Outcome(0, 0)] * 10) == pytest.approx(2 / 3)
