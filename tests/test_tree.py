"""DraftTree against a naive model: a set of whole prefixes, and a cap on their number."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from strategies.tree import MAX_DEPTH, DraftTree, Insertion

Prefix = tuple[int, ...]
PROMPT: Prefix = (7, 1, 2)
WORD = (1 << 64) - 1


def mix(value: int) -> int:
    """SplitMix64's output function, written again."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & WORD
    return value ^ value >> 31


def digest_of(prefix: Prefix) -> int:
    digest = 0x6472616674627573
    for token in prefix:
        digest = mix(digest ^ mix(token + 1))
    return digest


@dataclass(frozen=True)
class Guess:
    """A Draft with its anchor's whole prefix in place of a digest."""

    anchor: Prefix
    tokens: Prefix
    parents: Prefix = ()
    confidence: tuple[float, ...] = ()

    def into(self, tree: DraftTree) -> Insertion:
        confidence = self.confidence or (0.5,) * len(self.tokens)
        position, digest = len(self.anchor), digest_of(self.anchor)
        return tree.insert(position, digest, self.tokens, confidence, self.parents)


@dataclass
class Model:
    """What a DraftTree should hold."""

    committed: Prefix
    max_nodes: int
    nodes: set[Prefix] = field(default_factory=set)

    def knows(self, prefix: Prefix) -> bool:
        return prefix in self.nodes or prefix == self.committed[: len(prefix)]

    def insert(self, guess: Guess) -> tuple[set[Prefix], int]:
        """The added prefixes, and how many nodes were dropped."""
        before, dropped = set(self.nodes), 0
        places: list[Prefix | None] = [guess.anchor if self.knows(guess.anchor) else None]
        for index, token in enumerate(guess.tokens):
            parent = places[guess.parents[index] if guess.parents else index]
            places.append(self._place(parent, token))
            dropped += places[-1] is None
        return self.nodes - before, dropped

    def _place(self, parent: Prefix | None, token: int) -> Prefix | None:
        if parent is None:
            return None
        prefix = (*parent, token)
        if self.knows(prefix):
            return prefix
        depth = len(prefix) - len(self.committed)
        if not 0 < depth <= MAX_DEPTH or len(self.nodes) >= self.max_nodes:
            return None
        self.nodes.add(prefix)
        return prefix

    def advance(self, tokens: Prefix) -> list[Prefix | None]:
        """The prefix that had foreseen each token, or None."""
        followed: list[Prefix | None] = []
        for token in tokens:
            self.committed = (*self.committed, token)
            followed.append(self.committed if self.committed in self.nodes else None)
        size = len(self.committed)
        self.nodes = {n for n in self.nodes if n[:size] == self.committed and len(n) > size}
        return followed


def prefix_of(tree: DraftTree, node: Any) -> Prefix:
    return (*tree.tokens, *(step.token for step in node.path()))


def nodes_of(tree: DraftTree) -> set[Prefix]:
    return {prefix_of(tree, node) for node, _ in tree.best_first()}


tokens = st.integers(1, 2)
chances = st.sampled_from([0.0, 0.125, 0.5, 0.75, 1.0])


@st.composite
def guesses(draw: Any, anchors: Any = None) -> Guess:
    """Subtrees of up to 8 nodes under the prompt, a part of it, a likely node, or nothing known."""
    tails = st.lists(tokens, max_size=3).map(lambda tail: (*PROMPT, *tail))
    anywhere = tails | st.sampled_from([(), (7,), (7, 1), (7, 2), (1, 7, 2)])
    anchor = draw(anchors if anchors is not None else anywhere)
    size = draw(st.integers(1, 8))
    drawn = [draw(tokens) for _ in range(size)]
    chain = draw(st.booleans())
    parents = () if chain else tuple(draw(st.integers(0, index)) for index in range(size))
    return Guess(anchor, tuple(drawn), parents, tuple(draw(chances) for _ in range(size)))


