"""When a side dies, lies or is full: the text goes on, or a clear error keeps what there is."""

import json
import subprocess

import zmq
from peers import Peer, silent
from test_cli import complete, one_line, prompts_file

from bench import processes
from bench.pair import DRAFT, TARGET
from bus.messages import Sampling


def test_a_verifier_gone_for_good_leaves_what_was_generated_and_resume_finishes_it(
    reference, prompts, tmp_path
):
    out = tmp_path / "out.jsonl"
    row = {"prompt_ids": prompts[0], "max_tokens": 600, "ignore_eos": True}
    flags = ["--prompts", prompts_file(tmp_path, row), "--out", str(out)]
    with processes.verifier(TARGET, threads=1) as first:
        command = processes.complete_command(first.address, DRAFT, [*flags, "--deadline", "1"])
        drafter_process = subprocess.Popen(
            [*command[:1], "-c", KILL_SOON, str(first.process.pid), *command[3:]],
            env=processes.environment(1), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        _, errors = drafter_process.communicate(timeout=120)
    assert drafter_process.returncode == 2, errors
    assert "no verifier answers" in one_line(errors)
    cut = json.loads(out.read_text())
    wanted = reference.continue_(prompts[0], Sampling(max_tokens=600, ignore_eos=True))
    assert cut["finish_reason"] == "error"
    assert 20 <= len(cut["token_ids"]) < 600
    assert cut["token_ids"] == wanted[: len(cut["token_ids"])]
    with processes.verifier(TARGET, threads=1) as second:
        done = complete(*flags, "--resume", verifier=second.address)
    assert done.exit_code == 0, done.stderr
    assert json.loads(out.read_text())["token_ids"] == wanted


def test_more_prompts_at_a_time_than_the_verifier_has_room_for_all_end(tmp_path):
    rows = [{"prompt_ids": [5, 6, 7], "max_tokens": 40, "seed": n} for n in range(4)]
    out = tmp_path / "out.jsonl"
    flags = ["--prompts", prompts_file(tmp_path, *rows), "--out", str(out), "--concurrency", "4"]
    with processes.verifier(TARGET, ["--max-sessions", "1"], threads=1) as running:
        done = complete(*flags, verifier=running.address)
    assert done.exit_code == 0, done.stderr
    assert len(out.read_text().splitlines()) == 4


KILL_SOON = """
import os, signal, sys
from drafter_mlx import session
from drafter_mlx.__main__ import main

pid, seen, real = int(sys.argv.pop(1)), [0], session.Session.on_commit

def on_commit(self, commit, now):
    piece = real(self, commit, now)
    if len(self.committed) >= 20 and not seen[0]:
        seen[0] = 1
        os.kill(pid, signal.SIGKILL)
    return piece

session.Session.on_commit = on_commit
main()
"""


def test_a_verifier_that_comes_back_is_resumed_without_gap_or_repeat(reference, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    row = {"prompt_ids": prompts[1], "max_tokens": 300, "ignore_eos": True, "temperature": 0.7}
    flags = ["--prompts", prompts_file(tmp_path, row), "--out", str(out), "--deadline", "120"]
    with processes.verifier(TARGET, threads=1) as first:
        port = first.address.rsplit(":", 1)[1]
        command = processes.complete_command(first.address, DRAFT, flags)
        drafter_process = subprocess.Popen(
            [*command[:1], "-c", KILL_SOON, str(first.process.pid), *command[3:]],
            env=processes.environment(1), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        first.process.wait(120)
    with processes.verifier(TARGET, ["--port", port], threads=1):
        _, errors = drafter_process.communicate(timeout=120)
    assert drafter_process.returncode == 0, errors
    got = json.loads(out.read_text())
    sampling = Sampling(max_tokens=300, temperature=0.7, ignore_eos=True)
    assert got["token_ids"] == reference.continue_(prompts[1], sampling)
    assert got["metrics"]["draftbus"]["resumed"] >= 1


def test_a_peer_that_sends_garbage_changes_nothing_for_others(verifier, reference, prompts):
    context = zmq.Context()
    vandal = context.socket(zmq.DEALER)
    vandal.connect(verifier)
    for junk in (b"", b"\xc1", b"\x93\x01\x02", bytes(range(256)) * 20, b"\xdd\xff\xff\xff\xff"):
        vandal.send(junk)
        vandal.send_multipart([junk, junk])
    peer = Peer(verifier)

    def guess(tree):
        vandal.send(b"\x94\x04\x07")
        return

    text = peer.complete(prompts[2], Sampling(max_tokens=48), guess)
    assert text == reference.continue_(prompts[2], Sampling(max_tokens=48))
    assert vandal.poll(5000), "an error was to be answered"
    peer.close()
    vandal.close(0)
    context.term()


def test_sigterm_ends_the_verifier_cleanly():
    with processes.verifier(TARGET, threads=1) as running:
        peer = Peer(running.address)
        peer.complete([5, 6, 7], Sampling(max_tokens=4), silent)
        peer.close()
        assert processes.stop(running.process) == 0
