"""The target's engine: trees of rows in fixed slots say what plain forwards say."""

import copy
import random

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from bus.messages import Sampling
from bus.vocabulary import Vocabulary
from strategies.sampling import choose
from verifier_cuda import attention
from verifier_cuda.batch import ancestry
from verifier_cuda.layout import Layout
from verifier_cuda.linear import PackedLinear, can_pack, pack
from verifier_cuda.model import TargetModel
from verifier_cuda.scheduler import Block, Keep

GREEDY = Sampling()
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SMALL = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 512}  # fmt: skip


def chain(count: int) -> list[int]:
    return [max(0, row - 1) for row in range(count)]


def small(
    config_type=LlamaConfig, sessions: int = 3, length: int = 256, ragged: bool = False, **extra
) -> TargetModel:
    """A random model of some architecture, in float32 on the CPU."""
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(
        config_type(**{**SMALL, **extra}), attn_implementation="sdpa"
    ).eval()
    if ragged:
        network.set_attn_implementation(attention.NAME)
    return TargetModel(network, Vocabulary(b"", SMALL["vocab_size"]), sessions, length, 16)


def read(slot: int, tokens: list[int], start: int = 0) -> Block:
    """A piece of text whose logits nobody needs."""
    places = range(start, start + len(tokens))
    return Block(slot, start, tokens, chain(len(tokens)), places, None)


def rows(
    slot: int, start: int, tokens: list[int], parents: list[int], sampling: Sampling = GREEDY
) -> Block:
    """A tree of rows, each where the layout has it."""
    layout, depths, places = Layout(start), [0], [start]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
        place = layout.place(depths[-1], layout.branch(places[parent], depths[parent]))
        assert place is not None
        places.append(place)
    return Block(slot, start, tokens, parents, places, sampling)


def prefill(model: TargetModel, slot: int, tokens: list[int]) -> None:
    model.forward([read(slot, tokens)])


def random_tree(rng: random.Random, count: int) -> list[int]:
    return [0, *(rng.randrange(row) for row in range(1, count))]


def path_to(parents: list[int], row: int) -> list[int]:
    rows = [row]
    while rows[-1]:
        rows.append(parents[rows[-1]])
    return rows[::-1]


@torch.inference_mode()
def plain_logits(model: TargetModel, tokens: list[int]) -> torch.Tensor:
    own = model.network.config._attn_implementation
    model.network.set_attn_implementation("sdpa")
    try:
        return model.network(input_ids=torch.tensor([tokens])).logits[0, -1]
    finally:
        model.network.set_attn_implementation(own)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_every_row_of_a_tree_has_the_logits_of_its_own_path(seed, ragged):
    rng = random.Random(seed)
    model = small(num_key_value_heads=2, ragged=ragged)
    prompt = [rng.randrange(97) for _ in range(rng.randint(2, 60))]
    prefill(model, 1, prompt[:-1])
    parents = random_tree(rng, rng.randint(1, 16))
    tokens = [prompt[-1], *(rng.randrange(97) for _ in parents[1:])]
    logits = model.logits([rows(1, len(prompt) - 1, tokens, parents)])[0]
    for row in range(len(tokens)):
        path = prompt[:-1] + [tokens[i] for i in path_to(parents, row)]
        torch.testing.assert_close(logits[row], plain_logits(model, path), atol=1e-4, rtol=0)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_cache_after_compaction_is_that_of_the_plain_sequence(seed, ragged):
    rng = random.Random(seed)
    model = small(num_key_value_heads=2, ragged=ragged)
    prompt = [rng.randrange(97) for _ in range(20)]
    prefill(model, 0, prompt[:-1])
    parents = random_tree(rng, 12)
    tokens = [prompt[-1], *(rng.randrange(97) for _ in parents[1:])]
    block = rows(0, 19, tokens, parents)
    model.forward([block])
    kept = path_to(parents, rng.randrange(12))
    model.keep([Keep(0, 19, tuple(block.places[row] for row in kept))])
    text = prompt[:-1] + [tokens[row] for row in kept]
    prefill(model, 2, text)
    for layer in model.cache.layers:
        for state in (layer.keys, layer.values):
            torch.testing.assert_close(
                state[0, :, : len(text)], state[2, :, : len(text)], atol=1e-5, rtol=0
            )


def test_a_prompt_read_in_chunks_is_read_as_at_once():
    model = small()
    tokens = list(range(1, 90))
    prefill(model, 0, tokens)
    for start, end in ((0, 7), (7, 40), (40, 41), (41, 89)):
        model.forward([read(1, tokens[start:end], start)])
    for layer in model.cache.layers:
        torch.testing.assert_close(layer.keys[0, :, :89], layer.keys[1, :, :89], atol=1e-5, rtol=0)


@pytest.mark.parametrize("ragged", [True, False])
def test_sessions_in_one_pass_say_what_each_says_alone(ragged):
    model = small(num_key_value_heads=2, ragged=ragged)
    rng = random.Random(5)
    blocks = []
    for slot, length in enumerate((3, 50, 200)):
        prompt = [rng.randrange(97) for _ in range(length)]
        prefill(model, slot, prompt[:-1])
        parents = random_tree(rng, 2 + 4 * slot)
        tokens = [prompt[-1], *(rng.randrange(97) for _ in parents[1:])]
        blocks.append(rows(slot, length - 1, tokens, parents))
    together = model.logits([blocks[2], blocks[0], blocks[1]])
    for number, block in enumerate((blocks[2], blocks[0], blocks[1])):
        alone = model.logits([block])[0]
        torch.testing.assert_close(together[number], alone, atol=1e-4, rtol=0)


