"""What is measured of a target at start-up: pass times by width, and whether bits hold."""

import random
import time

import torch

from bus.messages import Sampling
from strategies.costs import Costs
from verifier_cuda.layout import BLOCK, Layout, in_line
from verifier_cuda.model import TargetModel
from verifier_cuda.scheduler import Block, Keep, chain

WIDTHS = (4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
_REPEATS = 5
_FEW_REPEATS = 2
_STEPS = 8
_STARTS = (24, 2 * BLOCK + 24)


def pass_costs(model: TargetModel) -> Costs:
    """Seconds of a pass by its rows, on a text of middling length."""
    costs = Costs()
    start = min(BLOCK, model.max_model_len - model.max_width - 1)
    most = model.max_width * (model.cache.slots if model.ragged else 1)
    for width in [w for w in WIDTHS if w <= most and start >= 0]:
        blocks = _in_slots(width, model.max_width, start)
        seconds = []
        for _ in range(_REPEATS if len(blocks) == 1 else _FEW_REPEATS):
            began = time.perf_counter()
            model.forward(blocks)
            seconds.append(time.perf_counter() - began)
        costs.saw(width, min(seconds))  # what else the machine does only adds
    return costs


def _in_slots(rows: int, most: int, start: int) -> list[Block]:
    """So many rows, at most `most` in each slot."""
    counts = [min(most, rows - done) for done in range(0, rows, most)]
    return [
        Block(slot, start, [0] * count, chain(count), in_line(start, count), Sampling())
        for slot, count in enumerate(counts)
    ]


def is_bitwise(model: TargetModel) -> bool:
    """True when rows of trees have, to the last bit, the logits they have when decoded plainly.

    Looked at near the beginning of a text and, if there is room, in its third block.
    """
    starts = [start for start in _STARTS if start + _STEPS + 2 <= model.max_model_len]
    return all(_holds(model, start) for start in starts)


def _holds(model: TargetModel, start: int) -> bool:
    """Decodes a few tokens from `start` one by one, then the same ones on a branch of a tree
    of other guesses, at two widths."""
    rng = random.Random(0)
    text = [rng.randrange(model.vocabulary.size) for _ in range(start + _STEPS)]
    model.forward([Block(0, 0, text[:start], chain(start), in_line(0, start), None)])
    plain = [
        model.logits([Block(0, start + i, [text[start + i]], [0], [start + i], Sampling())])[0][0]
        for i in range(_STEPS)
    ]
    for width in sorted({2 * _STEPS, max(2 * _STEPS, model.max_width)}):
        branch = _branch(rng, model, text[start:], start, width)
        logits = model.logits([branch])[0]
        rows = [0, *range(2, 2 * _STEPS, 2)]
        if not all(torch.equal(logits[r], wanted) for r, wanted in zip(rows, plain, strict=True)):
            return False
    places = tuple(branch.places[row] for row in rows)
    model.keep([Keep(0, start, places)])
    after = Block(0, start + _STEPS - 1, text[-1:], [0], [start + _STEPS - 1], Sampling())
    return torch.equal(model.logits([after])[0][0], plain[-1])


def _branch(
    rng: random.Random, model: TargetModel, text: list[int], start: int, width: int
) -> Block:
    """Wrong guesses along the main line, and the text itself on the branch beside it."""
    layout, tokens, parents, places = Layout(start), [text[0]], [0], [start]
    main = right = 0
    for depth in range(1, len(text)):
        for row_above, token in (
            (main, rng.randrange(model.vocabulary.size)),
            (right, text[depth]),
        ):
            side = layout.branch(places[row_above], depth - 1)
            place = layout.place(depth, side)
            assert place is not None
            tokens.append(token)
            parents.append(row_above)
            places.append(place)
        main, right = len(tokens) - 2, len(tokens) - 1
    while len(tokens) < width:  # leaves that fill the width
        place = layout.place(1, 0)
        assert place is not None
        tokens.append(0)
        parents.append(0)
        places.append(place)
    return Block(0, start, tokens, parents, places, Sampling())
