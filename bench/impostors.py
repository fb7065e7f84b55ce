"""Drafts that a verifier has to survive: silent, ignorant, and hostile.

They stand where `drafter_mlx.model.DraftModel` stands and know the draft's
tokenizer, but no text. None of them costs time to ask, so they push as fast as
a drafter can.
"""

import random
from collections.abc import Sequence

from transformers import AutoTokenizer

from bus.messages import Sampling
from bus.vocabulary import Vocabulary
from drafter_mlx.session import Child
from strategies.costs import Costs
from strategies.tree import DraftTree, Node


class Dead:
    """Never drafts. A worker gives it a window of no tokens, so it is not even asked."""

    def __init__(self, name: str) -> None:
        """`name` is the folder or hub id of the draft whose tokenizer it speaks."""
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        self.vocabulary = Vocabulary.of(self.tokenizer.get_vocab())

    def reading(self) -> None:
        """It reads nothing."""

    def catch_up(self, reading: None, tree: DraftTree) -> bool:
        return True

    def step_costs(self) -> Costs:
        """A guess costs nothing worth counting."""
        return Costs({1: 1e-5, 16: 1e-5})

    def expand(
        self,
        reading: None,
        tree: DraftTree,
        nodes: Sequence[Node],
        sampling: Sampling,
        count: int,
    ) -> list[list[Child]]:
        """`count` children for each node."""
        return [self._children(count) for _ in nodes]

    def _children(self, count: int) -> list[Child]:
        del count
        return []


class Random(Dead):
    """Any token, with any confidence."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._random = random.Random(0)

    def _children(self, count: int) -> list[Child]:
        tokens = self._random.sample(range(self.vocabulary.size), count)
        sure = sorted((self._random.random() for _ in tokens), reverse=True)
        return list(zip(tokens, sure, strict=True))


class Adversarial(Dead):
    """Wrong and fully confident: the ids that the tokenizer added last, which are the rarest.

    Knowing nothing of the target, it cannot be certain to be wrong; α shows how far it was.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        special = set(self.tokenizer.all_special_ids)
        rarest = range(self.vocabulary.size - 1, -1, -1)
        self._wrong = [token for token in rarest if token not in special][:64]

    def _children(self, count: int) -> list[Child]:
        return [(token, 1.0) for token in self._wrong[:count]]


IMPOSTORS = {"dead": Dead, "random": Random, "adversarial": Adversarial}
