"""How good a draft's guesses are along texts that are known: what the simulator replays."""

from typing import Any

from bus.messages import Sampling
from strategies.tree import DraftTree

RANKS = 4
"""Guesses that are asked for at each place."""
Record = dict[str, list[Any]]
"""`ranks`: of the text's token among the guesses at each place, or None; `confidence`: theirs."""


def record(
    model: Any, prompt: list[int], text: list[int], sampling: Sampling, ranks: int = RANKS
) -> Record:
    """What the draft `model` would have guessed at each place of `text`, which follows `prompt`."""
    tree, reading = DraftTree(prompt, max_nodes=RANKS), model.reading()
    found: Record = {"ranks": [], "confidence": []}
    for token in text:
        while not model.catch_up(reading, tree):
            pass
        (guesses,) = model.expand(reading, tree, [tree.root], sampling, ranks)
        tokens = [guess for guess, _ in guesses]
        found["ranks"].append(tokens.index(token) if token in tokens else None)
        found["confidence"].append([round(confidence, 4) for _, confidence in guesses])
        tree.advance([token])
    return found
