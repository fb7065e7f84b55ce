"""The simulator: its texts are plain decoding's, its rates those of theory where there is one.

Time here is the virtual clock's, so a rate is a number like any other and no
assertion depends on the machine.
"""

import csv
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from bench import gain, limits, simulate, virtual
from bench.__main__ import app
from bench.limits import Curve, Setting
from bench.oracle import Choices, Drawn, Recorded, Text
from bench.replay import replay
from bench.simulate import World, best_fixed, run
from bus.messages import Ping

SETTING = Setting((0.5, 0.25), Curve.flat(1.0, 1, 0.5), Curve.flat(10.0, 4, 2.0), 3.0)
CHAIN = World(pass_s=Curve.flat(0.03, 99), rtt_s=0.004, max_tokens=2000)
"""Rows cost nothing, and waiting for a draft pays."""


def simulated(*flags: str):
    """Run `simulate` in this process; the result has exit_code, stdout, stderr."""
    return CliRunner().invoke(app, ["simulate", *flags], env={"COLUMNS": "120"})


# The closed formulas ------------------------------------------------------------


def test_the_limits_are_those_worked_out_by_hand():
    assert limits.expected(0.5, 2) == 1.75
    assert limits.expected(1.0, 3) == 4
    assert limits.plain(SETTING) == pytest.approx(1 / 10)
    assert limits.synchronous(SETTING, 2) == pytest.approx(1.75 / (2 + 3 + 10))
    assert limits.synchronous(SETTING, 5) == pytest.approx(1.96875 / (5 + 3 + 14))
    assert limits.lock_step(SETTING, 2) == pytest.approx(1.5 / (0.25 * 10 + 0.75 * 15))
    assert limits.outcome_cache(SETTING, 2) == pytest.approx(1.75 / 13)
    assert limits.draft_tree(SETTING) == pytest.approx(1 / (0.25 * 10))
    assert limits.draft_chain(SETTING) == pytest.approx(1 / (0.5 * 10))
    assert limits.draft_chain(replace(SETTING, alpha=(0.99,))) == pytest.approx(1 / 1.0)
    assert limits.plain(replace(SETTING, texts=6)) == pytest.approx(1 / 14)
    assert limits.best(limits.synchronous, SETTING) == (3, pytest.approx(1.875 / 16))


