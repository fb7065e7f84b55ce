"""DraftTree by example: what becomes of a draft, wherever the tip is by now."""

import pytest
from test_tree import PROMPT, Guess, Prefix, digest_of, nodes_of, prefix_of

from bus.messages import Draft
from bus.packed import MAX_NODES, Confidences, Ids
from strategies.tree import MAX_DEPTH, DraftTree, Insertion


def test_a_draft_behind_the_tip_counts_where_it_was_right() -> None:
    tree = DraftTree((*PROMPT, 4, 5), 10)
    added, dropped = Guess(PROMPT, (4, 5, 6, 8)).into(tree)
    assert [node.token for node in added] == [6, 8]
    assert dropped == 0
    assert nodes_of(tree) == {(*PROMPT, 4, 5, 6), (*PROMPT, 4, 5, 6, 8)}


def test_a_draft_behind_the_tip_is_dropped_and_counted_where_it_was_wrong() -> None:
    tree = DraftTree((*PROMPT, 4, 5), 10)
    # 4 and 5 are right, 9 and what follows it are not, and 6 hangs from the right 5.
    added, dropped = Guess(PROMPT, (4, 9, 5, 8, 6), (0, 1, 1, 2, 3)).into(tree)
    assert [node.token for node in added] == [6]
    assert dropped == 2
    assert Guess(PROMPT, (5, 6)).into(tree) == Insertion([], 2)


@pytest.mark.parametrize("anchor", [(7, 1, 3), (1, 7), (*PROMPT, 4), (*PROMPT, 4, 5, 6, 7)])
def test_a_draft_with_an_unknown_anchor_is_dropped_whole(anchor: Prefix) -> None:
    tree = DraftTree(PROMPT, 10)
    assert Guess(anchor, (4, 5, 6)).into(tree) == Insertion([], 3)
    assert len(tree) == 0


def test_a_known_digest_at_another_position_is_no_anchor() -> None:
    tree = DraftTree(PROMPT, 10)
    Guess(PROMPT, (4,)).into(tree)
    for position in (0, 2, 3, 5, 1 << 31):
        draft = Draft(1, position, digest_of((*PROMPT, 4)), Ids([5]), Confidences([1.0]))
        assert tree.insert(draft).dropped == 1


def test_a_draft_places_what_hangs_from_live_passed_and_unknown_anchors() -> None:
    tree = DraftTree((*PROMPT, 4, 5), 10)
    Guess((*PROMPT, 4, 5), (6,)).into(tree)
    further = ((*PROMPT, 4, 5), (*PROMPT, 9), (*PROMPT, 4, 5, 6))
    root, unknown, live = range(MAX_NODES + 1, MAX_NODES + 4)
    guess = Guess(
        PROMPT, (4, 5, 8, 8, 1, 9, 2, 3), (0, 1, 2, live, unknown, root, 4, 5), (), further
    )
    added, dropped = guess.into(tree)
    tails = [(8,), (6, 8), (9,), (6, 8, 2)]
    assert [prefix_of(tree, node) for node in added] == [(*PROMPT, 4, 5, *tail) for tail in tails]
    assert dropped == 2, "what hangs from the unknown anchor, and what follows that"


def test_children_added_during_a_best_first_walk_are_walked_too() -> None:
    tree = DraftTree(PROMPT, 10)
    Guess(PROMPT, (4, 5), (0, 0), (0.5, 0.25)).into(tree)
    walk, order = tree.best_first(), []
    for node, chance in walk:
        order.append((node.token, chance))
        if len(order) < 3:
            tree.add(node, 6, 0.75)
    assert order == [(4, 0.5), (6, 0.375), (6, 0.28125), (5, 0.25)]


def test_no_node_lies_deeper_than_max_depth() -> None:
    tree = DraftTree(PROMPT, 1000)
    deep = MAX_DEPTH // MAX_NODES
    for part in range(deep):
        below = (*PROMPT, *(1,) * part * MAX_NODES)
        assert len(Guess(below, (1,) * MAX_NODES).into(tree).added) == MAX_NODES
    below = (*PROMPT, *(1,) * MAX_DEPTH)
    assert Guess(below, (1,) * 5).into(tree) == Insertion([], 5)
    assert tree.add(tree.leaf(), 9, 1.0) is None
    tree.advance([1, 1])
    added, dropped = Guess(below, (1,) * 5).into(tree)
    assert ([node.token for node in added], dropped) == ([1, 1], 3)


def test_a_full_tree_drops_and_counts_until_there_is_room() -> None:
    tree = DraftTree(PROMPT, 3)
    assert Guess(PROMPT, (4, 5, 6, 8)).into(tree).dropped == 1
    assert Guess(PROMPT, (9,)).into(tree) == Insertion([], 1)
    assert Guess(PROMPT, (4, 5)).into(tree) == Insertion([], 0)
    tree.advance([4])
    assert Guess((*PROMPT, 4), (9,)).into(tree).dropped == 0


def test_advance_returns_the_nodes_that_had_foreseen_each_token() -> None:
    tree = DraftTree(PROMPT, 10)
    first, second, _ = Guess(PROMPT, (4, 5, 9), (0, 1, 0)).into(tree).added
    assert tree.advance([4, 5, 5]) == [first, second, None]
    assert (tree.root.token, len(tree), tree.tip) == (5, 0, 6)


def test_advance_keeps_exactly_what_continues_the_text() -> None:
    tree = DraftTree(PROMPT, 10)
    Guess(PROMPT, (4, 5, 6, 8, 6, 9), (0, 0, 1, 1, 2, 4)).into(tree)
    tree.advance([4])
    assert nodes_of(tree) == {(*PROMPT, 4, *tail) for tail in [(6,), (8,), (8, 9)]}
    assert len(tree) == 3
    assert Guess((*PROMPT, 5), (6,)).into(tree).dropped == 1
    assert Guess((*PROMPT, 4, 8, 9), (1,)).into(tree).dropped == 0


def test_the_optimistic_path_follows_first_choices_and_ranks_count_siblings() -> None:
    tree = DraftTree(PROMPT, 10)
    Guess(PROMPT, (4, 5, 6, 8), (0, 0, 1, 2), (0.1, 0.9, 0.9, 0.9)).into(tree)
    assert [node.token for node in tree.chain()] == [4, 6]
    assert [(node.token, node.rank) for node in tree.root.children] == [(4, 0), (5, 1)]
