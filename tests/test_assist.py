"""A second drafter through real processes: it helps, it is counted, and it may vanish."""

import json
import signal
import subprocess
import sys
import time

import pytest
from test_lossless import complete

from bench import processes
from bench.pair import DRAFT, TARGET
from bus.messages import Sampling

SECRET = "two heads are better"


@pytest.fixture
def assistant(verifier):
    """A drafter that helps whoever knows the secret; its draft is the target itself."""
    command = [sys.executable, "-m", "drafter_mlx", "assist", "--verifier", verifier,
               "--model", str(TARGET), "--secret", SECRET, "--drafting", "pipelined"]  # fmt: skip
    running = subprocess.Popen(
        command, env=processes.environment(1), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert running.stdout.readline().startswith("ready")
    yield running
    running.kill()
    running.wait()
    running.stdout.close()


def rows_for(prompts: list[list[int]]) -> list[dict]:
    heats = ({"temperature": 0.0}, {"temperature": 0.8, "seed": 5})
    # On a busy machine the help may always come too late, unless it is waited for.
    return [{"prompt_ids": prompt, "max_tokens": 48, "drafting": "lookup", "lockstep": True, **heat}
            for prompt in prompts for heat in heats]  # fmt: skip


def expected(reference, rows: list[dict]) -> list[list[int]]:
    return [
        reference.continue_(
            row["prompt_ids"],
            Sampling(row["max_tokens"], row["temperature"], seed=row.get("seed", 0)),
        )
        for row in rows
    ]


def test_a_second_drafter_helps_and_the_text_is_the_targets(
    verifier, assistant, reference, prompts, tmp_path
):
    rows = rows_for(prompts[:3])
    got = complete(verifier, tmp_path, rows, "--share", SECRET)
    assert [row["token_ids"] for row in got] == expected(reference, rows)
    for row in got:
        own, helped = row["metrics"]["draftbus"]["drafters"]
        assert (own["model"], helped["model"]) == (str(DRAFT)[-200:], str(TARGET)[-200:])
        assert helped["accepted"] > 0.9 * helped["drafted"] > 0
        assert row["timings"]["draft_n_accepted"] >= helped["accepted"]
    alone = complete(verifier, tmp_path, rows[:1])
    assert alone[0]["metrics"]["draftbus"]["drafters"] == []
    assert alone[0]["token_ids"] == got[0]["token_ids"]
    assistant.send_signal(signal.SIGTERM)
    assert assistant.wait(timeout=20) == 0


def test_an_assistant_that_is_killed_or_stopped_in_mid_text_leaves_it_unchanged(
    verifier, assistant, reference, prompts, tmp_path
):
    more = {"max_tokens": 200, "ignore_eos": True, "lockstep": False}
    rows = [{**row, **more} for row in rows_for(prompts[:2])]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = processes.complete_command(
        verifier, DRAFT, ["--prompts", str(source), "--out", str(out), "--share", SECRET]
    )
    running = subprocess.Popen(command, env=processes.environment(1), stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (out.exists() and out.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    assistant.send_signal(signal.SIGSTOP)
    while len(out.read_text().splitlines()) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assistant.kill()
    assert running.wait(timeout=120) == 0
    got = [json.loads(line) for line in out.read_text().splitlines()]
    wanted = [
        reference.continue_(
            row["prompt_ids"],
            Sampling(200, row["temperature"], seed=row.get("seed", 0), ignore_eos=True),
        )
        for row in rows
    ]
    assert [row["token_ids"] for row in got] == wanted


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--secret", "short"], "the secret has 5 characters and needs 8"),
        (["--secret", SECRET, "--drafting", "nobody"], "no drafting strategy is called 'nobody'"),
        (["--secret", SECRET, "--model", "no/such"], "cannot load the draft 'no/such'"),
    ],
)
def test_what_cannot_be_used_is_said(flags, reason):
    command = [sys.executable, "-m", "drafter_mlx", "assist", "--verifier", "tcp://127.0.0.1:1",
               "--model", str(DRAFT), *flags]  # fmt: skip
    done = subprocess.run(command, env=processes.environment(1), capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
