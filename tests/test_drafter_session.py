"""What a drafter pushes, and what it makes of the commits."""

from collections.abc import Sequence
from typing import Any

import pytest
from fakes import END, FakeDraft, Voice
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import strategies
from bus import codec
from bus.errors import ProtocolError
from bus.messages import Commit, Draft, Open, Sampling
from bus.packed import MAX_NODES, Anchor, Ids, Parents
from drafter_mlx.piece import Origin, Piece
from drafter_mlx.session import REPUSH_AFTER, Child, Request, Session
from strategies.drafting import Options, Step
from strategies.drafting.tree import PUSH_FLOOR
from strategies.tree import DraftTree, Node

PROMPT = Ids([1, 2])
KINDS = ["fixed", "pipelined", "tree"]
DRAFT = FakeDraft(Voice(end_every=0))


def session(
    kind: str = "pipelined", window: int = 8, branches: int = 3, **sampling: Any
) -> Session:
    drafting = strategies.load("drafting", kind)(Options(4, window, branches))
    return Session(1, Request(PROMPT, Sampling(**sampling)), drafting, window)


def grow(made: Session, parent: Node, *tokens: int) -> list[Node]:
    """Draft `tokens` beside each other under `parent`, without a push."""
    children = [(token, 0.5) for token in tokens]
    assert made.expanded(Step((parent,), len(tokens), push=False), [children]) == []
    return parent.children


def chain(made: Session, *tokens: int) -> None:
    """Draft `tokens` after each other and push them."""
    for token in tokens:
        grow(made, made.tree.leaf(), token)
    made.pushes()


def run(made: Session, turns: int = 600) -> list[Draft]:
    """Let the strategy draft until it waits; what it pushed."""
    pushed: list[Draft] = []
    for _ in range(turns):
        step = made.plan()
        if step is None:
            return pushed
        found = [
            DRAFT.children(made.tokens_to(node), made.request.sampling, step.children)
            for node in step.expand
        ]
        pushed += made.expanded(step, found)
    raise AssertionError("it drafts on and on, and nothing comes of it")


def shape(tree: DraftTree) -> dict[int, tuple[int, int, int, list[int]]]:
    """A tree as plain data: each node's token, position and rank, and its children in order."""
    nodes = [tree.root, *(node for node, _ in tree.best_first())]
    return {
        node.digest: (node.token, node.position, node.rank, [c.digest for c in node.children])
        for node in nodes
    }


def placed(drafts: Sequence[Draft], committed: Sequence[int] = PROMPT) -> DraftTree:
    """A fresh tree with what the drafts say, as it arrives."""
    tree = DraftTree(committed, 1000)
    for draft in drafts:
        said = codec.decode(codec.encode(draft))
        assert isinstance(said, Draft)
        assert said.confidence == pytest.approx(draft.confidence, abs=0.002)
        assert replace(said, confidence=draft.confidence) == draft
        tree.insert(said)
    return tree


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 4), st.booleans()), max_size=30))
def test_pushes_rebuild_the_tree_whatever_its_shape(growth: list[tuple[int, int, bool]]) -> None:
    made, drafts = session(window=200), []
    for at, count, push in growth:
        nodes = [made.tree.root, *(node for node, _ in made.tree.best_first())]
        found: list[Child] = [(5 + at % 3 + rank, 0.5) for rank in range(count)]
        drafts += made.expanded(Step((nodes[at % len(nodes)],), count, push), [found])
    drafts += made.pushes()
    assert shape(placed(drafts)) == shape(made.tree)
    assert made.pushes() == []
    made.push_again()
    again = made.pushes()
    assert [len(draft.tokens) for draft in again[:-1]] == [MAX_NODES] * (len(again) - 1)
    assert shape(placed(again)).keys() == shape(made.tree).keys()


@pytest.mark.parametrize("kind", ["fixed", "pipelined"])
def test_every_push_of_a_chain_is_one_message(kind: str) -> None:
    made = session(kind)
    drafts = run(made)
    assert [len(draft.tokens) for draft in drafts] == {"fixed": [4], "pipelined": [1] * 8}[kind]
    assert {draft.parents for draft in drafts} == {()}
    assert shape(placed(drafts)) == shape(made.tree)