def test_prompts_are_read_beside_rows_that_decode():
    model = small(num_key_value_heads=2, ragged=True)
    prompt, other = list(range(1, 30)), list(range(40, 70))
    prefill(model, 0, prompt[:-1])
    block = rows(0, 28, [prompt[-1], 7], [0, 0])
    together = model.logits([read(1, other[:-1]), block, read(2, other[:5])])
    assert [len(each) for each in together] == [0, 2, 0]
    torch.testing.assert_close(together[1][0], plain_logits(model, prompt), atol=1e-4, rtol=0)
    after = model.logits([rows(1, 29, other[-1:], [0])])[0]
    torch.testing.assert_close(after[0], plain_logits(model, other), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("config_type", "extra"),
    [
        (LlamaConfig, {}),
        (Qwen3Config, {"head_dim": 8, "num_key_value_heads": 2}),
        (GPTNeoXConfig, {}),
        (GPT2Config, {"n_positions": 512}),  # absolute positions
        (MistralConfig, {"sliding_window": None, "num_key_value_heads": 2}),
    ],
)
@pytest.mark.parametrize("ragged", [True, False])
def test_many_architectures_say_what_the_target_alone_says(config_type, extra, ragged):
    model = small(config_type, ragged=ragged, **extra)
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=3)
    prompt = list(range(5, 25))
    prefill(model, 0, prompt[:-1])
    block = rows(0, 19, [prompt[-1], 7, 8], [0, 0, 0], sampling)
    view, logits = model.forward([block])[0], model.logits([block])[0]
    for row, path in enumerate((prompt, [*prompt, 7], [*prompt, 8])):
        wanted = plain_logits(model, path)
        torch.testing.assert_close(logits[row], wanted, atol=1e-4, rtol=0)
        assert view.choice(row) == choose(np.asarray(wanted), sampling, len(path))


def test_a_session_fills_its_slot_to_the_last_token():
    model = small(sessions=1, length=64)
    prefill(model, 0, list(range(62)))
    parents = chain(2)
    logits = model.logits([rows(0, 62, [62, 63], parents)])[0]
    torch.testing.assert_close(logits[1], plain_logits(model, list(range(64))), atol=1e-4, rtol=0)


def test_ids_beyond_the_tokenizer_are_never_chosen():
    network = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL)).eval()
    model = TargetModel(network, Vocabulary(b"", 10), 1, 64, 16)
    for token in range(10):
        view = model.forward([rows(0, 0, [token], [0], Sampling(temperature=5.0, seed=token))])
        assert view[0].choice(0) < 10


@pytest.mark.parametrize(
    ("config_type", "extra"),
    [
        (LlamaConfig, {"tie_word_embeddings": True}),
        (LlamaConfig, {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
        (Qwen3Config, {"head_dim": 24, "num_key_value_heads": 2}),
        (GPTNeoXConfig, {}),
    ],
)
@pytest.mark.parametrize("ready", [True, False], ids=["packed", "plain linears"])
def test_packed_linears_and_own_attention_say_what_transformers_says(config_type, extra, ready):
    rng, model = random.Random(2), small(config_type, **extra)
    for name, weight in model.network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    plain = copy.deepcopy(model.network)
    assert can_pack(model.network)
    if ready:
        pack(model.network)
        assert any(isinstance(part, PackedLinear) for part in model.network.modules())
    model.network.set_attn_implementation(attention.NAME)
    model = TargetModel(model.network, model.vocabulary, 3, 256, 16)
    prompt = [rng.randrange(97) for _ in range(195)]
    prefill(model, 1, prompt[:-1])
    parents = random_tree(rng, 16)
    tokens = [prompt[-1], *(rng.randrange(97) for _ in parents[1:])]
    logits = model.logits([rows(1, 194, tokens, parents)])[0]
    for row in range(len(tokens)):
        path = prompt[:-1] + [tokens[i] for i in path_to(parents, row)]
        with torch.inference_mode():
            wanted = plain(input_ids=torch.tensor([path])).logits[0, -1]
        torch.testing.assert_close(logits[row], wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("unknown", ["softcap", "s_aux", "sliding_window"])
def test_attention_refuses_what_it_does_not_know(unknown):
    with pytest.raises(NotImplementedError, match=unknown):
        attention.attend(torch.nn.Identity(), *[torch.ones(1, 1, 4, 8)] * 4, **{unknown: 5})


def test_only_what_onednn_knows_is_packed():
    network = torch.nn.Sequential(torch.nn.Linear(8, 8))
    assert can_pack(network)
    assert not can_pack(network.to(torch.float16))
    assert not can_pack(network.to("meta", torch.float32))


def test_ancestry_of_a_tree():
    seen = ancestry([0, 0, 1, 0])
    assert seen.tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, False, False, True],
    ]
