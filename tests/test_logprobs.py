"""Logprobs: those of the raw target, whatever was drafted, kept over repeats and resumes."""

import json
import random
import time

import numpy as np
import pytest
import torch
from fakes import END, PEER, Verifier, guess, hello, opening
from msgspec.structs import replace
from peers import Peer, random_guesses, silent
from test_lossless import complete
from test_target_model import path_to, prefill, random_tree, rows, small

from bus import codec
from bus.errors import BadSetup
from bus.messages import Commit, Open, Sampling
from bus.packed import Ids, Logprob, Logprobs
from drafter_mlx.config import Drafts
from drafter_mlx.rows import Encoder, OutFile, make_job
from drafter_mlx.session import Request, Session
from strategies import load
from strategies.drafting import Options
from strategies.tree import DraftTree
from verifier_cuda import session as session_module
from verifier_cuda.registry import Reply
from verifier_cuda.view import View


@torch.inference_mode()
def by_transformers(network, prompt: list[int], text: list[int]) -> np.ndarray:
    """Logprobs of the tokens after each place of a text, `[text, vocab]`."""
    logits = network(input_ids=torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1).numpy()


def agree(told: list[dict], network, prompt: list[int], text: list[int], top: int) -> None:
    wanted = by_transformers(network, prompt, text)
    assert [entry["id"] for entry in told] == text
    for entry, row in zip(told, wanted, strict=True):
        assert entry["logprob"] == pytest.approx(row[entry["id"]], abs=1e-4)
        likely = [each["logprob"] for each in entry["top"]]
        assert likely == pytest.approx(np.sort(row)[::-1][:top].tolist(), abs=1e-4)
        assert likely == pytest.approx([row[each["id"]] for each in entry["top"]], abs=1e-4)


def told_to_a_peer(address: str, prompt: list[int], sampling: Sampling, guess) -> list[Logprob]:
    """Logprobs, with five likeliest each, of a text that is drafted for by `guess`."""
    peer, tree = Peer(address), DraftTree(prompt, 64)
    peer.say(Open(7, Ids(prompt), Ids(), sampling, logprobs=5))
    told: list[Logprob] = []
    finish, until = None, time.monotonic() + 60
    while finish is None:
        assert time.monotonic() < until, "the session did not end"
        peer.socket.wait(0.5)
        for commit in peer.socket.drain():
            tree.advance(commit.tokens)
            told += commit.logprobs
            finish = commit.finish
            draft = guess(tree)
            if draft is not None and finish is None:
                peer.say(draft)
    peer.close()
    return told


# Through real processes --------------------------------------------------------------


def test_logprobs_are_the_log_softmax_of_transformers(verifier, reference, prompts, tmp_path):
    common = {"prompt_ids": prompts[6], "max_tokens": 40, "lockstep": True}
    told = [
        {"logprobs": 3, "drafting": "tree"},
        {"logprobs": 0, "drafting": "fixed", "temperature": 0.8, "top_k": 4, "seed": 5},
        {"logprobs": 20, "temperature": 0.8, "repetition_penalty": 1.3, "logit_bias": {"5": 3.0}},
        {"logprobs": 1, "acceptance": "threshold:0.05"},
        {"logprobs": 1, "acceptance": "probabilistic", "temperature": 1.0},
    ]
    got = complete(verifier, tmp_path, [{**common, **each} for each in (*told, {})])
    for row, answer in zip(told, got, strict=False):
        text = answer["token_ids"]
        agree(answer["logprobs"], reference.network, prompts[6], text, row["logprobs"])
        assert answer["timings"]["draft_n_accepted"] > 0
    assert "logprobs" not in got[-1]
    assert got[-1]["token_ids"] == got[0]["token_ids"], "to ask for them changes nothing"


def test_logprobs_do_not_depend_on_drafts(verifier, prompts, tmp_path):
    row = {"prompt_ids": prompts[7], "max_tokens": 48, "temperature": 0.7, "logprobs": 5}
    drafted, *_ = complete(verifier, tmp_path, [{**row, "drafting": "tree", "lockstep": True}])
    assert drafted["timings"]["draft_n_accepted"] > 0
    for guesses in (silent, random_guesses(2)):
        told = told_to_a_peer(verifier, prompts[7], Sampling(48, 0.7), guesses)
        for ours, entry in zip(told, drafted["logprobs"], strict=True):
            assert ours.value == pytest.approx(entry["logprob"], abs=1e-5)
            pairs = [
                (each["id"], pytest.approx(each["logprob"], abs=1e-5)) for each in entry["top"]
            ]
            assert [*ours.top] == pairs


