"""Strategies of strangers: installed, found by name, run by real daemons, and contained."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import processes
from bench.pair import DRAFT, TARGET

EXAMPLE = Path(__file__).parents[1] / "examples" / "custom_strategy"
BROKEN = '''
class Raises:
    def __init__(self, options): pass
    def plan(self, seen): raise RuntimeError("no idea")

class Nonsense:
    def __init__(self, options): pass
    def plan(self, seen): return 17

class Foreign:
    """Names a node of another tree."""
    def __init__(self, options): pass
    def plan(self, seen):
        from strategies.drafting import Step
        from strategies.tree import DraftTree
        return Step((DraftTree([1, 2], 9).root,))
'''
POINTS = """[draftbus.drafting]
raises = broken_strategy:Raises
nonsense = broken_strategy:Nonsense
foreign = broken_strategy:Foreign
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the example as pip installs it, and a package of broken strategies."""
    folder = tmp_path_factory.mktemp("site")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "custom_strategy.py", "README.md"):
        (source / name).write_text((EXAMPLE / name).read_text())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
               "--no-build-isolation", "--target", str(folder), str(source)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (folder / "broken_strategy.py").write_text(BROKEN)
    about = folder / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    return folder


@pytest.fixture(scope="module")
def running(installed):
    """A verifier to which the example was installed."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(installed)
    try:
        with processes.verifier(TARGET, threads=1) as found:
            yield found.address
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def complete(address, folder, rows, *flags):
    """Exit code, output rows and errors of a drafter process."""
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = processes.complete_command(
        address, DRAFT, ["--prompts", str(source), "--out", str(out), *flags]
    )
    done = subprocess.run(command, env=processes.environment(1), capture_output=True, text=True,
                          timeout=120)  # fmt: skip
    found = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return done.returncode, found, done.stderr


def test_the_example_runs_through_real_daemons(running, reference, prompts, tmp_path):
    from bus.messages import Sampling

    rows = [{"prompt_ids": prompts[0], "max_tokens": 40, "drafting": "bursts"},
            {"prompt_ids": prompts[0], "max_tokens": 40, "acceptance": "near-tie:0.5"}]  # fmt: skip
    code, (bursts, near), errors = complete(running, tmp_path, rows)
    assert code == 0, errors
    assert bursts["token_ids"] == reference.continue_(prompts[0], Sampling(40))
    assert bursts["timings"]["draft_n_accepted"] > 0
    assert bursts["metrics"]["draftbus"]["lossy"] is False
    assert near["metrics"]["draftbus"]["lossy"] is True, "Welcome says so"
    assert len(near["token_ids"]) == 40


@pytest.mark.parametrize("name", ["raises", "nonsense", "foreign"])
def test_a_drafting_strategy_that_fails_ends_its_session_alone(running, prompts, tmp_path, name):
    rows = [{"prompt_ids": prompts[0], "max_tokens": 8, "drafting": name},
            {"prompt_ids": prompts[0], "max_tokens": 8}]  # fmt: skip
    code, (broken, sound), errors = complete(running, tmp_path, rows)
    assert code == 1
    assert "drafting strategy" in broken["error"] and "Traceback" not in errors
    assert sound["finish_reason"] == "length"


def test_numbers_that_an_acceptance_strategy_does_not_take_are_a_named_error(
    running, prompts, tmp_path
):
    for text in ("near-tie:7", "near-tie:x", "near-tie:1:2", "exact:1"):
        rows = [{"prompt_ids": prompts[0], "max_tokens": 8, "acceptance": text}]
        code, (row,), errors = complete(running, tmp_path, rows)
        assert code == 1, text
        assert text in row["error"] and "Traceback" not in errors
