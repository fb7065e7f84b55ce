"""`throughput`: its order, what it makes of failures, its files, and one whole small run."""

import json
import subprocess
import sys

import pytest
from rich.console import Console

from bench import cells, feed, processes, results, tuning
from bench import throughput_cli as cli
from bench.cells import Settings, Unit
from bench.crew import PassLog
from bench.processes import Cores
from bench.results import Result, Row
from bench.throughput import Run, Workload, rounds
from bench.workloads import Prompt
from bus.errors import BadSetup

# What is compared, and in which order ------------------------------------------------


def settings(**changes):
    chosen = {"num_prompts": 2, "seeds": 1, "max_tokens": 8, "rtts": (0.0,), "temperatures": (0.0,),
              "sessions": (1,)} | changes  # fmt: skip
    return Settings("target", "draft", **chosen)


def units(count):
    return [Unit(i, Prompt(f"p{i}", (i, 7)), 0) for i in range(count)]


def test_plain_decoding_is_never_left_out():
    assert [cell.policy for cell in cells.cells(settings(only=("tree",)))] == ["plain", "tree"]
    heated = cells.cells(settings(only=("fixed",), temperatures=(0.8,)))
    assert [(c.policy, c.temperature) for c in heated] == [
        ("plain", 0.0), ("plain", 0.8), ("fixed", 0.8),
    ]  # fmt: skip


def test_an_impostor_is_chosen_by_its_own_name():
    found = cells.cells(settings(only=("tree", "dead")))
    assert [(cell.policy, cell.drafter) for cell in found] == [
        ("plain", "none"), ("tree", "model"), ("tree", "dead"),
    ]  # fmt: skip


def test_an_unknown_policy_is_refused():
    with pytest.raises(BadSetup, match="no policy 'forest'"):
        settings(only=("forest",))


def test_every_cell_meets_every_prompt_once_and_starts_in_turn():
    whole = settings(num_prompts=6, rtts=(0.0, 1.0), temperatures=(0.0, 0.8), sessions=(1, 4))
    compared, given = cells.cells(whole), units(6)
    order = rounds(compared, given)
    assert len(order) == 6
    assert len({tasks[0][0] for tasks in order}) == 6, "another policy begins each time"
    for cell in compared:
        met = [unit for tasks in order for task, group in tasks if task == cell for unit in group]
        assert met == given[: len(met)]
        assert len(met) == cell.prompts
        assert cell.prompts % cell.sessions == 0
    for number, tasks in enumerate(order):
        alone = {group[0].number for cell, group in tasks if cell.sessions == 1}
        assert alone == {number}, "all policies run a prompt before the next one"


def test_quick_is_cut_short_but_not_lengthened():
    short = cli.fitted(settings(quick=True, num_prompts=12, seeds=2, rtts=(0.0, 1.0, 5.0)))
    assert (short.num_prompts, short.seeds, short.rtts, short.max_tokens) == (4, 1, (0.0, 1.0), 8)


@pytest.mark.parametrize(
    ("policy", "drafter", "drafting", "lockstep"),
    [("synchronous", "model", "fixed", True), ("fixed", "model", "fixed", False),
     ("a-stranger's", "model", "a-stranger's", False), ("plain", "dead", "fixed", False)],
)  # fmt: skip
def test_a_policy_drafts_with_the_strategy_of_its_name(policy, drafter, drafting, lockstep):
    cell = cells.Cell(policy, 0.0, drafter)
    (row,) = cells.batch(cell, units(1), 8, {"num_draft_tokens": 3}, 0.0)["rows"]
    assert (row["drafting"], row["lockstep"], row["num_draft_tokens"]) == (drafting, lockstep, 3)


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1"])
def test_a_list_of_numbers_that_is_none_is_refused(text):
    with pytest.raises(BadSetup, match="--rtts"):
        cli.numbers("--rtts", text)


# What becomes of a run -----------------------------------------------------------------


class FakeCrew:
    """Helpers that answer at once: twice as fast with drafts, and as broken as told."""

    cores = Cores((0, 1))

    def __init__(self, tmp_path, broken=(), wrong=()):
        self.log = PassLog(tmp_path / "none")
        self.about = {"model": {"step_s": {"1": 0.001}, "blas": "as shipped"}}
        self.broken, self._wrong = broken, wrong
        self.asked = []

    def ask(self, helper, batch, within_s):
        self.asked.append(batch)
        policy = batch["policy"].split()[0]
        if policy in self.broken:
            raise feed.Broken("it fell over")
        ms = {"plain": 80.0, "fixed": 50.0}.get(policy, 40.0)
        rows = [
            {"token_ids": [row["prompt_ids"][0] + (policy in self._wrong)] * row["max_tokens"],
             "timings": {"predicted_n": row["max_tokens"], "predicted_ms": ms}, "metrics": None}
            for row in batch["rows"]
        ]  # fmt: skip
        tokens = sum(row["max_tokens"] for row in batch["rows"])
        return {"rows": rows, "span_tokens": tokens, "span_s": ms / 1e3}