def test_a_cost_is_straight_between_its_points_and_goes_on_beyond():
    curve = Curve.measured({"8": 3.0, "4": 1.0, "16": 2.0})
    assert [curve.at(rows) for rows in (1, 4, 6, 8, 99)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    assert [SETTING.pass_s.at(rows) for rows in (1, 4, 5, 7)] == [10, 10, 12, 16]
    assert Curve(((1, 2.0),)).plus(1.0).at(50) == 3.0


# Guesses ------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_drawn_guesses_are_right_as_often_as_they_say(spread):
    text, drawn = Text(1, 1, 20_000), Drawn((0.6, 0.2), spread)
    found = [drawn.choices(text, place, digest) for place, digest in enumerate(text.digests)]
    for rank, mean in enumerate(drawn.alpha):
        assert sum(each.rank == rank for each in found) / len(found) == pytest.approx(
            mean, abs=0.015
        )
        told = sum(each.confidence[rank] for each in found) / len(found)
        assert told == pytest.approx(mean, abs=0.015)
    sure = [each for each in found if each.confidence[0] > 0.8]
    assert bool(sure) == bool(spread)
    if sure:
        assert sum(each.rank == 0 for each in sure) / len(sure) == pytest.approx(0.9, abs=0.02)


def test_recorded_guesses_are_replayed_place_by_place_and_go_round():
    told = [[0.5, 0.1]] * 3
    recorded = Recorded([{"ranks": ranks, "confidence": told} for ranks in ([0, 1, None], [1] * 3)])
    ranks = [recorded.choices(Text(2, 4, 7), 4 + place, 0).rank for place in range(7)]
    assert ranks == [0, 1, None, 0, 1, None, 0]
    assert recorded.choices(Text(3, 4, 7), 4, 0) == Choices([0.5, 0.1], 1), "a text of its own"
    assert recorded.mean(3) == pytest.approx((1 / 6, 4 / 6, 0))


# The clock ----------------------------------------------------------------------


class Reader(virtual.Process):
    """Notes what it reads, and when."""

    def __init__(self, clock: virtual.Clock, *pauses: virtual.Pause) -> None:
        super().__init__(clock)
        self.read: list[tuple[float, int]] = []
        self.start(self._run(pauses), 0.0)

    def _run(self, pauses: tuple[virtual.Pause, ...]) -> virtual.Loop:
        for pause in pauses:
            yield pause
            self.read += [(self.clock.now, message.sent_us) for _, message in self.drain()]
        self.over = True


def test_mail_ends_a_wait_and_does_not_end_a_computation():
    clock = virtual.Clock()
    waits, works = virtual.Pause(5.0, until_mail=True), virtual.Pause(5.0)
    reader = Reader(clock, waits, works, waits, waits)
    for at in (1.0, 2.0, 7.0):
        reader.post(at, b"", Ping(int(at)))
    clock.run(lambda: hasattr(reader, "over"), 100.0)
    assert reader.read == [(1.0, 1), (6.0, 2), (7.0, 7)]
    assert clock.now == 12.0


def test_a_link_delays_and_keeps_the_order():
    clock = virtual.Clock()
    reader = Reader(clock, virtual.Pause(9.0))
    rng = simulate.random.Random(1)
    link = virtual.Link(reader, b"", 1.0, 2.0, lambda _: 0.0, rng, lambda _: 3)
    for number in range(50):
        link.send(Ping(number))
    arrivals = [at for at, *_ in sorted(reader._mail)]
    assert 1.0 <= arrivals[0] < arrivals[-1] <= 3.0
    clock.run(lambda: hasattr(reader, "over"), 100.0)
    assert [number for _, number in reader.read] == list(range(50))
    assert link.bytes == 150


# Whole runs ---------------------------------------------------------------------

LINKS = {
    "good": {},
    "far": {"rtt_s": 0.3},
    "jitter": {"rtt_s": 0.02, "jitter_s": 0.05},
    "loss": {"loss": 0.3, "jitter_s": 0.01},
    "loses anything": {"loss": 0.2, "loss_rest": 0.2},
}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("drafting", ["tree", "pipelined", "fixed"])
def test_every_text_is_plain_decodings(drafting, link):
    found = run(World(drafting=drafting, drafters=3, sessions=2, max_tokens=60, **LINKS[link]))
    assert found.equal
    assert found.tokens == 3 * 2 * 60


def test_a_cache_that_lies_is_noticed(monkeypatch):
    world = World(Drawn((0.4, 0.4)), rtt_s=0.0, max_tokens=60)
    assert run(world).hedge_hits > 0, "nothing had to be moved"
    monkeypatch.setattr(virtual.Target, "keep", lambda self, keeps: None)
    assert not run(world).equal


def test_the_same_seed_gives_the_same_run():
    world = World(max_tokens=80, drafters=4, jitter_s=0.01, loss=0.1, count_bytes=True)
    first, again = run(world), run(world)
    assert first == again
    assert first.bytes_per_token > 10
    assert run(replace(world, seed=1)).seconds != first.seconds


@pytest.mark.parametrize("alpha", [0.7, 0.9])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_synchronous_drafting_runs_as_fast_as_the_formula_says(alpha, k):
    world = replace(CHAIN, acceptance=Drawn((alpha,)), drafters=4, verifiers=4, lockstep=True)
    world = world.with_k(k)
    theory = limits.synchronous(world.setting, k)
    assert run(world).session_tokens_per_s == pytest.approx(theory, rel=0.04)


def test_the_best_k_is_no_worse_than_its_neighbours_and_near_the_formulas():
    world = replace(CHAIN, acceptance=Drawn((0.8,)), max_tokens=800, lockstep=True)
    k, found = best_fixed(world)
    assert abs(k - limits.best(limits.synchronous, world.setting)[0]) <= 3
    for other in (k - 1, k + 1):
        assert run(world.with_k(other)).session_tokens_per_s <= found.session_tokens_per_s


@pytest.mark.parametrize("lost", [{"loss": 1.0}, {"acceptance": Drawn((0.0, 0.0, 0.0))}])
@pytest.mark.parametrize("drafting", ["tree", "pipelined", "fixed"])
def test_drafts_that_never_come_or_are_never_right_cost_little_and_bring_nothing(drafting, lost):
    world = World(drafting=drafting, max_tokens=400, pass_s=CHAIN.pass_s, **lost)
    found, alone = run(world), limits.plain(world.setting)
    assert found.accepted_length == 1
    assert found.hedge_hits == 0
    assert 0.85 * alone < found.session_tokens_per_s <= 1.001 * alone


@pytest.mark.parametrize("rtt_s", [0.0, 0.03, 0.09])
@pytest.mark.parametrize("alpha", [(0.4, 0.2), (0.7, 0.1), (0.95, 0.02)])
def test_no_strategy_beats_its_ceiling(alpha, rtt_s):
    world = World(Drawn(alpha), pass_s=CHAIN.pass_s, rtt_s=rtt_s, max_tokens=600)
    ceilings = {"tree": limits.draft_tree, "pipelined": limits.draft_chain}
    for drafting, ceiling in ceilings.items():
        rate = run(replace(world, drafting=drafting)).session_tokens_per_s
        assert rate <= 1.05 * ceiling(world.setting)


def test_two_hundred_drafters_at_four_verifiers_finish():
    world = World(drafters=200, verifiers=4, max_tokens=6, pass_s=Curve.flat(0.03, 400, 1e-4))
    found = run(world)
    assert found.equal
    assert found.tokens == 200 * 6


# The command --------------------------------------------------------------------


def test_the_command_shows_strategies_beside_the_limits():
    done = simulated("--max-tokens", "40", "--bytes", "--loss", "0.1")
    assert done.exit_code == 0, done.output
    for said in ("tree", "pipelined", "fixed, k = 5", "lock-step", "texts equal", "payload bytes"):
        assert said in done.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--alpha", "0.9,0.2"), "--alpha '0.9,0.2' is no list of chances"),
        (("--drafting", "magic"), "no drafting strategy is called 'magic'"),
        (("--drafters", "1025"), "a verifier takes 1024 drafters"),
        (("--map", "map.jpg"), "--map takes a .png file"),
        (("--map", "/nowhere/map.png"), "there is no such folder"),
        (("--from", "/nowhere.json"), "cannot read /nowhere.json"),
    ],
)
def test_a_bad_flag_is_named(flags, said):
    done = simulated(*flags)
    assert done.exit_code == 1
    assert said in done.stderr.strip().splitlines()[-1]