def test_every_step_of_a_tree_is_one_message_with_all_that_is_likely_enough() -> None:
    made, drafts = session("tree"), []
    made.welcome(frozenset(), 999, 100)
    raw = [(5, 0.4), (6, 0.3), (7, 0.01)]
    while step := made.plan():
        pushed = made.expanded(step, [raw] * len(step.expand))
        assert len(pushed) <= 1
        drafts += pushed
    likely = {node.digest for node, path in made.tree.best_first() if path >= PUSH_FLOOR}
    assert 10 < len(likely) < len(made.tree)
    assert {node.digest for node in placed(drafts).nodes()} == likely


def test_nodes_under_several_anchors_are_one_message_whose_anchors_count_from_the_first() -> None:
    made = session()
    left, right = grow(made, made.tree.root, 5, 6)
    (leaf,) = grow(made, left, 7)
    first = made.pushes()
    grow(made, leaf, 8)
    (other,) = grow(made, right, 7)
    grow(made, other, 9)
    grow(made, leaf, 4)
    (draft,) = made.pushes()
    assert (draft.position, draft.digest) == (3, right.digest), "the shallowest is the first"
    assert draft.more == (Anchor(1, leaf.digest),)
    assert draft.tokens == (8, 7, 9, 4)
    assert draft.parents == (MAX_NODES + 1, 0, 2, MAX_NODES + 1)
    assert shape(placed([*first, draft])) == shape(made.tree)


def test_a_long_push_is_cut_where_a_message_is_full() -> None:
    made = session(window=40)
    for token in range(MAX_NODES + 6):
        grow(made, made.tree.leaf(), 3 + token % 2)
    drafts = made.pushes()
    assert [len(draft.tokens) for draft in drafts] == [MAX_NODES, 6]
    assert [draft.parents for draft in drafts] == [Parents(), Parents()]
    assert shape(placed(drafts)) == shape(made.tree)


def test_what_no_longer_fits_is_not_pushed() -> None:
    made = session()
    left, right = grow(made, made.tree.root, 5, 6)
    grow(made, left, 7)
    grow(made, right, 8)
    made.on_commit(Commit(1, 2, Ids([6])), 0.0)
    (draft,) = made.pushes()
    assert (draft.position, draft.digest, draft.tokens) == (3, right.digest, (8,))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize(("max_tokens", "max_len"), [(1, 99), (2, 99), (5, 99), (99, 4), (99, 99)])
def test_drafts_end_before_the_last_open_token_and_the_window(
    kind: str, window: int, max_tokens: int, max_len: int
) -> None:
    made = session(kind, window, max_tokens=max_tokens)
    made.welcome(frozenset(), max_len, 100)
    run(made)
    room = min(window, max_tokens - 1, max_len - len(PROMPT) - 1)
    assert len(made.tree.chain()) == (min(4, room) if kind == "fixed" else room)


@pytest.mark.parametrize(
    ("sampling", "ended"),
    [({}, {END}), ({"stop_ids": Ids([7])}, {END, 7}), ({"ignore_eos": True}, set())],
)
def test_nothing_is_drafted_after_an_end(sampling: dict[str, Any], ended: set[int]) -> None:
    made = session("pipelined", **sampling)
    made.welcome(frozenset([END]), 99, 99)
    for token in (END, 7, 6):
        grow(made, made.tree.root, token)
        made.pushes()
        assert (made.plan() is None) == (token in ended)
        made.on_commit(Commit(1, made.tree.tip, Ids([8])), 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("branches", "max_nodes"), [(3, 4), (12, 512)])
def test_a_full_tree_is_left_alone_until_the_verifier_has_spoken(
    kind: str, branches: int, max_nodes: int
) -> None:
    made = session(kind, branches=branches)
    made.welcome(frozenset(), 999, max_nodes)
    run(made)
    assert len(made.tree) <= max_nodes


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_lost_is_pushed_again_without_waiting_for_a_commit(kind: str) -> None:
    made = session(kind)
    before = run(made)
    assert made.open() == Open(1, PROMPT, Ids(), made.request.sampling, "exact")
    assert shape(placed(run(made))).keys() == shape(placed(before)).keys()


def idle_passes(made: Session, count: int) -> None:
    """Commits of what the drafter foresaw, by passes that had no drafts."""
    for _ in range(count):
        assert made.pushes() == []
        foreseen = made.tree.chain()[0].token
        made.on_commit(Commit(1, made.tree.tip, Ids([foreseen]), width=1), 0.0)


