"""DraftTree against a naive model: a set of whole prefixes, and a cap on their number."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from bus.messages import Draft
from bus.packed import MAX_NODES, Anchor, Anchors, Confidences, Ids, Parents
from strategies.tree import MAX_DEPTH, DraftTree, Insertion, Node

Prefix = tuple[int, ...]
PROMPT: Prefix = (7, 1, 2)
WORD = (1 << 64) - 1


def mix(value: int) -> int:
    """SplitMix64's output function, written again."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & WORD
    return value ^ value >> 31


def digest_of(prefix: Prefix) -> int:
    digest = 0x64726166
    for token in prefix:
        digest = mix(digest << 32 ^ token) >> 32
    return digest


@dataclass(frozen=True)
class Guess:
    """A Draft with whole prefixes of its anchors in place of digests."""

    anchor: Prefix
    tokens: Prefix
    parents: Prefix = ()
    confidence: tuple[float, ...] = ()
    more: tuple[Prefix, ...] = ()

    def into(self, tree: DraftTree) -> Insertion:
        confidence = Confidences(self.confidence or (0.5,) * len(self.tokens))
        position, digest = len(self.anchor), digest_of(self.anchor)
        more = Anchors(Anchor(len(prefix) - position, digest_of(prefix)) for prefix in self.more)
        return tree.insert(
            Draft(1, position, digest, Ids(self.tokens), confidence, Parents(self.parents), more)
        )


@dataclass
class Model:
    """What a DraftTree should hold."""

    committed: Prefix
    max_nodes: int
    nodes: set[Prefix] = field(default_factory=set)

    def knows(self, prefix: Prefix) -> bool:
        return prefix in self.nodes or prefix == self.committed[: len(prefix)]

    def insert(self, guess: Guess) -> tuple[set[Prefix], int]:
        """The added prefixes, and how many nodes were dropped, once nothing more finds a place."""
        before = set(self.nodes)
        while True:
            size, dropped = len(self.nodes), self._insert_once(guess)
            if len(self.nodes) == size or not guess.more:
                return self.nodes - before, dropped

    def _insert_once(self, guess: Guess) -> int:
        dropped = 0
        anchors = [prefix if self.knows(prefix) else None for prefix in guess.more]
        places = [guess.anchor if self.knows(guess.anchor) else None]
        for index, token in enumerate(guess.tokens):
            parent = guess.parents[index] if guess.parents else index
            under = anchors[parent - MAX_NODES - 1] if parent > MAX_NODES else places[parent]
            places.append(self._place(under, token))
            dropped += places[-1] is None
        return dropped

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
    """Subtrees of up to 8 nodes under the prompt, a part of it, a likely node, or nothing known.

    Or under several of these.
    """
    tails = st.lists(tokens, max_size=3).map(lambda tail: (*PROMPT, *tail))
    anywhere = tails | st.sampled_from([(), (7,), (7, 1), (7, 2), (1, 7, 2)])
    drawn = st.lists(anchors if anchors is not None else anywhere, min_size=1, max_size=4)
    anchor, *more = sorted(draw(drawn), key=len)
    named = tuple(draw(tokens) for _ in range(draw(st.integers(1, 8))))
    further = range(MAX_NODES + 1, MAX_NODES + 1 + len(more))
    picks = [st.sampled_from([*range(index + 1), *further]) for index in range(len(named))]
    parents = tuple(map(draw, picks)) if more or draw(st.booleans()) else ()
    return Guess(anchor, named, parents, tuple(draw(chances) for _ in named), tuple(more))


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
@example([], Guess((*PROMPT,), (1, 1), (0, MAX_NODES + 2), (0.0, 0.0), ((*PROMPT,), (*PROMPT, 1))))
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
    assume({guess.anchor, *guess.more} <= known)
    assert nodes_of(late) == nodes_of(in_time)


def by_rank(node: Node) -> float:
    return 0.75 if node.rank == 0 else 0.125


@many
@given(histories, st.booleans())
def test_best_first_yields_each_node_once_after_its_parent_likeliest_first(
    history: list[Any], as_sent: bool
) -> None:
    tree = replayed(history)
    seen, last = {tree.root.digest}, 1.0
    for node, chance in tree.best_first() if as_sent else tree.best_first(by_rank):
        assert node.parent is not None and node.parent.digest in seen
        assert node.digest not in seen
        expected = 1.0
        for step in node.path():
            expected *= step.confidence if as_sent else by_rank(step)
        assert chance == expected <= last
        seen.add(node.digest)
        last = chance
    assert len(seen) == len(tree) + 1


@many
@given(histories)
def test_every_node_is_listed_once_after_its_parent_and_found_by_its_digest(
    history: list[Any],
) -> None:
    tree = replayed(history)
    listed = [tree.root, *tree.nodes()]
    for place, node in enumerate(listed[1:], 1):
        assert node.parent in listed[:place] and node not in listed[:place]
    assert len(listed) == len(tree) + 1
    assert all(tree.find(node.digest) is node for node in listed)
    assert tree.find(digest_of((*tree.tokens, 3))) is None
