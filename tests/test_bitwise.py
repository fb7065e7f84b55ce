"""On a CPU the last bit of a row's logits does not depend on drafts, or on other sessions.

A plain chain of passes, one row each, says what every row has to be. The same text
is then followed through random trees: the rows on it, wherever the layout puts
them, and what is written after their compaction, have to be equal bit for bit.
"""

import random
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from bench.pair import TARGET
from bus.messages import Sampling
from bus.vocabulary import Vocabulary
from strategies.tree import DraftTree, Node
from verifier_cuda import attention
from verifier_cuda.config import Config
from verifier_cuda.layout import BLOCK
from verifier_cuda.linear import can_pack, pack
from verifier_cuda.model import TargetModel, load
from verifier_cuda.planner import Pace, select
from verifier_cuda.scheduler import Block, Keep, chain

VOCAB = 97
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
    # A multiple of 32, as every real one is: PyTorch's SiLU treats the rest of a pass apart.
    "intermediate_size": 96,
}  # fmt: skip
NETWORKS = {
    "llama": LlamaConfig(**SMALL, head_dim=8),
    "qwen3": Qwen3Config(**SMALL, head_dim=24),
}
DTYPES = [torch.float32, torch.bfloat16]


def packed(name: str, dtype: torch.dtype, sessions: int = 3) -> TargetModel:
    if name == "pair":
        named = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[dtype]
        limits = {"max_sessions": sessions, "max_model_len": 512}
        return load(Config(str(TARGET), device="cpu", dtype=named, **limits, max_width=40))
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(NETWORKS[name], dtype=dtype).eval()
    if not can_pack(network):
        pytest.skip(f"oneDNN has no kernels for {dtype} on this machine")
    pack(network)
    network.set_attn_implementation(attention.NAME)
    return TargetModel(network, Vocabulary(b"", VOCAB), sessions, 512, 40)


@dataclass
class Story:
    """A text in a slot, and the logits of each of its rows by a plain chain of passes."""

    slot: int
    tokens: list[int]
    rows: torch.Tensor
    prompt: int
    tip: int = 0

    def begin(self, model: TargetModel) -> None:
        """Read the prompt, but for its last token."""
        self.tip = self.prompt
        read = self.tokens[: self.tip - 1]
        model.forward([Block(self.slot, 0, read, chain(len(read)), range(len(read)), None)])

    def grown(self, rng: random.Random, nodes: int) -> DraftTree:
        """A random tree below the tip in which the text, or a part of it, is a path."""
        tree = DraftTree(self.tokens[: self.tip], 512)
        on_text, likely = rng.random(), rng.choice([0.5, 0.8, 0.95])
        path: list[Node] = [tree.root]
        while len(tree) < nodes:
            parent = path[-1] if rng.random() < on_text else rng.choice([tree.root, *tree.nodes()])
            right = parent is path[-1] and rng.random() < 0.5
            token = self.tokens[parent.position + 1] if right else rng.randrange(VOCAB)
            node = tree.add(parent, token, rng.uniform(likely, 1.0))
            while (ahead := path[-1].child(self.tokens[path[-1].position + 1])) is not None:
                path.append(ahead)
            assert node is not None
        return tree


def told(model: TargetModel, slot: int, rng: random.Random, prompt: int, text: int) -> Story:
    tokens = [rng.randrange(VOCAB) for _ in range(prompt + text)]
    story = Story(slot, tokens, torch.empty(0), prompt)
    story.begin(model)
    rows = [
        model.logits([Block(slot, place, [tokens[place]], [0], [place], Sampling())])[0][0]
        for place in range(prompt - 1, len(tokens))
    ]
    story.rows = torch.stack(rows)
    return story