def test_drafts_that_never_arrive_are_pushed_again_after_some_passes() -> None:
    made = session(window=3 * REPUSH_AFTER)
    run(made)
    idle_passes(made, REPUSH_AFTER - 1)
    foreseen = made.tree.chain()[0].token
    made.on_commit(Commit(1, made.tree.tip, Ids([foreseen]), 1, 2), 0.0)
    idle_passes(made, REPUSH_AFTER)
    assert len(made.tree) == REPUSH_AFTER
    assert shape(placed(made.pushes(), made.tree.tokens)) == shape(made.tree)


def test_a_gap_changes_nothing_and_says_so() -> None:
    made = session()
    assert made.on_commit(Commit(1, 3, Ids([5])), 0.0) is None
    assert (made.committed, made.stats.tokens, made.finish) == ((), 0, None)


@pytest.mark.parametrize("position", [2, 3, 4])
def test_what_is_known_already_is_left_out(position: int) -> None:
    made = session()
    made.on_commit(Commit(1, 2, Ids([5, 6])), 0.0)
    said = [5, 6, 7, 8][position - 2 :]
    assert made.on_commit(Commit(1, position, Ids(said)), 0.0) == Piece((7, 8), ("plain",) * 2)
    assert made.on_commit(Commit(1, position, Ids(said)), 0.0) == Piece((), ())
    assert made.on_commit(Commit(1, 2, Ids([5])), 0.0) == Piece((), ())
    assert (made.committed, made.stats.tokens) == ((5, 6, 7, 8), 4)


@pytest.mark.parametrize(
    ("position", "said"), [(2, [6]), (2, [5, 5]), (3, [7, 7]), (1, [2, 5]), (0, [])]
)
def test_changed_text_is_the_verifiers_fault(position: int, said: list[int]) -> None:
    made = session()
    made.on_commit(Commit(1, 2, Ids([5, 6])), 0.0)
    with pytest.raises(ProtocolError, match="changed text"):
        made.on_commit(Commit(1, position, Ids(said), finish="stop"), 0.0)
    assert (made.committed, made.finish) == ((5, 6), None)


def test_after_the_end_nothing_is_taken_or_drafted() -> None:
    made = session()
    made.on_commit(Commit(1, 2, Ids([5]), finish="length"), 3.0)
    assert (made.finish, made.stats.ended_at, made.plan()) == ("length", 3.0, None)
    assert made.on_commit(Commit(1, 3, Ids([6])), 4.0) == Piece((), ())
    assert made.committed == (5,)


ORIGINS: list[tuple[dict[str, Any], tuple[Origin, ...]]] = [
    ({"width": 4, "accepted": 2, "rejected": 1}, ("accepted", "accepted", "correction")),
    ({"width": 3, "accepted": 2}, ("accepted", "accepted", "bonus")),
    ({"width": 4, "accepted": 3, "finish": "length"}, ("accepted",) * 3),
    ({"width": 4, "accepted": 3, "finish": "stop"}, ("accepted", "accepted", "end")),
    ({"width": 3, "accepted": 2, "finish": "stop"}, ("accepted", "accepted", "end")),
    ({}, ("plain",) * 3),
    ({"finish": "stop"}, ("plain", "plain", "end")),
]


@pytest.mark.parametrize(("fields", "origins"), ORIGINS)
@pytest.mark.parametrize("known", [0, 1, 2])
def test_each_token_says_where_it_came_from(
    fields: dict[str, Any], origins: tuple[Origin, ...], known: int
) -> None:
    made = session()
    made.on_commit(Commit(1, 2, Ids([5, 6, 7][:known])), 0.0)
    piece = made.on_commit(Commit(1, 2, Ids([5, 6, 7]), **fields), 0.0)
    assert piece == Piece((5, 6, 7)[known:], origins[known:])


def test_a_lone_token_is_plain_or_a_correction() -> None:
    made = session()
    assert made.on_commit(Commit(1, 2, Ids([5]), width=1), 0.0) == Piece((5,), ("plain",))
    turned_down = Commit(1, 3, Ids([5]), width=3, rejected=2)
    assert made.on_commit(turned_down, 0.0) == Piece((5,), ("correction",))
