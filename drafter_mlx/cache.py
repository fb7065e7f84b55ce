"""What the draft model has read: a line of committed tokens, and nodes of the tree beside it.

Rows of the cache are filled in the order they are read; a mask says which of
them a row may see. So changing to another branch costs nothing, and when the
text moves on, the rows that still count are gathered into place. mlx-lm's own
caches can only be trimmed and replayed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, make_prompt_cache

from bus.errors import BadSetup
from strategies.tree import DraftTree, Node

GROW = 256
"""Rows that are allocated at a time."""


@dataclass
class Place:
    """Where the rows of the running step go, and what they see. One for all layers."""

    filled: int = 0
    offset: int = 0
    """Position of the first row, for models that take one for all rows."""
    mask: Any = None


class Layer:
    """Keys and values of one layer, in the shape mlx-lm expects of a cache."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> int:
        return self._place.offset

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None]:
        """What is evaluated when a step is over."""
        return self.keys, self.values

    def make_mask(self, rows: int, return_array: bool = False, window_size: Any = None) -> Any:
        del rows, return_array, window_size
        return self._place.mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows `[1, heads, rows, dim]`; everything up to them."""
        start = self._place.filled
        end = start + keys.shape[2]
        if self.keys is None or self.values is None or end > self.keys.shape[2]:
            self.keys, self.values = _grown(self.keys, keys, end), _grown(self.values, values, end)
        self.keys[..., start:end, :] = keys
        self.values[..., start:end, :] = values
        return self.keys[..., :end, :], self.values[..., :end, :]

    def gather(self, rows: mx.array, start: int) -> None:
        """Copy `rows` to `start` and up, in order."""
        if self.keys is None or self.values is None:
            return
        end = start + rows.shape[0]
        self.keys[..., start:end, :] = mx.take(self.keys, rows, axis=2)
        self.values[..., start:end, :] = mx.take(self.values, rows, axis=2)


def _grown(old: mx.array | None, like: mx.array, end: int) -> mx.array:
    batch, heads, _, dim = like.shape
    have = 0 if old is None else old.shape[2]
    more = mx.zeros((batch, heads, -(-end // GROW) * GROW - have, dim), like.dtype)
    return more if old is None else mx.concatenate([old, more], axis=2)


@dataclass(frozen=True)
class Feed:
    """Rows to be read in one step: first what is missing of the line, then nodes of the tree."""

    tokens: list[int]
    positions: list[int]
    digests: list[int]
    """Of the prefix that ends with each row."""
    mask: np.ndarray
    """`[rows, rows filled after the step]`, true where a row sees another."""


class Reading:
    """The rows that a draft model has read for one session."""

    def __init__(self, network: Any) -> None:
        self.place = Place()
        self.layers = [Layer(self.place) for _ in make_prompt_cache(network)]
        self.line = 0
        """Committed tokens read; they fill the first rows."""
        self._row: dict[int, int] = {}  # of each node that was read, by its digest
        self._settled: tuple[DraftTree | None, int] = (None, 0)

    def settle(self, tree: DraftTree) -> None:
        """Follow the text: what was committed joins the line, what died is dropped."""
        if self._settled == (tree, tree.tip):
            return  # only a Commit changes what lives
        self._settled = tree, tree.tip
        source = []
        while self.line + len(source) < tree.tip:
            row = self._row.pop(tree.digest_at(self.line + len(source) + 1), None)
            if row is None:
                break
            source.append(row)
        start, self.line = self.line, self.line + len(source)
        alive: dict[int, int] = {}
        if self.line == tree.tip:  # below a root that was not read nothing was
            alive = {digest: row for digest, row in self._row.items() if tree.find(digest)}
        source += alive.values()  # in the order they were read: parents first
        self._row = {digest: self.line + index for index, digest in enumerate(alive)}
        self.place.filled = self.line + len(alive)
        if source != list(range(start, start + len(source))):
            rows = mx.array(source)
            for layer in self.layers:
                layer.gather(rows, start)

    def feed(self, tree: DraftTree, nodes: Sequence[Node]) -> Feed:
        """The rows to read for `nodes`, and for all that lies before them and is unread."""
        if any(node.digest in self._row or self._is_read_root(tree, node) for node in nodes):
            self.forget(tree.tip - 1)  # asked for again: read again
        line = range(self.line, tree.tip)
        todo = {
            step.digest: step
            for node in nodes
            for step in node.path()
            if step.digest not in self._row
        }
        first, count = self.place.filled, len(line) + len(todo)
        assert not line or first == self.line, "nothing is read below an unread root"
        mask = np.zeros((count, first + count), bool)
        mask[:, : self.line] = True
        mask[:, first : first + len(line)] = np.tri(count, len(line), dtype=bool)
        row_of = dict(self._row)
        for number, (digest, node) in enumerate(todo.items(), len(line)):
            row_of[digest] = first + number
            mask[number, [row_of[step.digest] for step in node.path()]] = True
        return Feed(
            tree.tokens[self.line :] + [node.token for node in todo.values()],
            [*line, *(node.position for node in todo.values())],
            [tree.digest_at(position + 1) for position in line] + list(todo),
            mask,
        )

    def took(self, tree: DraftTree, fed: Feed) -> None:
        """The rows of `fed` were read."""
        missing, first = tree.tip - self.line, self.place.filled - len(fed.tokens)
        for number, digest in enumerate(fed.digests[missing:], missing):
            self._row[digest] = first + number
        self.line += missing

    def read_line(self, count: int) -> None:
        """`count` more tokens of the line were read, and nothing beside it."""
        self.line += count
        assert self.place.filled == self.line

    def forget(self, line: int) -> None:
        """Drop every node, and the line from position `line` on."""
        self._row.clear()
        self._settled = None, 0
        self.line = self.place.filled = min(self.line, line)

    def _is_read_root(self, tree: DraftTree, node: Node) -> bool:
        return node is tree.root and self.line == tree.tip


def check_trimmable(network: Any) -> None:
    """Refuse models whose state cannot be rolled back, naming the layers."""
    layers = make_prompt_cache(network)
    kinds = sorted({type(layer).__name__ for layer in layers if type(layer) is not KVCache})
    if kinds:
        raise BadSetup(
            f"this draft model keeps state in {', '.join(kinds)}, which cannot be rolled back: "
            "use a draft with full attention in every layer, such as Llama or Qwen3"
        )