def made(crew, broken_later=(), **changes):
    """The rows by policy and sessions."""
    chosen = settings(**{"num_prompts": 3, "only": ("fixed", "tree"), **changes})
    work = Workload(units(4), units(4))
    going = Run(chosen, crew, cells.cells(chosen), work, lambda text: None)
    going.time_plain()
    going.tune()
    crew.broken = (*crew.broken, *broken_later)
    for tasks in rounds(going.cells, going.work.reporting):
        going.run_round(tasks)
    rows = going.result("command", True).rows
    return {row.policy if row.sessions == 1 else (row.policy, row.sessions): row for row in rows}


def test_ratios_are_against_plain_and_the_best_fixed_of_the_same_run(tmp_path):
    rows = made(FakeCrew(tmp_path))
    assert rows["tree"].ratio_plain == pytest.approx(2.0)
    assert rows["tree"].ratio_best_fixed == pytest.approx(50 / 40)
    assert rows["tree"].tokens_per_s == pytest.approx(8 / 0.040)
    assert rows["fixed"].ratio_plain_interval == pytest.approx((1.6, 1.6))
    assert rows["plain"].ratio_plain == 1.0
    assert (rows["tree"].prompts, rows["tree"].texts_equal, rows["tree"].alpha) == (3, True, None)


def test_a_text_that_differs_is_counted_and_shown(tmp_path):
    rows = made(FakeCrew(tmp_path, wrong=("tree",)))
    assert (rows["tree"].texts_equal, rows["tree"].texts_differing) == (False, 3)
    assert rows["fixed"].texts_equal is True


def test_only_texts_that_plain_decoding_said_are_compared(tmp_path):
    rows = made(FakeCrew(tmp_path), num_prompts=1, sessions=(1, 4))
    assert rows["tree", 4].texts_compared == 4, "of which plain decoding alone said one"
    assert (rows["plain", 4].texts_compared, rows["plain"].texts_compared) == (1, 1)
    assert rows["tree", 4].ratio_plain == pytest.approx(2.0)


def test_settings_of_another_result_are_taken_instead_of_searched(tmp_path):
    row = Row(policy="fixed", rtt_tv=0.0, drafter="model", temperature=0.0, sessions=1,
              options={"num_draft_tokens": 7})  # fmt: skip
    results.write(Result({}, {}, {}, {}, [row]), tmp_path / "tuned.json")
    crew = FakeCrew(tmp_path)
    rows = made(crew, tuned=tmp_path / "tuned.json", only=("fixed", "pipelined"), rtts=(0.0,))
    assert rows["fixed"].k == 7
    told = [batch for batch in crew.asked if batch["policy"].startswith("fixed")]
    assert {batch["rows"][0]["num_draft_tokens"] for batch in told} == {7}
    windows = {batch["rows"][0].get("window") for batch in crew.asked} - {None}
    assert windows == set(tuning.WINDOWS), "what the result does not have is searched"


@pytest.mark.parametrize("when", ["broken", "broken_later"])
def test_a_policy_that_fails_loses_nothing_of_the_others(tmp_path, when):
    crew = FakeCrew(tmp_path, broken=("fixed",) if when == "broken" else ())
    rows = made(crew, broken_later=("fixed",) if when == "broken_later" else ())
    assert rows["fixed"].error == "it fell over"
    assert (rows["fixed"].tokens_per_s, rows["tree"].ratio_best_fixed) == (None, None)
    assert rows["tree"].ratio_plain == pytest.approx(2.0)


def test_a_helper_that_cannot_load_says_why(tmp_path):
    flags = ["engine", "--model", str(tmp_path), "--draft", str(tmp_path)]
    helper = feed.Helper("bench.baselines", flags, feed.Place(None, 1))
    try:
        with pytest.raises(feed.Broken, match=r"bench\.baselines ended with code 1"):
            helper.ready()
    finally:
        helper.close()


