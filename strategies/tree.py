"""DraftTree: one committed sequence and what has been guessed beyond its tip.

A node is named by the rolling digest of its whole prefix, so a late draft finds
its place by what it continues and not by when it arrived. Pure data: both halves
hold one, grow it with `insert`, and move its root with `advance`.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from bus.messages import Draft
from bus.packed import MAX_NODES, Proposal
from strategies.noise import mix64
from strategies.penalties import Tally

ROOT_DIGEST = 0x64726166
"""The digest of the empty prefix."""
MAX_TREE_NODES = 512
"""Nodes that either daemon holds for one session."""
MAX_DEPTH = 256
"""No node lies deeper than this below the tip."""


def extend(digest: int, token: int) -> int:
    """The digest of a prefix with one more token: 32 bits, so a stale draft that is
    taken for another's costs one wasted guess in four billion."""
    return mix64(digest << 32 ^ token) >> 32


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclass(eq=False, slots=True)
class Node:
    """One guessed token. The root stands for the last committed token."""

    token: int
    digest: int
    """Digest of the prefix that ends with this token."""
    position: int
    """Absolute index of this token."""
    parent: "Node | None" = None
    confidence: float = 1.0
    """Chance that the node is accepted, given that its parent was."""
    rank: int = 0
    """0 for the drafter's first choice under this parent, 1 for its runner-up, and so on."""
    raw: float | None = None
    """The draft model's own chance, before calibration; None for a guess from elsewhere."""
    children: list["Node"] = field(default_factory=list)
    proposal: Proposal | None = None
    """What the children were drawn from, in their order; None when they were not."""
    sources: tuple[int, ...] = ()
    """Numbers of the drafters that sent it, the first to do so first."""

    def child(self, token: int) -> "Node | None":
        """The child that guesses `token`."""
        return next((node for node in self.children if node.token == token), None)

    def path(self) -> list["Node"]:
        """The nodes from just below the root down to this one; empty for the root."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


def sent(node: Node) -> float:
    """The chance of a node as its drafter gave it."""
    return node.confidence


def same_support(one: Proposal | None, other: Proposal | None) -> bool:
    """True for the same distribution, wherever it stands in a message."""
    if one is None or other is None:
        return one is other
    return one[1:] == other[1:]


class Insertion(NamedTuple):
    """What became of the nodes of one Draft."""

    added: list[Node]
    dropped: int
    """Nodes whose prefix is unknown or was not committed, or for which there was no room."""


class DraftTree:
    """Guesses that continue a committed sequence of at least one token."""

    def __init__(
        self, tokens: Iterable[int], max_nodes: int, prompt_length: int | None = None
    ) -> None:
        """Of `tokens` the first `prompt_length` are the prompt; all, if it is not given."""
        self.tokens: list[int] = []
        """The committed sequence, prompt included."""
        self.max_nodes = max_nodes
        self._digests = [ROOT_DIGEST]  # of the first 0, 1, 2, ... tokens
        for token in tokens:
            self._append(token)
        assert self.tokens, "a tree needs a token to hang from"
        self._prompt_length = len(self.tokens) if prompt_length is None else prompt_length
        self.root = Node(self.tokens[-1], self._digests[-1], self.tip - 1)
        self._nodes: dict[int, Node] = {self.root.digest: self.root}

    @property
    def tip(self) -> int:
        """Number of committed tokens: the absolute index of the first open one."""
        return len(self.tokens)

    def __len__(self) -> int:
        """Nodes below the root."""
        return len(self._nodes) - 1

    @cached_property
    def tally(self) -> Tally:
        """What the committed sequence does to the logits of its next token."""
        return Tally(self.tokens, self._prompt_length)

    def digest_at(self, position: int) -> int:
        """The digest of the first `position` committed tokens."""
        return self._digests[position]

    def chain(self) -> list[Node]:
        """The optimistic path: first choices from the root down."""
        nodes: list[Node] = []
        node = self.root
        while node.children:
            node = node.children[0]
            nodes.append(node)
        return nodes

    def leaf(self) -> Node:
        """The end of the optimistic path; the root when nothing is drafted."""
        chain = self.chain()
        return chain[-1] if chain else self.root

    def nodes(self) -> Iterator[Node]:
        """All nodes below the root, parents before children."""
        stack = [self.root]
        while stack:
            children = stack.pop().children
            yield from children
            stack.extend(children)

    def best_first(self, chance: Callable[[Node], float] = sent) -> Iterator[tuple[Node, float]]:
        """All nodes with their path probability, likeliest first, parents before children.

        `chance` of a node is given that its parent was accepted. Children that are
        added to a node before the iterator goes on are walked, too.
        """
        heap: list[tuple[float, int, Node]] = []
        serial = 0
        node, path = self.root, 1.0
        while True:
            for child in node.children:
                serial += 1  # earlier pushes win ties, so the order is a function of the tree
                heapq.heappush(heap, (-path * chance(child), serial, child))
            if not heap:
                return
            negative, _, node = heapq.heappop(heap)
            path = -negative
            yield node, path

    def find(self, digest: int) -> Node | None:
        """The live node (or root) whose prefix has this digest."""
        return self._nodes.get(digest)

    def add(
        self, parent: Node, token: int, confidence: float, raw: float | None = None
    ) -> Node | None:
        """The node for `token` under a live `parent`, made if needed; None without room."""
        known = parent.child(token)
        if known is not None:
            return known
        if len(self) >= self.max_nodes or parent.position + 1 >= self.tip + MAX_DEPTH:
            return None
        node = Node(token, extend(parent.digest, token), parent.position + 1, parent, confidence,
                    len(parent.children), raw)  # fmt: skip
        if node.digest in self._nodes:
            return None  # two prefixes with one digest: keep the older
        parent.children.append(node)
        self._nodes[node.digest] = node
        return node

    def insert(self, draft: Draft, source: int = 0) -> Insertion:
        """Place the nodes of a Draft from drafter number `source`, wherever the tip is by now.

        What the tip has passed still counts where it was guessed right.
        """
        found = last = self._insert_once(draft, source)
        while draft.more and last.added and last.dropped:
            # An anchor may be a node that this very message made: then it is known now.
            last = self._insert_once(draft, source)
            found = Insertion(found.added + last.added, last.dropped)
        return found

    def _insert_once(self, draft: Draft, source: int) -> Insertion:
        anchors = [self._anchor(draft.position + more, digest) for more, digest in draft.more]
        drawn = {proposal.place: proposal for proposal in draft.proposals}
        places: list[Node | int | None] = [self._anchor(draft.position, draft.digest)]
        added: list[Node] = []
        for index, token in enumerate(draft.tokens):
            parent = draft.parents[index] if draft.parents else index
            place = places[parent] if parent <= MAX_NODES else anchors[parent - MAX_NODES - 1]
            if isinstance(place, int):
                place = self._passed(place, token)
            elif place is not None:
                size, sent_from = len(self), drawn.get(parent)
                if not place.children:
                    place.proposal = sent_from
                # Draws and other guesses below one node would spoil each other's odds.
                fits = same_support(place.proposal, sent_from) or place.child(token) is not None
                place = self.add(place, token, draft.confidence[index]) if fits else None
                if place is not None and len(self) > size:
                    added.append(place)
                if place is not None and source not in place.sources:
                    place.sources += (source,)
            places.append(place)
        return Insertion(added, sum(place is None for place in places[1:]))

    def advance(self, tokens: Iterable[int]) -> list[Node | None]:
        """Commit `tokens`: the root moves down, and what does not continue it is dropped.

        Returns the node that had guessed each token, or None where none had.
        """
        followed: list[Node | None] = []
        for token in tokens:
            self._append(token)
            node = self.root.child(token)
            followed.append(node)
            self.root = node or Node(token, self._digests[-1], self.tip - 1)
            self.root.parent = None
        self._nodes = {self.root.digest: self.root}
        self._nodes.update((node.digest, node) for node in self.nodes())
        return followed

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        self._digests.append(extend(self._digests[-1], token))

    def _anchor(self, position: int, digest: int) -> Node | int | None:
        """Where a prefix lies: a live node, a committed length before the tip, or nowhere."""
        if position < self.tip:
            return position if self._digests[position] == digest else None
        node = self._nodes.get(digest)
        return node if node is not None and node.position == position - 1 else None

    def _passed(self, position: int, token: int) -> Node | int | None:
        """The place after `token` at a committed index: further on, or nowhere."""
        if self.tokens[position] != token:
            return None
        return self.root if position + 1 == self.tip else position + 1
