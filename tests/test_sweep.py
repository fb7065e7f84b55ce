"""`sweep` and `report`: grids, logs, tables and figures."""

import json

import pytest
from rich.console import Console

from bench import report, sweep
from bench.pair import DRAFT, TARGET
from bench.sweep import Grid, Sweep
from bench.sweep_cli import grid, show
from bus.errors import BadSetup

plots = pytest.importorskip("bench.plots", reason="needs matplotlib: pip install '.[bench]'")


def logged(policy: str, ratio: float, equal: bool = True, pair: str = "a/b", **options: int) -> str:
    """A line as `sweep` writes it."""
    spec = {"num_spec_steps": 10, "num_accepted_draft_tokens": 15}
    return json.dumps({
        "run": 1, "pair": pair, "policy": policy, "rtt_tv": 0.0, "temperature": 0.0,
        "options": options, "ratio_plain": ratio, "text_equal": equal,
        "timings": {"predicted_n": 25, "predicted_ms": 1000.0},
        "metrics": {"speculative_decoding": spec},
    })  # fmt: skip


def write(folder, *lines: str):
    (folder / sweep.RUNS).write_text("".join(line + "\n" for line in lines))
    return folder


def test_a_grid_varies_only_what_a_strategy_looks_at():
    chosen = Grid(num_draft_tokens=(2, 4), window=(8, 16), branches=(2, 3), step_nodes=(4,))
    assert chosen.choices("fixed") == [{"num_draft_tokens": 2}, {"num_draft_tokens": 4}]
    assert chosen.choices("pipelined") == [{"window": 8}, {"window": 16}]
    assert len(chosen.choices("tree")) == 4
    assert len(chosen.choices("somebodys")) == 8
    assert len(list(chosen.cells())) == 8
    assert chosen.choices("fixed+pipelined") == [
        {"num_draft_tokens": k, "window": window} for k in (2, 4) for window in (8, 16)
    ]
    judged = Grid(num_draft_tokens=(2,), acceptance=("exact", "typical"), lockstep=True)
    assert judged.choices("fixed") == [
        {"num_draft_tokens": 2, "lockstep": True, "acceptance": name}
        for name in ("exact", "typical")
    ]


def test_flags_become_a_grid_and_bad_ones_say_what_to_write():
    made = grid("tree, fixed", {"branches": "2,4"}, "0,0.8", "0,1")
    assert made.drafting == ("tree", "fixed")
    assert (made.branches, made.temperatures, made.rtts) == ((2, 4), (0.0, 0.8), (0.0, 1.0))
    with pytest.raises(BadSetup, match="names no strategy"):
        grid(" ,", {}, "0", "0")
    with pytest.raises(BadSetup, match="--branches x"):
        grid("tree", {"branches": "x"}, "0", "0")


def test_a_report_has_medians_and_the_best_whose_texts_are_equal(tmp_path):
    runs = report.read([write(
        tmp_path, logged("plain", 1.0), logged("tree", 2.0, branches=2),
        logged("tree", 3.0, branches=2), logged("tree", 2.2, branches=2),
        logged("fixed", 0.9, num_draft_tokens=4), logged("typical", 9.0, equal=False),
    )])  # fmt: skip
    found = report.lines(runs)
    assert [(line.name.split()[0], line.ratio_plain) for line in found] == [
        ("typical", 9.0), ("tree", 2.2), ("fixed", 0.9)
    ]  # fmt: skip
    tree = found[1]
    assert (tree.texts, tree.tokens_per_s, tree.accepted_length) == (3, 25.0, 2.5)
    assert report.best(found)["a/b"] is tree


def test_the_table_shows_what_loses_and_what_differs(tmp_path):
    write(tmp_path, logged("fixed", 0.9, num_draft_tokens=4), logged("tree", 1.5, equal=False))
    console = Console(record=True, width=160)
    show([tmp_path], tmp_path / "plots", console)
    text = console.export_text()
    assert "0.90 loses" in text
    assert "NO" in text
    assert "best for a/b: fixed num_draft_tokens=4" in text
    assert (tmp_path / "plots/sweep-a-b.png").read_bytes()[:4] == b"\x89PNG"


def test_logs_that_are_none_are_named(tmp_path):
    with pytest.raises(BadSetup, match="run `sweep` first"):
        report.read([tmp_path])
    with pytest.raises(BadSetup, match=r"runs.jsonl:2 is not a logged run"):
        report.read([write(tmp_path, logged("tree", 2.0), "{}")])
    with pytest.raises(BadSetup, match="empty"):
        report.read([write(tmp_path)])


def test_a_sweep_logs_every_text_and_every_pass(tmp_path):
    chosen = Grid(("fixed", "tree", "pipelined+lookup"), (3,), (8,), (2,), (4,))
    asked = Sweep(chosen, (("tiny", str(TARGET), str(DRAFT)),), num_samples=1, max_tokens=16,
                  dtype="float32")  # fmt: skip
    assert sweep.run(asked, tmp_path, lambda text: None) == 0
    runs = report.read([tmp_path])
    assert [run["policy"] for run in runs] == ["plain", "fixed", "tree", "pipelined+lookup"]
    assert all(run["text_equal"] for run in runs)
    assert all(run["timings"]["predicted_n"] == 16 for run in runs)
    passes = [json.loads(line) for line in (tmp_path / sweep.PASSES).read_text().splitlines()]
    assert {entry["run"] for entry in passes} <= {2, 3, 4}
    assert [len(run["metrics"]["draftbus"]["drafters"]) for run in runs[1:]] == [0, 0, 2]


def test_a_throughput_result_becomes_figures(tmp_path):
    row = {"policy": "tree", "drafter": "model", "temperature": 0.0, "sessions": 1, "rtt_tv": 0.0,
           "ratio_plain": 2.0, "ratio_plain_interval": [1.5, 2.5],
           "alpha_by_depth": [0.8, 0.7, None]}  # fmt: skip
    far = row | {"rtt_tv": 1.0, "ratio_plain": 1.5, "ratio_plain_interval": None}
    plain = row | {"policy": "plain", "rtt_tv": None, "alpha_by_depth": None}
    times = {"tv_s": {"4": 0.03, "8": 0.04}, "td_s": {"1": 0.003, "4": 0.004}}
    result = {"rows": [plain, row, far], "measured": times}
    drawn = plots.throughput(result, tmp_path / "figures")
    assert [path.name for path in drawn] == [
        "ratio-by-rtt.png", "times-by-width.png", "alpha-by-depth.png"
    ]  # fmt: skip
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in drawn)