def test_the_map_is_drawn_and_its_numbers_are_written(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(gain, "ALPHAS", (0.3, 0.9))
    monkeypatch.setattr(gain, "RTTS", (0.0, 3.0))
    monkeypatch.setattr(gain, "TOKENS", 40)
    done = simulated("--map", str(tmp_path / "map.png"))
    assert done.exit_code == 0, done.output
    picture = (tmp_path / "map.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 150_000
    rows = list(csv.DictReader((tmp_path / "map.csv").read_text().splitlines()))
    assert [(row["alpha"], row["rtt_tv"]) for row in rows] == [
        ("0.3", "0"), ("0.3", "3"), ("0.9", "0"), ("0.9", "3")
    ]  # fmt: skip
    assert float(rows[2]["gain_plain"]) > 1.5


# Measured runs ------------------------------------------------------------------

MEASURED = {"tv_s": {"4": 0.03, "16": 0.03}, "td_s": {"1": 0.003, "8": 0.004},
            "overhead_s": 0.001, "plain_pass_s": 0.04}  # fmt: skip
ROW = {"policy": "synchronous", "k": 3, "rtt_tv": 0.1, "sessions": 1, "drafter": "model"}
RESULT = {"measured": MEASURED, "settings": {"max_tokens": 800}}


def test_a_measured_run_is_foretold_from_its_costs_and_acceptance(tmp_path):
    theory = (1 + 0.8 + 0.64 + 0.512) / (3 * 0.003 + 0.004 + 0.031)
    others = {**ROW, "k": None, "rtt_tv": None, "tokens_per_s": 50.0}
    drafted = {**ROW, "alpha_by_rank": [0.8, 0.1, None], "tokens_per_s": theory}
    rows = [drafted, {**others, "policy": "plain"}, {**others, "policy": "assisted"}]
    result = {**RESULT, "rows": rows}
    (drafted, plain), skipped = replay(result)
    assert skipped == ["assisted, × 1"]
    assert abs(drafted.deviation) < 0.05
    assert plain.simulated == pytest.approx(1 / 0.03)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    done = simulated("--from", str(path))
    assert done.exit_code == 0, done.output
    assert "1 of 2 within 10%" in done.stdout


def test_recorded_acceptance_is_what_the_replay_accepts():
    # Three right, one wrong: every draft of three is accepted, and its bonus is the fourth.
    record = {"ranks": [0, 0, 0, None], "confidence": 4 * [[0.9]]}
    measured = {**MEASURED, "acceptance": {"0.8": [record], "0": [{**record, "ranks": 4 * [0]}]}}
    row = {**ROW, "temperature": 0.8, "tokens_per_s": 90.0}
    result = {**RESULT, "measured": measured, "rows": [row]}
    assert replay(result)[0][0].simulated == pytest.approx(4 / 0.044, rel=0.02)


def test_a_file_that_is_no_result_is_named(tmp_path):
    for content in ("[]", '{"rows": [{}]}', '{"rows": []}', "{"):
        (tmp_path / "result.json").write_text(content)
        done = simulated("--from", str(tmp_path / "result.json"))
        assert done.exit_code == 1
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("draftbus-bench: ")