def test_what_was_committed_before_has_none_and_the_rest_has_its_own(
    verifier, reference, prompts, tmp_path
):
    row = {"prompt_ids": prompts[6], "max_tokens": 24}
    whole = reference.continue_(prompts[6], Sampling(24))
    flags = ("--logprobs", "2")
    (got,) = complete(verifier, tmp_path, [{**row, "committed_ids": whole[:9]}], *flags)
    assert got["token_ids"] == whole
    assert got["logprobs"][:9] == [None] * 9
    prompt, text = prompts[6] + whole[:9], whole[9:]
    agree(got["logprobs"][9:], reference.network, prompt, text, 2)


def test_resume_keeps_the_logprobs_of_the_earlier_run(verifier, reference, prompts, tmp_path):
    row = {"prompt_ids": prompts[6], "max_tokens": 24, "logprobs": 1}
    (whole,) = complete(verifier, tmp_path, [row])
    cut = {**whole, "finish_reason": "error", "token_ids": whole["token_ids"][:7]}
    cut["logprobs"] = [None, *whole["logprobs"][1:7]]
    (tmp_path / "out.jsonl").write_text(json.dumps(cut) + "\n")
    (got,) = complete(verifier, tmp_path, [row], "--resume")
    assert got["token_ids"] == whole["token_ids"]
    assert got["logprobs"] == [None, *whole["logprobs"][1:]]


# The verifier ------------------------------------------------------------------------


@pytest.mark.parametrize("ragged", [True, False])
def test_rows_of_a_tree_have_the_logprobs_of_rows_alone(ragged):
    rng, model = random.Random(3), small(ragged=ragged)
    prompt = [rng.randrange(97) for _ in range(30)]
    parents = random_tree(rng, 12)
    tokens = [prompt[-1], *(rng.randrange(97) for _ in parents[1:])]
    prefill(model, 0, prompt[:-1])
    (view,) = model.forward([rows(0, 29, tokens, parents)])
    together = view.logprobs(range(12), tokens, 4)
    for row in range(12):
        path = prompt[:-1] + [tokens[at] for at in path_to(parents, row)]
        prefill(model, 1, path[:-1])
        (alone,) = model.forward([rows(1, len(path) - 1, path[-1:], [0])])
        (wanted,) = alone.logprobs([0], [tokens[row]], 4)
        assert together[row].value == pytest.approx(wanted.value, abs=1e-5)
        for (token, value), (name, other) in zip(together[row].top, wanted.top, strict=True):
            assert token == name and value == pytest.approx(other, abs=1e-5)


def test_what_no_message_can_hold_is_told_as_very_unlikely():
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [torch.nan, 0.0, 1.0]])
    told = View([], logits).logprobs([0, 0, 1], [1, 2, 0], 20)
    assert told[0].value == told[2].value == -9999.0
    assert [token for token, _ in told[0].top] == [2, 0, 1], "no more than there are"
    assert Logprobs.unpack(Logprobs(told).pack()) == tuple(told)


def running(**fields) -> tuple[Verifier, Open, list[Commit]]:
    """A session that was told logprobs from pass to pass, and what was said."""
    verifier = Verifier()
    opened = opening(logprobs=2, max_tokens=12, ignore_eos=True, **fields)
    verifier.say(hello())
    verifier.say(opened)
    said: list[Commit] = []
    for turn in range(40):
        text = verifier.session().tree.tokens
        foreseen = [verifier.voice.next(text, opened.sampling)]
        foreseen.append(verifier.voice.next([*text, *foreseen], opened.sampling))
        if turn % 2:
            verifier.say(guess(text, foreseen))
        said += [reply.message for reply in verifier.step(100.0 + turn)]
        if verifier.session().finish:
            return verifier, opened, said
    raise AssertionError("it does not end")


def test_each_token_has_the_logprob_of_the_row_that_chose_it():
    _, _, said = running()
    assert {commit.accepted for commit in said} == {0, 2}
    for commit in said:
        wanted = [-1 - token - row / 64 for row, token in enumerate(commit.tokens)]
        assert [each.value for each in commit.logprobs] == wanted
        assert all(each.top == ((0, -1.0), (1, -1.0)) for each in commit.logprobs)


@pytest.mark.parametrize("known", [0, 1, 5, 12])
def test_a_repeat_says_the_logprobs_again(known):
    verifier, opened, said = running()
    text = [token for commit in said for token in commit.tokens]
    told = [each for commit in said for each in commit.logprobs]
    (again,) = verifier.say(replace(opened, committed=Ids(text[:known])))
    assert again == Commit(1, 3 + known, Ids(text[known:]), finish="length",
                           logprobs=Logprobs(told[known:]))  # fmt: skip


