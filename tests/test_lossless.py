"""The central claim, through real processes: the text is the target's own.

Whatever the drafter, its strategy, window and temperature: token for token what
transformers says about the target alone, in float32.
"""

import json
import signal
import subprocess
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from peers import Peer, random_guesses, silent

from bench import processes
from bench.pair import DRAFT, TARGET
from bus.messages import Sampling

GREEDY = Sampling(max_tokens=96)
DRAFTING = ("adaptive", "beam", "fixed", "lookup", "multi", "pipelined", "tree", "tree-lookup")
TEMPERATURES = ({"temperature": 0.0}, {"temperature": 0.7}, {"temperature": 1.0, "top_p": 0.9})


def complete(address: str, folder: Path, rows: list[dict], *flags: str) -> list[dict]:
    """Output rows of a real drafter process."""
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = processes.complete_command(
        address, DRAFT, ["--prompts", str(source), "--out", str(out), *flags]
    )
    done = subprocess.run(
        command, env=processes.environment(1), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in out.read_text().splitlines()]


@torch.inference_mode()
def generate(network, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    full = network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                            max_new_tokens=max_tokens, pad_token_id=0)  # fmt: skip
    return full[0, len(prompt) :].tolist()


def test_greedy_text_equals_transformers_generate(verifier, reference, prompts, tmp_path):
    rows = complete(verifier, tmp_path, [{"prompt_ids": p, "max_tokens": 96} for p in prompts],
                    "--concurrency", "4")  # fmt: skip
    assert len(rows) == len(prompts) >= 20
    for prompt, row in zip(prompts, rows, strict=True):
        assert row["token_ids"] == generate(reference.network, prompt, 96)
        assert row["finish_reason"] in ("stop", "length")
    assert sum(row["timings"]["draft_n_accepted"] for row in rows) > 0, "nothing was drafted"