def follow(model: TargetModel, stories: list[Story], rng: random.Random, width: int) -> int:
    """Tell all stories again through trees of up to `width` rows; rows that lay on a branch."""
    strayed = 0
    for story in stories:
        story.begin(model)
    while open_ := [s for s in stories if s.tip + width < len(s.tokens)]:
        together = [s for s in open_ if s is open_[0] or rng.random() < 0.8]
        rng.shuffle(together)
        chosen = [
            select(
                s.grown(rng, rng.randint(1, 2 * width)), rng.randint(1, width), width, Pace().chance
            )
            for s in together
        ]
        logits = model.logits(
            [
                Block(s.slot, s.tip - 1, c.rows.tokens, c.rows.parents, c.places, Sampling())
                for s, c in zip(together, chosen, strict=True)
            ]
        )
        for number, (story, selection) in enumerate(zip(together, chosen, strict=True)):
            row, path = 0, [0]
            while True:
                depth = len(path) - 1
                assert torch.equal(
                    logits[number][row], story.rows[story.tip - story.prompt + depth]
                ), (story.tip, depth, selection.places[row], len(selection.places))
                strayed += selection.places[row] != story.tip - 1 + depth
                right = story.tokens[story.tip + depth]
                ahead = [r for r in selection.rows.children(row)
                         if selection.rows.tokens[r] == right]  # fmt: skip
                if not ahead:
                    break
                row = ahead[0]
                path.append(row)
            places = tuple(selection.places[row] for row in path)
            model.keep([Keep(story.slot, story.tip - 1, places)])
            story.tip += len(path)
    return strayed


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "width", "rounds"),
    [("llama", 4, 3), ("llama", 9, 3), ("llama", 40, 6), ("qwen3", 17, 3), ("pair", 16, 1)],
)
def test_a_rows_last_bit_does_not_depend_on_the_tree_it_is_in(
    name: str, width: int, rounds: int, dtype: torch.dtype
) -> None:
    rng, model = random.Random(width), packed(name, dtype)
    story = told(model, 1, rng, BLOCK - 12, BLOCK + 24 + width)
    assert sum(follow(model, [story], rng, width) for _ in range(rounds)) > 10
    assert story.tip > 2 * BLOCK, "two blocks were begun"


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "width"), [("llama", 6), ("llama", 17), ("qwen3", 12)])
def test_a_rows_last_bit_does_not_depend_on_other_sessions(
    name: str, width: int, dtype: torch.dtype
) -> None:
    rng, model = random.Random(width), packed(name, dtype)
    stories = [told(model, slot, rng, prompt, 80) for slot, prompt in enumerate((20, 150, 360))]
    assert sum(follow(model, stories, rng, width) for _ in range(2)) > 10


def row(story: Story, place: int) -> Block:
    """Plain decoding of a story at `place`."""
    return Block(story.slot, place, [story.tokens[place]], [0], [place], Sampling())


@pytest.mark.parametrize("name", ["llama", "pair"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
def test_prompts_read_in_pieces_beside_rows_that_decode_change_no_bit(
    dtype: torch.dtype, name: str
) -> None:
    rng, model = random.Random(3), packed(name, dtype)
    stories = [told(model, slot, rng, prompt, 90) for slot, prompt in enumerate((30, 120, 230))]
    first, *others = stories
    first.begin(model)
    read, place = {story.slot: 0 for story in others}, first.prompt - 1
    while unread := [s for s in others if read[s.slot] < s.prompt - 1]:
        blocks = [row(first, place)]
        for story in unread:
            start = read[story.slot]
            count = min(rng.randint(1, 20), story.prompt - 1 - start)
            places = range(start, start + count)
            tokens = story.tokens[start : start + count]
            blocks.append(Block(story.slot, start, tokens, chain(count), places, None))
            read[story.slot] += count
        rng.shuffle(blocks)
        found = {block.slot: rows for block, rows in zip(blocks, model.logits(blocks), strict=True)}
        assert torch.equal(found[0][0], first.rows[place - first.prompt + 1]), place
        place += 1
    for story in others:
        assert torch.equal(model.logits([row(story, story.prompt - 1)])[0][0], story.rows[0])
