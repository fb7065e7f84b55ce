"""Bias and penalties: their meaning, the same in numpy, torch and MLX, and whose text counts."""

import importlib
import random
from typing import Any

import by_hand
import numpy as np
import pytest
import torch
from fakes import Verifier, guess, hello, opening
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, RepetitionPenaltyLogitsProcessor

from bench.pair import DRAFT
from bus.errors import Code
from bus.messages import Commit, Error, Sampling
from bus.packed import MAX_SUPPORT, Biases, Ids
from drafter_mlx.session import Request, Session
from strategies import load
from strategies import penalties as reference
from strategies.drafting import Options
from strategies.penalties import Tally
from strategies.sampling import filtered, scores
from strategies.tree import DraftTree
from verifier_cuda import sampling as torch_sampling
from verifier_cuda.view import View

VOCAB = 24
EVERYTHING = Sampling(
    repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=-0.4,
    logit_bias=Biases([(3, -100.0), (5, 2.5), (9, 0.1)]),
)  # fmt: skip
tokens = st.integers(0, VOCAB - 1)
texts = st.lists(tokens, max_size=12)
samplings = st.builds(
    Sampling,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.1, 1.3, 3.0]),
    presence_penalty=st.sampled_from([0.0, -1.5, 0.3, 2.0]),
    frequency_penalty=st.sampled_from([0.0, -2.0, 0.1, 1.0]),
    logit_bias=st.dictionaries(tokens, st.floats(-100, 100), max_size=4).map(
        lambda found: Biases(found.items())
    ),
)
many = settings(max_examples=150, deadline=None)


def normal(rows: int, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).normal(size=(rows, VOCAB)) * 4).astype(np.float32)


def made(sampling: Sampling, prompt: list[int], text: list[int], paths: list[list[int]]) -> Any:
    return Tally([*prompt, *text], len(prompt)).adjustment(sampling, paths)


def by_torch(logits: Any, adjustment: Any) -> Any:
    return torch_sampling.adjusted(torch.from_numpy(logits), adjustment).numpy()


def by_mlx(logits: Any, adjustment: Any) -> Any:
    core = pytest.importorskip("mlx.core")
    sampler = importlib.import_module("drafter_mlx.sampling")
    return np.array(sampler.adjusted(core.array(logits), adjustment))


every = pytest.mark.parametrize("adjusted", [reference.adjusted, by_torch, by_mlx])


# What they mean ----------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 10.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    logits, prompt, text = normal(1), [3, 5, 3], [7, 8, 7]
    sampling = Sampling(repetition_penalty=penalty)
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    wanted = processor(torch.tensor([prompt + text]), torch.from_numpy(logits.copy())).numpy()
    got = reference.adjusted(logits, made(sampling, prompt, text, [[]]))
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (Sampling(presence_penalty=0.5), {7: -0.5, 8: -0.5}),
        (Sampling(frequency_penalty=0.5), {7: -1.0, 8: -0.5}),
        (Sampling(presence_penalty=-1.0, frequency_penalty=0.25), {7: 0.5, 8: 0.75}),
        (Sampling(logit_bias=Biases([(3, 2.0), (4, -100.0)])), {3: 2.0, 4: -100.0}),
    ],
)
def test_presence_and_frequency_are_of_the_text_alone_and_a_bias_of_its_token(
    sampling: Sampling, wanted: dict[int, float]
) -> None:
    found = reference.adjusted(normal(1) * 0, made(sampling, [3, 5, 3], [7, 8, 7], [[]]))[0]
    assert {token: found[token] for token in np.flatnonzero(found)} == wanted


def test_the_bias_comes_before_the_repetition_penalty_and_that_before_the_others() -> None:
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=1.0, logit_bias=Biases([(0, 3.0)]))
    logits = np.full((1, VOCAB), -1.0, np.float32)
    assert reference.adjusted(logits, made(sampling, [1], [0], [[]]))[0, 0] == (-1 + 3) / 2 - 1