def test_a_helper_that_hangs_is_ended():
    helper = feed.Helper("timeit", ["import time; time.sleep(60)"], feed.Place(None, 1))
    try:
        with pytest.raises(feed.Broken, match=r"within 0\.5 s"):
            helper.ready(0.5)
    finally:
        helper.close()


# Results -------------------------------------------------------------------------------


def example():
    lost = Row(policy="fixed", drafter="model", temperature=0.0, sessions=1, rtt_tv=1.0, k=4,
               ratio_plain=0.91, ratio_plain_interval=(0.8, 0.97), texts_equal=False,
               texts_compared=3, texts_differing=1, alpha_by_depth=[0.8, None])  # fmt: skip
    broken = Row(policy="tree", drafter="model", temperature=0.0, sessions=1, rtt_tv=1.0, error="x")
    return Result({}, {}, {"seeds": 1}, {"tv_s": {"4": 0.03}}, [lost, broken], True)


def test_a_result_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "result.json"
    results.write(example(), path)
    assert results.read(path) == example()
    assert json.loads(path.read_text()) == results.as_dict(example())
    assert [child.name for child in path.parent.iterdir()] == ["result.json"]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"rows": 3}'])
def test_what_is_no_result_is_refused(tmp_path, content):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(BadSetup, match="no result"):
        results.read(path)


def test_the_tables_mark_what_loses_fails_or_differs():
    console = Console(record=True, width=160)
    for table in results.tables(example()):
        console.print(table)
    shown = console.export_text()
    for text in ("0.91 (0.80 to 0.97) loses", "failed", "2 of 3"):
        assert text in shown


def test_a_log_line_that_is_still_being_written_is_read_later(tmp_path):
    path = tmp_path / "passes"
    log = PassLog(path)
    assert log.between(0, 10) == []
    path.write_text('{"pass_times": {"4": 0.03}}\n{"at": 1.0, "tokens": 2}\n{"at": 2.0, "tok')
    assert log.between(0, 10) == [{"at": 1.0, "tokens": 2}]
    with path.open("a") as file:
        file.write('ens": 1}\n{"at": 3.0, "tokens": 0}\n')
    assert [entry["at"] for entry in log.between(1.5, 10)] == [2.0]
    assert log.pass_times == {"4": 0.03}


# The command ---------------------------------------------------------------------------

NAMES = set(Row.__struct_fields__) - {"error"}


def test_the_command_compares_real_processes_and_writes_every_figure(tmp_path):
    path = tmp_path / "result.json"
    flags = ["--pair", "tiny", "--dtype", "float32", "--num-prompts", "1", "--seeds", "1",
             "--max-tokens", "16", "--rtts", "0", "--temperatures", "0", "--sessions", "1",
             "--only", "pipelined,tree,adversarial", "--quick", "--json", str(path)]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "bench", "throughput", *flags],
        env=processes.environment(),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plain pass" in done.stdout
    written = json.loads(path.read_text())
    assert set(written) == {"hardware", "models", "settings", "measured", "rows", "complete"}
    assert written["complete"]
    assert [(row["policy"], row["drafter"]) for row in written["rows"]] == [
        ("plain", "none"), ("pipelined", "model"), ("tree", "model"), ("tree", "adversarial"),
    ]  # fmt: skip
    plain, pipelined, tree, adversarial = written["rows"]
    for row in (pipelined, tree, adversarial):
        assert set(row) >= NAMES
        assert (row["texts_equal"], row["texts_compared"], row["error"]) == (True, 1, None)
        assert row["tokens_per_s"] > 0
        assert row["ratio_plain"] > 0
    assert plain["ratio_plain"] == 1.0
    assert pipelined["k"] in tuning.WINDOWS
    assert tree["alpha"] > 0.3
    assert not adversarial["alpha"], "never right, if it was tried at all"
    assert tree["alpha_by_depth"][0] > 0
    assert tree["wire_bytes_per_token"] > 4
    assert written["measured"]["plain_pass_s"] > 0
    assert written["measured"]["td_s"]["1"] > 0
    (record,) = written["measured"]["acceptance"]["0"]
    assert len(record["ranks"]) == len(record["confidence"]) == 16
    assert record["ranks"].count(0) / 16 > 0.3, "as often right as the drafter was"


def test_too_few_prompts_are_a_named_error(tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text('{"prompt": "def f(x):"}\n{"prompt": "import os"}\n')
    flags = ["--pair", "tiny", "--prompts", str(path), "--num-prompts", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "bench", "throughput", *flags],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "lower --num-prompts" in done.stderr
    assert done.stderr.count("\n") == 1