@pytest.mark.parametrize("known", [0, 2, 4, 6])
def test_a_repeat_says_none_of_what_came_with_the_open(known):
    text = [token for commit in running()[2] for token in commit.tokens]
    verifier, opened, said = running(committed=text[:4])
    told = [each for commit in said for each in commit.logprobs]
    (again,) = verifier.say(replace(opened, committed=Ids(text[:known])))
    assert again.tokens == tuple(text[known:])
    assert again.logprobs == tuple(told[max(0, known - 4) :])


def test_a_session_with_other_logprobs_is_another():
    verifier, opened, _ = running()
    (begun,) = verifier.say(replace(opened, logprobs=None))
    assert begun == Commit(1, 3, Ids())


def test_a_repeat_too_long_for_a_message_comes_in_parts(monkeypatch):
    verifier, opened, said = running()
    monkeypatch.setattr(session_module, "MAX_PAYLOAD", 1000 + 5 * 28)
    made = Session(1, request(logprobs=2), load("drafting", "fixed")(Options()), 8)
    sizes = []
    while made.finish is None:
        (part,) = verifier.say(replace(opened, committed=Ids(made.committed)))
        sizes.append(len(part.tokens))
        made.on_commit(codec.decode(codec.encode(part)), 0.0)
    assert sizes == [5, 5, 2]
    assert made.logprobs == [each for commit in said for each in commit.logprobs]


def test_a_held_commit_keeps_its_logprobs():
    verifier, _, said = running()
    verifier.registry.hold(Reply(PEER, said[-1]))
    (held,) = verifier.registry.held()
    assert held.message.logprobs == said[-1].logprobs != ()


# The drafter -------------------------------------------------------------------------


def request(**fields) -> Request:
    return Request(Ids([3, 1, 4]), Sampling(12, ignore_eos=True), **fields)


A, B, C = Logprob(-1.0), Logprob(-2.0, ((5, -0.5),)), Logprob(-3.0)


def test_the_drafter_asks_and_keeps_what_it_is_told_token_by_token():
    asked = request(logprobs=1, committed=Ids([9, 9]), told=(A, None))
    made = Session(1, asked, load("drafting", "fixed")(Options()), 8)
    assert made.open().logprobs == 1
    made.on_commit(Commit(1, 5, Ids([5, 6]), logprobs=Logprobs([B, C])), 0.0)
    assert made.logprobs == [A, None, B, C]
    made.on_commit(Commit(1, 4, Ids([9, 5, 6, 7]), logprobs=Logprobs([B, C, A])), 0.0)
    assert made.logprobs == [A, None, B, C, A], "a repeat says what is known"
    made.on_commit(Commit(1, 8, Ids([8, END])), 0.0)
    made.on_commit(Commit(1, 10, Ids([2]), logprobs=Logprobs([A, B, C])), 0.0)
    assert made.logprobs == [A, None, B, C, A, None, None, C]
    assert len(made.logprobs) == len(made.committed)


KEPT = {"id": 7, "logprob": -0.5, "top": [{"id": 5, "logprob": -0.25}]}


def kept(tmp_path, logprobs: object) -> OutFile:
    row = {"prompt_ids": [5, 6], "token_ids": [7, 8], "finish_reason": "error"}
    (tmp_path / "out.jsonl").write_text(json.dumps({**row, "logprobs": logprobs}) + "\n")
    return OutFile(tmp_path / "out.jsonl", True)


def test_kept_logprobs_are_gone_on_from(tmp_path):
    encoder = Encoder(list, 100)
    job = make_job(0, {"prompt_ids": [5, 6]}, Sampling(), Drafts(), encoder, 1)
    (todo,) = kept(tmp_path, [KEPT, None]).begin([job])
    assert todo.request.told == (Logprob(-0.5, ((5, -0.25),)), None)
    assert todo.request.logprobs == 1


@pytest.mark.parametrize(
    "bad", [5, [], [None], [KEPT, None, None], [None, KEPT], [{"id": 7}, None], ["x", None]]
)
def test_kept_logprobs_of_another_shape_are_named_and_nothing_is_lost(bad, tmp_path):
    with pytest.raises(BadSetup, match=r"out.jsonl:1: logprobs: "):
        kept(tmp_path, bad)
    assert json.loads((tmp_path / "out.jsonl").read_text())["logprobs"] == bad