@every
@many
@given(samplings, texts, texts, st.lists(texts, min_size=1, max_size=5))
def test_every_row_is_adjusted_as_by_hand_for_its_own_path(
    adjusted: Any, sampling: Sampling, prompt: list[int], text: list[int], paths: list[list[int]]
) -> None:
    logits = normal(len(paths), len(text))
    got = adjusted(logits, made(sampling, prompt, text, paths))
    for row, path in enumerate(paths):
        wanted = by_hand.adjusted(logits[row], sampling, prompt, text + path)
        np.testing.assert_allclose(got[row], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("adjusted", [by_torch, by_mlx])
@many
@given(samplings, texts, texts, st.lists(texts, min_size=1, max_size=5))
def test_torch_and_mlx_adjust_as_numpy_to_the_last_bit(
    adjusted: Any, sampling: Sampling, prompt: list[int], text: list[int], paths: list[list[int]]
) -> None:
    logits, adjustment = normal(len(paths), 7), made(sampling, prompt, text, paths)
    wanted = reference.adjusted(logits, adjustment)
    assert adjusted(logits, adjustment).tobytes() == wanted.tobytes()


@every
def test_a_row_does_not_depend_on_the_others_to_the_last_bit(adjusted: Any) -> None:
    rng, logits = random.Random(0), normal(6)
    logits[:, ::2] = -0.0  # which a bias of 0 would turn into 0.0
    paths = [[rng.randrange(VOCAB) for _ in range(depth)] for depth in range(6)]
    together = adjusted(logits, made(EVERYTHING, [1, 2], [4, 4], paths))
    for row, path in enumerate(paths):
        alone = adjusted(logits[row : row + 1], made(EVERYTHING, [1, 2], [4, 4], [path]))
        assert together[row].tobytes() == alone[0].tobytes()


@every
def test_without_them_nothing_is_made_and_the_logits_are_the_very_same(adjusted: Any) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.5, stop_ids=(3,))
    tree = DraftTree([1, 2, 3], 8)
    assert tree.tally.adjustment(sampling, [[]]) is None
    assert tree.tally._counts == {}
    logits = normal(2)
    assert np.array_equal(adjusted(logits, None), logits)
    assert reference.adjusted(logits, None) is logits
    rows = torch.from_numpy(logits)
    assert torch_sampling.adjusted(rows, None) is rows


def test_a_tally_that_grew_with_its_text_is_one_made_afresh() -> None:
    rng, tree = random.Random(1), DraftTree([5, 6, 5, 7], 8, 2)
    for _ in range(20):
        tree.advance([rng.randrange(VOCAB) for _ in range(rng.randint(1, 3))])
        text = tree.tokens[2:]
        got = tree.tally.adjustment(EVERYTHING, [[], [4]])
        for ours, afresh in zip(got, made(EVERYTHING, [5, 6], text, [[], [4]]), strict=True):
            assert np.array_equal(ours, afresh)


# At the verifier ---------------------------------------------------------------------


def view(logits: Any, adjustment: Any, sampling: Sampling) -> View:
    raw = torch.from_numpy(logits)
    return View([], torch_sampling.adjusted(raw, adjustment), sampling, [], raw)


def test_distribution_and_likelihoods_are_of_the_adjusted_logits_and_logprobs_of_the_raw() -> None:
    sampling = Sampling(temperature=0.5, top_k=5, logit_bias=Biases([(2, -100.0)]))
    logits = normal(1)
    logits[0, 2] = 30.0
    shown = view(logits, made(sampling, [1], [], [[]]), sampling)
    assert shown.distribution(0)[2] == 0
    assert shown.likelihoods(0)[2] < 1e-20
    (told,) = shown.logprobs([0], [2], 1)
    assert told.value > -0.01 and told.top == ((2, told.value),)
    cut = filtered(by_hand.adjusted(logits[0], sampling, [1], []), sampling).astype(np.float64)
    wanted = np.exp(cut - cut.max())
    np.testing.assert_allclose(shown.distribution(0), wanted / wanted.sum(), atol=1e-7)


