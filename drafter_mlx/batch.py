"""Nodes on their way into one Draft. Pure."""

from bus.messages import Draft
from bus.packed import (
    MAX_NODES,
    Anchor,
    Anchors,
    Confidences,
    Ids,
    Parents,
    Proposal,
    Proposals,
)
from strategies.tree import Node


class Batch:
    """Nodes that fit one Draft, each after its parent or under an anchor."""

    def __init__(self) -> None:
        self._anchors: list[Node] = []
        self._nodes: list[Node] = []
        self._places: dict[int, int] = {}  # by digest, as `Parents` counts them
        self._parents: list[int] = []

    @property
    def full(self) -> bool:
        return len(self._nodes) >= MAX_NODES

    def add(self, node: Node) -> None:
        assert node.parent is not None
        place = self._places.get(node.parent.digest)
        if place is None:
            place = MAX_NODES + 1 + len(self._anchors)
            self._anchors.append(node.parent)
            self._places[node.parent.digest] = place
        self._parents.append(place)
        self._nodes.append(node)
        self._places[node.digest] = len(self._nodes)

    def message(self, session_id: int) -> Draft:
        order = sorted(range(len(self._anchors)), key=lambda i: self._anchors[i].position)
        first, *more = [self._anchors[i] for i in order]
        known_as = {MAX_NODES + 1 + old: MAX_NODES + new for new, old in enumerate(order)}
        parents = [known_as.get(place, place) for place in self._parents]
        parents = [0 if place == MAX_NODES else place for place in parents]
        return Draft(
            session_id,
            first.position + 1,
            first.digest,
            Ids(node.token for node in self._nodes),
            Confidences(min(1.0, max(0.0, node.confidence)) for node in self._nodes),
            Parents() if parents == list(range(len(parents))) else Parents(parents),
            Anchors(Anchor(node.position - first.position, node.digest) for node in more),
            proposals=Proposals(self._proposals(known_as)),
        )

    def _proposals(self, known_as: dict[int, int]) -> list[Proposal]:
        parents = {node.parent.digest: node.parent for node in self._nodes if node.parent}
        found = []
        for digest, parent in parents.items():
            if parent.proposal is not None:
                place = self._places[digest]
                place = known_as.get(place, place)
                found.append(parent.proposal._replace(place=0 if place == MAX_NODES else place))
        return found
