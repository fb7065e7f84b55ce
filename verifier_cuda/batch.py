"""The rows of one pass as arrays: which tokens, where they lie, and what each one sees. Numpy only.

Two forms. *Padded*: one line of equal width for each session, as fused kernels and
captured graphs want it. *Ragged*: all rows of all sessions behind one another, so
that none is computed for nothing; attention then goes session by session.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verifier_cuda.layout import BLOCK
from verifier_cuda.scheduler import Block, chain

LEAST_ROWS = 4
"""Rows of the smallest pass: fewer save no time, and may be rounded differently."""
LENGTH_STEP = BLOCK
"""Attention looks at a multiple of this many places, so that few shapes occur."""


@dataclass(frozen=True)
class Part:
    """The rows of one block."""

    slot: int
    line: int
    first: int
    """Column of its first row."""
    count: int
    length: int
    """Places of the slot that attention looks at."""
    visible: np.ndarray
    """`[count, length]`, true where a row sees a place."""


@dataclass(frozen=True)
class Batch:
    """One pass. Its lines are sessions if padded; a ragged one has a single line."""

    ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    """Of each row."""
    places: np.ndarray
    """Of each row in its slot. All these are `[lines, width]`."""
    parts: list[Part]
    """In the order of the blocks."""


def ancestry(parents: Sequence[int]) -> np.ndarray:
    """Which rows each row sees among its own block, `[rows, rows]`: itself and its ancestors."""
    seen = np.eye(len(parents), dtype=bool)
    if list(parents) == chain(len(parents)):
        return np.tril(np.ones_like(seen))
    for row in range(1, len(parents)):
        seen[row] |= seen[parents[row]]
    return seen


def padded(blocks: Sequence[Block], width: int, scratch: int) -> Batch:
    """A line for each block. Rows beyond a block's own write to `scratch` and mean nothing."""
    return _filled(blocks, [(number, 0) for number in range(len(blocks))],
                   (len(blocks), width), scratch)  # fmt: skip


def ragged(blocks: Sequence[Block], least: int, scratch: int) -> Batch:
    """All rows in one line, at least `least` of them."""
    ends = np.cumsum([len(block.tokens) for block in blocks]).tolist()
    first = [(0, start) for start in [0, *ends[:-1]]]
    return _filled(blocks, first, (1, max(least, ends[-1])), scratch)


def _filled(
    blocks: Sequence[Block], first: list[tuple[int, int]], shape: tuple[int, int], scratch: int
) -> Batch:
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    places = np.full(shape, scratch, np.int64)
    slots = np.full(shape, [[block.slot] for block in blocks[: shape[0]]])
    parts = []
    for (line, column), block in zip(first, blocks, strict=True):
        count, tree = len(block.tokens), ancestry(block.parents)
        rows = slice(column, column + count)
        ids[line, rows] = block.tokens
        positions[line, rows] = block.start + tree.sum(1) - 1
        slots[line, rows] = block.slot
        places[line, rows] = block.places
        reach = -(-(max(block.places) + 1) // LENGTH_STEP) * LENGTH_STEP
        length = min(reach, scratch + 1)
        visible = np.zeros((count, length), bool)
        visible[:, : block.start] = True
        visible[:, block.places] = tree
        parts.append(Part(block.slot, line, column, count, length, visible))
    return Batch(ids, positions, slots, places, parts)
