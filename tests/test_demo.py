"""The demo, as a user starts it: real processes, equal texts, a table that says how it went."""

import subprocess
import sys

import pytest
from rich.console import Console

from bench import demo, processes
from bench.pair import widen
from bench.plain import Plain

ROWS = (
    "tokens/s, plain", "tokens/s, drafted", "acceptance α", "mean accepted length", "rollbacks",
    "hedge hits", "empty passes", "payload bytes per token", "verifier busy", "drafter busy",
    "text equals plain",
)  # fmt: skip


@pytest.mark.parametrize(
    "flags", [["--tiny"], ["--tiny", "--temp", "0.8", "--seed", "5", "--drafting", "pipelined"]]
)
def test_the_demo_runs_to_its_table_with_all_texts_equal(flags):
    done = subprocess.run(
        [sys.executable, "-m", "bench", "demo", "--max-tokens", "32", *flags],
        env={**processes.environment(), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ROWS:
        assert name in done.stdout
    equal = next(line for line in done.stdout.splitlines() if "text equals plain" in line)
    assert equal.count("yes") == 3
    assert "drafting paid" in done.stdout or "drafting did not pay" in done.stdout


def test_a_text_that_differs_is_shown_and_fails_the_demo(monkeypatch):
    real = demo._plain

    def changed(*args):
        first, *rest = real(*args)
        return [Plain([*first.tokens[:-1], first.tokens[-1] ^ 1], first.seconds), *rest]

    monkeypatch.setattr(demo, "_plain", changed)
    console = Console(record=True, width=100)
    assert not demo.run(demo.Demo(max_tokens=8, temperature=0.5), console)
    assert "the texts differ" in console.export_text()


def test_the_cost_pair_of_the_demo_is_that_of_the_default_throughput(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(widen, "pair", lambda folder: made.append(folder) or ("target", "draft"))
    shown = demo.on_cost_pair(tmp_path)
    assert (made, shown.target, shown.draft, shown.dtype) == (
        [tmp_path],
        "target",
        "draft",
        "bfloat16",
    )


@pytest.mark.parametrize(("drafted_ms", "said"), [(500, "paid: 2.00 ×"), (2000, "(0.50 ×")])
def test_the_verdict_says_whether_drafting_paid(drafted_ms, said):
    rows = [{"timings": {"predicted_ms": drafted_ms, "predicted_n": 10}}]
    assert said in demo._verdict(rows, [Plain([1] * 10, 1.0)])