def test_rows_of_a_tree_each_get_the_counts_of_their_own_path() -> None:
    verifier = Verifier()
    verifier.say(hello())
    prompt, text = [3, 1, 4], [1, 5]
    fields = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.5}
    verifier.say(opening(prompt, committed=text, **fields))
    verifier.say(guess(prompt + text, [6, 5, 6, 5], parents=[0, 0, 1, 2]))
    verifier.step()  # reads the prompt
    (entry,) = verifier.scheduler.plan(9.0)
    block, logits = entry.block, normal(5)
    got = reference.adjusted(logits, block.adjustment)
    paths = {(): 0, (6,): 0, (5,): 0, (6, 6): 0, (5, 5): 0}
    for row in range(5):
        above, at = [], row
        while at:
            above.insert(0, block.tokens[at])
            at = block.parents[at]
        paths.pop(tuple(above))
        wanted = by_hand.adjusted(logits[row], block.sampling, prompt, text + above)
        np.testing.assert_allclose(got[row], wanted, rtol=1e-6, atol=1e-6)
    assert not paths, "a path has no row"


def test_a_session_without_them_gives_the_model_nothing() -> None:
    verifier = Verifier()
    verifier.say(hello())
    verifier.say(opening([5], temperature=0.7, top_p=0.9))
    (entry,) = verifier.scheduler.plan(9.0)
    assert entry.block.adjustment is None


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    verifier = Verifier()
    verifier.say(hello())
    (refused,) = verifier.say(opening(logit_bias=Biases([(16, 1.0)])))
    assert isinstance(refused, Error) and refused.code == Code.TOKEN_OUT_OF_RANGE
    (begun,) = verifier.say(opening(logit_bias=Biases([(15, 1.0)])))
    assert not isinstance(begun, Error)


# At the drafter ----------------------------------------------------------------------


def test_the_drafter_knows_what_of_its_tokens_is_text() -> None:
    request = Request(Ids([3, 1]), EVERYTHING, committed=Ids([4, 4]))
    session = Session(1, request, load("drafting", "fixed")(Options()), 8)
    session.on_commit(Commit(1, 4, Ids([5])), 0.0)
    got = session.tree.tally.adjustment(EVERYTHING, [[6]])
    for ours, wanted in zip(got, made(EVERYTHING, [3, 1], [4, 4, 5], [[6]]), strict=True):
        assert np.array_equal(ours, wanted)


@pytest.mark.parametrize("batches", [True, False], ids=["together", "row by row"])
@pytest.mark.parametrize("heat", [{}, {"temperature": 0.8, "seed": 4, "top_k": 50}])
def test_the_draft_guesses_by_logits_that_are_adjusted_for_each_path(heat, batches, monkeypatch):
    pytest.importorskip("mlx.core")
    from drafter_mlx import model as draft_model
    from drafter_mlx.config import Config

    draft = draft_model.load(Config("tcp://127.0.0.1:1", str(DRAFT)))
    monkeypatch.setattr(draft, "batches", batches)
    network = AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()
    prompt, text = list(range(40, 60)), [41, 70, 70]
    tree = DraftTree([*prompt, *text], 64, len(prompt))
    nodes = [tree.add(tree.root, token, 1.0) for token in (70, 80)]
    nodes.append(tree.add(nodes[0], 70, 1.0))
    for node in nodes:
        path = text + [step.token for step in node.path()]
        with torch.inference_mode():
            logits = network(input_ids=torch.tensor([prompt + path])).logits[0, -1].numpy()
        likely = Biases([(int(np.argmax(logits)), -100.0), (71, 4.0)])
        sampling = Sampling(repetition_penalty=1.4, frequency_penalty=1.0, presence_penalty=0.5,
                            logit_bias=likely, **heat)  # fmt: skip
        adjusted = by_hand.adjusted(logits, sampling, prompt, path)
        all_of_them = draft.expand(draft.reading(), tree, nodes, sampling, 4)
        wanted = scores(adjusted, sampling, node.position + 1)
        best = np.argsort(-wanted, kind="stable")[:4]
        assert [token for token, _ in all_of_them[nodes.index(node)]] == best.tolist()
        if heat:
            _, told = draft.draw(draft.reading(), tree, nodes, sampling, 2)
            kept = np.argsort(-filtered(adjusted, sampling), kind="stable")[:MAX_SUPPORT]
            assert {*told[nodes.index(node)].tokens} <= {*kept.tolist()}
            assert told[nodes.index(node)].tokens[0] == kept[0]
