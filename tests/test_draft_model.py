"""The draft: what mlx-lm says after a path, however the cache got there."""

import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]' on Linux")

from mlx_lm import load as mlx_load  # noqa: E402
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache  # noqa: E402

from bench.pair import DRAFT  # noqa: E402
from bus.errors import BadSetup  # noqa: E402
from bus.messages import Sampling  # noqa: E402
from drafter_mlx import model as draft_model  # noqa: E402
from drafter_mlx.cache import check_trimmable  # noqa: E402
from drafter_mlx.config import Config  # noqa: E402
from strategies.sampling import scores  # noqa: E402
from strategies.tree import DraftTree, Node  # noqa: E402

GREEDY = Sampling()


@pytest.fixture(scope="module")
def draft() -> draft_model.DraftModel:
    return draft_model.load(Config("tcp://127.0.0.1:1", str(DRAFT)))


@pytest.fixture(params=[True, False], ids=["together", "row by row"])
def batches(request, draft, monkeypatch) -> None:
    """With a position for each row of a step, and without."""
    monkeypatch.setattr(draft, "batches", request.param)


def text(tokens: list[int]) -> DraftTree:
    return DraftTree(tokens, 512)


def children(draft, reading, tree: DraftTree, node: Node, sampling=GREEDY, count=4):
    (found,) = draft.expand(reading, tree, [node], sampling, count)
    return found


def afresh(draft, tree: DraftTree, node: Node, sampling=GREEDY, count=4):
    """What an empty cache says after the whole sequence that ends with `node`."""
    whole = text(tree.tokens + [step.token for step in node.path()])
    return children(draft, draft.reading(), whole, whole.root, sampling, count)


def same(got, wanted) -> None:
    assert [token for token, _ in got] == [token for token, _ in wanted]
    np.testing.assert_allclose([c for _, c in got], [c for _, c in wanted], atol=1e-4)