@pytest.mark.parametrize("at_once", [1, 8])
def test_every_strategy_window_and_temperature_gives_the_text_of_the_target_alone(
    at_once, verifier, reference, prompts, tmp_path
):
    cases = list(product(DRAFTING, (1, 4, 16), range(len(TEMPERATURES))))
    rows = [
        {
            "prompt_ids": prompts[number // 3 % 3],
            "drafting": drafting,
            "window": window,
            "num_draft_tokens": window,
            "seed": 11 + number // 3 % 3,
            "max_tokens": 48,
            # On a busy machine drafts of the slower strategies may always come too late.
            "lockstep": window == 4 and drafting != "lookup",
            **TEMPERATURES[heat],
        }
        for number, (drafting, window, heat) in enumerate(cases)
    ]
    got = complete(verifier, tmp_path, rows, "--concurrency", str(at_once))
    known: dict[tuple, list[int]] = {}
    for number, (row, answer) in enumerate(zip(rows, got, strict=True)):
        key = (number // 3 % 3, cases[number][2])
        if key not in known:
            sampling = Sampling(48, row["temperature"], 0, row.get("top_p", 1.0), 0.0, row["seed"])
            known[key] = reference.continue_(row["prompt_ids"], sampling)
        assert answer["token_ids"] == known[key], row
    for name in DRAFTING:
        chosen = [a for a, case in zip(got, cases, strict=True) if case[0] == name]
        assert sum(a["timings"]["draft_n"] for a in chosen) > 0, f"{name} never drafted"


def test_probabilistic_is_exact_at_temperature_zero_and_accepts_above(
    verifier, reference, prompts, tmp_path
):
    common = {"prompt_ids": prompts[0], "max_tokens": 48, "acceptance": "probabilistic"}
    rows = [{**common, "drafting": name, "lockstep": True, **TEMPERATURES[heat]}
            for name in ("pipelined", "tree", "multi") for heat in (0, 1)]  # fmt: skip
    got = complete(verifier, tmp_path, rows)
    plain = reference.continue_(prompts[0], Sampling(48))
    for row, answer in zip(rows, got, strict=True):
        if not row["temperature"]:
            assert answer["token_ids"] == plain
        assert answer["timings"]["draft_n_accepted"] > 0, row["drafting"]
        assert answer["metrics"]["draftbus"]["lossy"] is False


def test_lossy_acceptance_says_so_and_takes_more(verifier, reference, prompts, tmp_path):
    common = {"prompt_ids": prompts[1], "max_tokens": 64, "drafting": "fixed", "lockstep": True}
    names = ("exact", "threshold", "threshold:0.01", "typical")
    got = complete(verifier, tmp_path, [{**common, "acceptance": name} for name in names])
    assert got[0]["token_ids"] == reference.continue_(prompts[1], Sampling(64))
    assert [row["metrics"]["draftbus"]["lossy"] for row in got] == [False, True, True, True]
    taken = [row["metrics"]["speculative_decoding"]["mean_acceptance_length"] for row in got]
    assert taken[2] >= taken[1] >= taken[0]


def test_top_k_and_min_p_give_the_text_of_the_target_alone(verifier, reference, prompts, tmp_path):
    filters = ({"top_k": 5}, {"min_p": 0.1}, {"top_k": 20, "top_p": 0.8, "min_p": 0.02})
    rows = [{"prompt_ids": prompts[3], "max_tokens": 40, "temperature": 0.9, "seed": 2, **extra}
            for extra in filters]  # fmt: skip
    got = complete(verifier, tmp_path, rows, "--drafting", "tree")
    for extra, answer in zip(filters, got, strict=True):
        sampling = Sampling(40, 0.9, seed=2, **extra)
        assert answer["token_ids"] == reference.continue_(prompts[3], sampling)


def test_a_drafter_that_sends_random_tokens_leaves_the_text_unchanged(verifier, reference, prompts):
    for seed in range(3):
        peer = Peer(verifier)
        text = peer.complete(prompts[seed], GREEDY, random_guesses(seed))
        peer.close()
        assert text == generate(reference.network, prompts[seed], 96)


def test_a_drafter_that_sends_nothing_leaves_the_text_unchanged(verifier, reference, prompts):
    peer = Peer(verifier)
    text = peer.complete(prompts[0], GREEDY, silent)
    peer.close()
    assert text == generate(reference.network, prompts[0], 96)


def test_another_drafter_goes_on_where_one_vanished(verifier, reference, prompts):
    wanted = generate(reference.network, prompts[1], 96)
    first = Peer(verifier)
    begun = first.complete(prompts[1], GREEDY, random_guesses(0), at_most=20)
    first.close()
    second = Peer(verifier)
    text = second.complete(prompts[1], GREEDY, silent, committed=tuple(begun))
    second.close()
    assert 20 <= len(begun) < 96
    assert text == wanted


@pytest.mark.parametrize("heat", [0, 2])
def test_a_drafter_killed_in_mid_run_is_replaced_by_another_with_the_same_text(
    heat, verifier, reference, prompts, tmp_path
):
    sampling = {"max_tokens": 300, "ignore_eos": True, **TEMPERATURES[heat]}
    rows = [{"prompt_ids": prompt, **sampling} for prompt in prompts[:4]]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = processes.complete_command(
        verifier, DRAFT, ["--prompts", str(source), "--out", str(out)]
    )
    victim = subprocess.Popen(command, env=processes.environment(1), stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (out.exists() and out.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    kept = out.read_text().splitlines()
    assert 1 <= len(kept) < 4, "it was to be killed in the middle"
    got = complete(verifier, tmp_path, rows, "--resume")
    assert [json.dumps(row) for row in got[: len(kept)]] == kept, "finished rows stay as they were"
    for row, answer in zip(rows, got, strict=True):
        expected = Sampling(**{k: v for k, v in row.items() if k != "prompt_ids"})
        assert answer["token_ids"] == reference.continue_(row["prompt_ids"], expected)


def test_a_verifier_of_its_own_decodes_in_bfloat16(prompts, tmp_path):
    with processes.verifier(TARGET, ["--dtype", "bfloat16"], threads=1) as running:
        one = complete(running.address, tmp_path, [{"prompt_ids": prompts[0], "max_tokens": 32}])
    assert len(one[0]["token_ids"]) == 32 or one[0]["finish_reason"] == "stop"
