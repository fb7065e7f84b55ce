"""The draft: any mlx-lm model, asked for the likeliest next tokens after a path."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm import load as mlx_load

from bus.errors import BadSetup
from bus.messages import Sampling
from bus.packed import MAX_SUPPORT, Proposal
from bus.vocabulary import Vocabulary
from drafter_mlx import proposals
from drafter_mlx import sampling as keyed
from drafter_mlx.cache import Reading, check_trimmable
from drafter_mlx.config import Config
from drafter_mlx.session import Child
from strategies.costs import Costs
from strategies.tree import DraftTree, Node

PREFILL_CHUNK = 512
MEASURED_WIDTHS = (1, 2, 4, 8, 16)


class Rope:
    """A model's rotary embedding, with a position for each row of a step.

    mlx-lm's take one offset for each entry of a batch, so rows become entries.
    """

    def __init__(self, rope: Any) -> None:
        self._rope = rope
        self.positions: mx.array | None = None

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """`x` is `[1, heads, rows, dim]`."""
        if self.positions is None:
            turned: mx.array = self._rope(x, offset=offset)
            return turned
        return self._rope(x.transpose(2, 1, 0, 3), offset=self.positions).transpose(2, 1, 0, 3)


class DraftModel:
    """A draft model and its tokenizer."""

    def __init__(self, network: Any, tokenizer: Any) -> None:
        self.network = network
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary.of(tokenizer.get_vocab())
        self._ropes = _wrap_ropes(network)
        self.batches = bool(self._ropes) and self._agrees_with_itself()
        """False where rows of one step cannot have positions of their own."""

    def reading(self) -> Reading:
        """An empty cache for a new session."""
        return Reading(self.network)

    def catch_up(self, reading: Reading, tree: DraftTree) -> bool:
        """Read one chunk of what `reading` lacks; False while a long prompt is not through.

        Between chunks the loop can answer the verifier.
        """
        reading.settle(tree)
        if tree.tip - reading.line <= PREFILL_CHUNK:
            return True
        chunk = tree.tokens[reading.line : reading.line + PREFILL_CHUNK]
        reading.forget(reading.line)
        self._run(reading, chunk, range(reading.line, reading.line + len(chunk)), "causal")
        mx.eval([layer.state for layer in reading.layers])
        reading.read_line(len(chunk))
        return False

    def expand(
        self,
        reading: Reading,
        tree: DraftTree,
        nodes: Sequence[Node],
        sampling: Sampling,
        count: int,
    ) -> list[list[Child]]:
        """The `count` likeliest choices of the target after each node, best first."""
        if not self.batches and len(nodes) > 1:
            return [self.expand(reading, tree, [node], sampling, count)[0] for node in nodes]
        reading.settle(tree)
        rows = self._adjusted(self._read(reading, tree, nodes), tree, nodes, sampling)
        positions = [node.position + 1 for node in nodes]
        return _best(keyed.scores(rows, sampling, positions), count)

    def draw(
        self,
        reading: Reading,
        tree: DraftTree,
        nodes: Sequence[Node],
        sampling: Sampling,
        count: int,
    ) -> tuple[list[list[Child]], list[Proposal | None]]:
        """`count` tokens after each node, drawn without replacement, and what from."""
        reading.settle(tree)
        rows = [self._read(reading, tree, [node]) for node in nodes] if not self.batches else []
        logits = mx.concatenate(rows) if rows else self._read(reading, tree, nodes)
        logits = self._adjusted(logits, tree, nodes, sampling)
        cut = keyed.filtered(logits.astype(mx.float32), sampling)
        found = [proposals.support(row) for row in _best(cut, MAX_SUPPORT)]
        drawn = [proposals.drawn(each, sampling.seed, node.position + 1, count)
                 for each, node in zip(found, nodes, strict=True)]  # fmt: skip
        return drawn, list(found)

    def _adjusted(
        self, rows: mx.array, tree: DraftTree, nodes: Sequence[Node], sampling: Sampling
    ) -> mx.array:
        """The logits after `nodes` of the ids that there are, with bias and penalties."""
        rows = rows[:, : self.vocabulary.size]
        if not sampling.adjusts:
            return rows
        paths = [[step.token for step in node.path()] for node in nodes]
        return keyed.adjusted(rows, tree.tally.adjustment(sampling, paths))

    def _read(self, reading: Reading, tree: DraftTree, nodes: Sequence[Node]) -> mx.array:
        """The logits after each of `nodes`, `[nodes, vocab]`."""
        fed = reading.feed(tree, nodes)
        first, line = reading.place.filled, tree.tip - reading.line
        ends = [len(fed.tokens)] if self.batches else range(max(1, line), len(fed.tokens) + 1)
        parts = [
            self._run(reading, fed.tokens[start:end], fed.positions[start:end],
                      mx.array(fed.mask[start:end, : first + end]))
            for start, end in pairwise([0, *ends])
        ]  # fmt: skip
        reading.took(tree, fed)
        last = [fed.digests.index(node.digest) for node in nodes]
        rows = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        return rows if last == list(range(rows.shape[0])) else rows[mx.array(last)]

    def _run(
        self, reading: Reading, tokens: Sequence[int], positions: Sequence[int], mask: Any
    ) -> mx.array:
        """Feed rows at `positions`; their logits, `[rows, vocab]`."""
        reading.place.offset, reading.place.mask = positions[0], mask
        turned = mx.array(list(positions), dtype=mx.int32) if self.batches else None
        for rope in self._ropes:
            rope.positions = None if isinstance(mask, str) else turned
        logits = self.network(mx.array([list(tokens)]), cache=reading.layers)[0]
        reading.place.filled += len(tokens)
        return logits

    def _agrees_with_itself(self) -> bool:
        """True when a step over two branches says what reading each from the start says."""
        self.batches = True
        tree, reading = DraftTree(range(1, 14), 16), self.reading()
        left, right = tree.add(tree.root, 2, 1.0), tree.add(tree.root, 3, 1.0)
        assert left is not None and right is not None
        below = tree.add(right, 5, 1.0)
        assert below is not None
        self._read(reading, tree, [tree.root])
        together = self._read(reading, tree, [left, right, below])
        for rope in self._ropes:
            rope.positions = None
        alone = mx.stack([
            self.network(mx.array([tree.tokens + [step.token for step in node.path()]]))[0, -1]
            for node in (left, right, below)
        ])  # fmt: skip
        worst, scale = (
            mx.abs(x.astype(mx.float32)).max().item() for x in (together - alone, alone)
        )
        return bool(worst <= 0.05 * scale)

    def step_costs(self) -> Costs:
        """Seconds of a step by the number of nodes it reads, measured now."""
        costs = Costs()
        for width in MEASURED_WIDTHS if self.batches else MEASURED_WIDTHS[:1]:
            seconds = []
            for _ in range(4):
                tree, reading = DraftTree(range(1, 65), 64), self.reading()
                self.expand(reading, tree, [tree.root], Sampling(), 2)
                nodes = [tree.add(tree.root, token, 1.0) for token in range(width)]
                began = time.perf_counter()
                self.expand(reading, tree, [node for node in nodes if node], Sampling(), 2)
                seconds.append(time.perf_counter() - began)
            costs.saw(width, min(seconds))  # what else the machine does only adds
        return costs


def _best(scores: mx.array, count: int) -> list[list[Child]]:
    """The `count` highest of each row `[rows, vocab]`, with their chances by softmax."""
    count = min(count, scores.shape[1])
    total = mx.logsumexp(scores, axis=-1, keepdims=True)
    if mx.default_device().type == mx.DeviceType.cpu:  # where numpy sorts faster than MLX
        high = np.array(scores)
        best = np.argpartition(-high, count - 1, axis=-1)[:, :count]
        value = np.take_along_axis(high, best, axis=-1)
    else:
        ids = mx.argpartition(-scores, kth=count - 1, axis=-1)[:, :count]
        best, value = np.array(ids), np.array(mx.take_along_axis(scores, ids, axis=-1))
    with np.errstate(invalid="ignore"):  # of infinities, which are left out
        chances = np.exp(value - np.array(total))
    found = []
    for row, high, chance in zip(best, value, chances, strict=True):
        order = np.lexsort((row, -high))
        sound = np.isfinite(high) & np.isfinite(chance)
        good = [(int(row[i]), float(chance[i])) for i in order if sound[i]]
        found.append(good or [(0, 0.0)])  # a broken draft guesses wrong, which harms nobody
    return found


def _wrap_ropes(network: Any) -> list[Rope]:
    """Give every attention layer a `Rope` of our own."""
    ropes = []
    for module in network.modules():
        for name in ("rope", "rotary_emb"):
            own = getattr(module, name, None)
            if own is not None and callable(own) and not isinstance(own, Rope):
                ropes.append(Rope(own))
                setattr(module, name, ropes[-1])
    return ropes


def load(config: Config) -> DraftModel:
    """The draft that `config` names; BadSetup with what to do when that fails."""
    try:
        network, tokenizer = mlx_load(
            config.model,
            tokenizer_config={"trust_remote_code": config.trust_remote_code},
            trust_remote_code=config.trust_remote_code,
        )[:2]
    except Exception as error:  # mlx-lm raises whatever its readers do
        reason = str(error).strip().split("\n")[0]
        raise BadSetup(
            f"cannot load the draft {config.model!r}: {reason}; give a folder with config.json, "
            "*.safetensors and a tokenizer, or a hub id such as mlx-community/Qwen3-0.6B-4bit"
        ) from None
    dtype = config.dtype
    if dtype == "auto" and mx.default_device().type == mx.DeviceType.cpu:
        dtype = "float32"
    if dtype != "auto":
        network.set_dtype(getattr(mx, dtype))
    check_trimmable(network)
    model = _fitted(config, network, tokenizer)
    rows = network(mx.array([[0]])).shape[-1]
    if rows < model.vocabulary.size:
        raise BadSetup(
            f"the tokenizer of {config.model!r} has more ids than the model's {rows} rows: "
            "they do not belong together"
        )
    return model


def _fitted(config: Config, network: Any, tokenizer: Any) -> DraftModel:
    try:
        return DraftModel(network, tokenizer)
    except Exception as error:  # a model that wants another kind of cache fails in its own way
        reason = str(error).strip().split("\n")[0]
        raise BadSetup(
            f"the draft {config.model!r} does not run with draftbus's cache: {reason}; use a draft "
            "with full attention in every layer, such as Llama or Qwen3"
        ) from None