def test_children_are_the_best_of_the_torch_model_in_order(draft):
    network = AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()
    tokens = list(range(40, 80))
    with torch.inference_mode():
        logits = network(input_ids=torch.tensor([tokens])).logits[0, -1].numpy()
    tree = text(tokens)
    for sampling in (GREEDY, Sampling(temperature=0.8, top_p=0.9, seed=4)):
        got = children(draft, draft.reading(), tree, tree.root, sampling, 3)
        wanted = np.argsort(-scores(logits, sampling, len(tokens)), kind="stable")[:3]
        assert [token for token, _ in got] == wanted.tolist()
        assert all(0 < chance <= 1 for _, chance in got)
        assert [c for _, c in got] == sorted((c for _, c in got), reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_any_nodes_at_once_in_any_order_say_what_a_fresh_cache_says(draft, batches, seed):
    rng = random.Random(seed)
    reading, tree = draft.reading(), text([rng.randrange(500) for _ in range(rng.randint(1, 30))])
    sampling = rng.choice([GREEDY, Sampling(temperature=0.9, seed=7)])
    wide = 0
    for _ in range(30):
        nodes = [tree.root, *tree.nodes()]
        leaves = [node for node in nodes if not node.children]
        chosen = rng.sample(leaves, min(len(leaves), rng.randint(1, 5)))
        wide += len(chosen) > 1
        for node, found in zip(
            chosen, draft.expand(reading, tree, chosen, sampling, 3), strict=True
        ):
            same(found, afresh(draft, tree, node, sampling, 3))
            for token, chance in found:
                tree.add(node, token, chance)
        if rng.random() < 0.5:  # the text goes on, as foreseen or not
            node, foreseen = tree.root, []
            while node.children and rng.random() < 0.7:
                node = rng.choice(node.children)
                foreseen.append(node.token)
            tree.advance([*foreseen, rng.randrange(500)] if rng.random() < 0.5 else foreseen)
    assert wide > 5


def test_nodes_may_be_asked_for_again(draft, batches):
    tree, reading = text([5, 6, 7]), draft.reading()
    first = children(draft, reading, tree, tree.root)
    same(children(draft, reading, tree, tree.root), first)
    left, right = tree.add(tree.root, 8, 1.0), tree.add(tree.root, 9, 1.0)
    below = tree.add(right, 8, 1.0)
    for node in (left, below, right, left, below):
        same(children(draft, reading, tree, node), afresh(draft, tree, node))


def test_what_is_read_is_read_once(draft, monkeypatch):
    tree, reading, rows = text(list(range(40))), draft.reading(), []
    real = draft._run
    monkeypatch.setattr(draft, "_run", lambda *said: rows.append(len(said[1])) or real(*said))
    nodes = [tree.root]
    for _ in range(3):
        draft.expand(reading, tree, nodes, GREEDY, 1)
        nodes = [tree.add(node, token, 1.0) for node in nodes for token in (1, 2)]
    assert rows == [40, 2, 4]
    rows.clear()
    tree.advance([2, 1])  # read already, and its two children with it
    draft.expand(reading, tree, [tree.root.child(1)], GREEDY, 1)
    assert rows == [1]
    assert reading.line == 42


def test_without_batching_each_row_is_run_alone(draft, monkeypatch):
    monkeypatch.setattr(draft, "batches", False)
    tree, reading = text([1, 2, 3]), draft.reading()
    draft.expand(reading, tree, [tree.root], GREEDY, 1)
    rows, real = [], draft._run
    monkeypatch.setattr(
        draft, "_run", lambda *said: rows.append((len(said[1]), said[2][0])) or real(*said)
    )
    nodes = [tree.add(tree.root, token, 1.0) for token in (4, 5)]
    draft.expand(reading, tree, nodes, GREEDY, 1)
    assert rows == [(1, 3), (1, 3)]


class Absolute:
    """A rotary embedding that does not take a position for each row."""

    def __init__(self, rope):
        self.rope = rope

    def __call__(self, x, offset=0):
        return self.rope(x, offset=int(mx.array(offset).reshape(-1)[0].item()))


def test_a_model_that_takes_one_position_a_step_is_found_out_and_fed_row_by_row():
    network, tokenizer = mlx_load(str(DRAFT))[:2]
    network.set_dtype(mx.float32)
    for layer in network.layers:
        layer.self_attn.rope = Absolute(layer.self_attn.rope)
    odd = draft_model.DraftModel(network, tokenizer)
    assert not odd.batches
    tree, reading = text(list(range(20))), odd.reading()
    for found in (odd.expand(reading, tree, [tree.root], GREEDY, 3) for _ in range(2)):
        nodes = [tree.add(tree.root, token, 1.0) for token, _ in found[0]]
    for node, found in zip(nodes, odd.expand(reading, tree, nodes, GREEDY, 3), strict=True):
        same(found, afresh(odd, tree, node, GREEDY, 3))


def test_the_tiny_draft_takes_several_nodes_a_step(draft):
    assert draft.batches
    widths = draft.step_costs().known()
    assert list(widths) == list(draft_model.MEASURED_WIDTHS)
    assert min(widths.values()) > 0


def test_a_long_prompt_is_read_in_chunks(draft, batches, monkeypatch):
    tree = text([number % 300 for number in range(100)])
    whole = afresh(draft, tree, tree.root)
    monkeypatch.setattr(draft_model, "PREFILL_CHUNK", 7)
    reading, calls = draft.reading(), 1
    while not draft.catch_up(reading, tree):
        calls += 1
        assert reading.line == reading.place.filled == 7 * (calls - 1)
    assert calls == 15, "14 chunks, and then two tokens are left"
    same(children(draft, reading, tree, tree.root), whole)


def test_a_text_that_leaves_the_tree_far_behind_is_caught_up_in_chunks(draft, monkeypatch):
    tree, reading = text(list(range(10))), draft.reading()
    draft.expand(reading, tree, [tree.root], GREEDY, 1)
    node = tree.add(tree.root, 3, 1.0)
    draft.expand(reading, tree, [node], GREEDY, 1)
    monkeypatch.setattr(draft_model, "PREFILL_CHUNK", 4)
    tree.advance([3, *range(20, 30)])
    turns = 0
    while not draft.catch_up(reading, tree):
        turns += 1
    assert turns == 2, "ten tokens, of which the last four are read with the tip"
    same(children(draft, reading, tree, tree.root), afresh(draft, tree, tree.root))


class Keeps:
    """A network that keeps the given kinds of state."""

    def __init__(self, *layers):
        self.layers = layers

    def make_cache(self):
        return list(self.layers)


def test_untrimmable_caches_are_refused_with_their_types_named():
    check_trimmable(Keeps(KVCache(), KVCache()))
    rotating = RotatingKVCache(max_size=4)
    rotating.offset = 10
    with pytest.raises(BadSetup, match=r"ArraysCache, RotatingKVCache.*cannot be rolled back"):
        check_trimmable(Keeps(KVCache(), rotating, ArraysCache(2)))


def test_a_rotating_cache_is_refused_before_it_has_rotated():
    with pytest.raises(BadSetup, match="RotatingKVCache"):
        check_trimmable(Keeps(RotatingKVCache(max_size=4)))


def test_a_wrong_model_path_is_one_line_that_says_what_to_give():
    with pytest.raises(BadSetup, match=r"cannot load the draft '/nowhere/model'.*hub id") as caught:
        draft_model.load(Config("tcp://127.0.0.1:1", "/nowhere/model"))
    assert "\n" not in str(caught.value)