commits = st.lists(tokens, min_size=1, max_size=3).map(tuple)
histories = st.lists(guesses() | commits, max_size=12)
many = settings(
    max_examples=200, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip


def replayed(history: list[Any], max_nodes: int = 1000) -> DraftTree:
    tree = DraftTree(PROMPT, max_nodes)
    for event in history:
        event.into(tree) if isinstance(event, Guess) else tree.advance(event)
    return tree


@many
@given(histories, st.integers(0, 12) | st.just(1000))
def test_any_history_gives_what_the_model_gives(history: list[Any], max_nodes: int) -> None:
    tree, model = DraftTree(PROMPT, max_nodes), Model(PROMPT, max_nodes)
    for event in history:
        if isinstance(event, Guess):
            added, dropped = event.into(tree)
            expected = model.insert(event)
            assert ({prefix_of(tree, node) for node in added}, dropped) == expected
        else:
            foreseen = model.advance(event)
            followed = tree.advance(event)
            assert [node and node.digest for node in followed] == [
                prefix and digest_of(prefix) for prefix in foreseen
            ]
        assert tuple(tree.tokens) == model.committed
        assert nodes_of(tree) == model.nodes
        assert len(tree) == len(model.nodes) <= max_nodes


@many
@given(histories)
def test_digests_and_positions_are_those_computed_from_scratch(history: list[Any]) -> None:
    tree = replayed(history)
    committed = tuple(tree.tokens)
    for position in range(tree.tip + 1):
        assert tree.digest_at(position) == digest_of(committed[:position])
    for node in (tree.root, *(node for node, _ in tree.best_first())):
        prefix = prefix_of(tree, node)
        assert (node.digest, node.position) == (digest_of(prefix), len(prefix) - 1)
        assert node.token == prefix[-1]


@many
@given(histories, guesses())
def test_inserting_twice_is_inserting_once(history: list[Any], guess: Guess) -> None:
    tree = replayed(history)
    first = guess.into(tree)
    nodes = nodes_of(tree)
    assert guess.into(tree) == Insertion([], first.dropped)
    assert nodes_of(tree) == nodes


@many
@given(histories, st.lists(guesses(st.just(PROMPT)), max_size=4), st.randoms())
def test_the_order_of_independent_drafts_does_not_matter(
    history: list[Any], drafts: list[Guess], random: Any
) -> None:
    shuffled = random.sample(drafts, len(drafts))
    assert nodes_of(replayed(history + drafts)) == nodes_of(replayed(history + shuffled))


@many
@given(histories, guesses(), commits)
def test_a_late_draft_leaves_what_it_would_have_left_in_time(
    history: list[Any], guess: Guess, commit: Prefix
) -> None:
    in_time, late = replayed([*history, guess, commit]), replayed([*history, commit, guess])
    tree = replayed(history)
    known = nodes_of(tree) | {tuple(tree.tokens[:size]) for size in range(tree.tip + 1)}
    assume(guess.anchor in known)
    assert nodes_of(late) == nodes_of(in_time)


@many
@given(histories)
def test_best_first_yields_each_node_once_after_its_parent_likeliest_first(
    history: list[Any],
) -> None:
    tree = replayed(history)
    seen, last = {tree.root.digest}, 1.0
    for node, chance in tree.best_first():
        assert node.parent is not None and node.parent.digest in seen
        assert node.digest not in seen
        expected = 1.0
        for step in node.path():
            expected *= step.confidence
        assert chance == expected <= last
        seen.add(node.digest)
        last = chance
    assert len(seen) == len(tree) + 1


# By example --------------------------------------------------------------------------


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
        assert tree.insert(position, digest_of((*PROMPT, 4)), [5], [1.0], []).dropped == 1


def test_no_node_lies_deeper_than_max_depth() -> None:
    tree = DraftTree(PROMPT, 1000)
    added, dropped = Guess(PROMPT, (1,) * (MAX_DEPTH + 5)).into(tree)
    assert (len(added), dropped) == (MAX_DEPTH, 5)
    assert tree.add(tree.leaf(), 9, 1.0) is None
    tree.advance([1, 1])
    assert [node.token for node in Guess(tuple(tree.tokens), (1,) * 999).into(tree).added] == [1, 1]


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
