"""Prompt lookup: what followed the last words where they stood before. Needs no model.

The end of the text is searched for in the prompt and the text so far; what
followed its latest occurrence is the guess. (Prompt lookup decoding, Saxena 2023;
the longest match first.)
"""

from collections.abc import Sequence

from strategies.drafting import Guess, Observation, Options, Step, push_rest

LONGEST = 3
"""Tokens of the longest match that is looked for."""
CHANCES = {3: 0.75, 2: 0.5, 1: 0.25}
"""By the length of the match, until the verifier has learned better."""


class Index:
    """Where each n-gram of a growing text stood last, apart from the text's own end."""

    def __init__(self) -> None:
        self._read = 0
        self._after: dict[tuple[int, ...], int] = {}

    def find(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """(length of the match, where what followed it begins); None without a match."""
        for end in range(max(1, self._read), len(tokens)):
            for count in range(1, min(LONGEST, end) + 1):
                self._after[tuple(tokens[end - count : end])] = end
        self._read = len(tokens)
        for count in range(min(LONGEST, len(tokens) - 1), 0, -1):
            start = self._after.get(tuple(tokens[-count:]))
            if start is not None:
                return count, start
        return None


class Lookup:
    """A chain copied from the text, pushed at once; there is nothing to wait for."""

    def __init__(self, options: Options) -> None:
        del options
        self._index = Index()  # a cache: it holds nothing but what the text says

    def plan(self, seen: Observation) -> Step | None:
        guess = self.guess(seen)
        return Step(known=(guess,)) if guess is not None else push_rest(seen)

    def guess(self, seen: Observation) -> Guess | None:
        """What the text's own past suggests and the tree does not hold yet."""
        found = self._index.find(seen.tree.tokens)
        if found is None or len(seen.tree) >= seen.tree.max_nodes:
            return None
        count, start = found
        copied = _until_end(seen.tree.tokens[start : start + max(0, seen.room)], seen.ended)
        node = seen.tree.root
        for depth, token in enumerate(copied):
            child = node.child(token)
            if child is None:
                return Guess(node, tuple(copied[depth:]), CHANCES[count])
            node = child
        return None


def _until_end(tokens: Sequence[int], ended: frozenset[int]) -> Sequence[int]:
    """`tokens` up to the first that ends a text, inclusive."""
    stop = next((i for i, token in enumerate(tokens, 1) if token in ended), len(tokens))
    return tokens[:stop]
