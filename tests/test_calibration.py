"""What is learned: how often guesses are right, and how long steps take."""

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import BadSetup
from bus.messages import Commit, Sampling
from bus.packed import Ids
from drafter_mlx.experience import Experience
from drafter_mlx.session import Request, Session
from strategies import load
from strategies.calibration import RANKS, Calibration, drafting, trusting
from strategies.costs import Costs
from strategies.drafting import Options, Step
from strategies.tree import DraftTree

# Calibration -------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.0, 0.001, 0.25, 0.5, 0.98])
@pytest.mark.parametrize("rank", [0, 1, 99])
def test_before_anything_was_seen_the_prior_is_believed(rank: int, confidence: float) -> None:
    assert Calibration().chance(rank, confidence) == pytest.approx(confidence)
    assert trusting(rank, confidence) == confidence
    wary = Calibration(drafting).chance(rank, confidence)
    assert wary == pytest.approx(0.35 + 0.6 * confidence if rank == 0 else confidence)


def test_nothing_is_ever_certain() -> None:
    calibration = Calibration()
    assert calibration.chance(0, 1.0) == 0.99
    for _ in range(1000):
        calibration.saw(0, 1.0, True)
    assert calibration.chance(0, 1.0) == 0.99


@pytest.mark.parametrize("true_rate", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("said", [0.1, 0.5, 0.97])
def test_a_chance_becomes_the_rate_at_which_such_guesses_were_right(
    said: float, true_rate: float
) -> None:
    rng, calibration = random.Random(3), Calibration()
    for _ in range(4000):
        calibration.saw(1, said, rng.random() < true_rate)
    # The last 400 count: within three standard errors.
    assert calibration.chance(1, said) == pytest.approx(true_rate, abs=0.08)


def test_few_observations_weigh_against_a_prior_of_six() -> None:
    calibration = Calibration()
    for right in (True, True, False, True):
        calibration.saw(0, 0.5, right)
    assert calibration.chance(0, 0.5) == pytest.approx((3 + 6 * 0.5) / (4 + 6))


def test_ranks_and_confidences_far_apart_are_learned_apart() -> None:
    calibration = Calibration()
    for _ in range(100):
        calibration.saw(0, 0.9, True)
        calibration.saw(RANKS + 5, 0.5, True)
    assert calibration.chance(0, 0.2) == pytest.approx(0.2)
    assert calibration.chance(1, 0.9) == pytest.approx(0.9)
    assert calibration.chance(RANKS - 1, 0.5) > 0.9, "further ranks count as the last"
    assert calibration.chance(RANKS - 2, 0.5) == 0.5


def test_old_observations_fade() -> None:
    calibration = Calibration()
    for _ in range(5000):
        calibration.saw(0, 0.5, True)
    for _ in range(800):
        calibration.saw(0, 0.5, False)
    assert calibration.chance(0, 0.5) < 0.2


def test_what_was_learned_survives_a_file() -> None:
    rng, known, again = random.Random(5), Calibration(), Calibration()
    for _ in range(300):
        known.saw(rng.randrange(6), rng.random(), rng.random() < 0.4)
    again.load(json.loads(json.dumps(known.to_json())))
    for rank, step in [(rank, step) for rank in range(6) for step in range(21)]:
        assert again.chance(rank, step / 20) == known.chance(rank, step / 20)


SHAPE = Calibration().to_json()
TABLE = SHAPE["tried"]
NONSENSE: list[Any] = [
    None, 7, "text", [], {}, {"tried": TABLE}, {**SHAPE, "right": 3}, {**SHAPE, "tried": ["ab"]},
    {**SHAPE, "right": TABLE[1:]}, {**SHAPE, "tried": [row[1:] for row in TABLE]},
    {"tried": [*TABLE, TABLE[0]], "right": [*TABLE, TABLE[0]]},
    {**SHAPE, "right": [[1.0] * len(row) for row in TABLE]},  # more were right than tried
    {**SHAPE, "tried": [[-1.0] * len(row) for row in TABLE]},
    {**SHAPE, "tried": [[float("nan")] * len(row) for row in TABLE]},
    {**SHAPE, "tried": [[float("inf")] * len(row) for row in TABLE]},
    {**SHAPE, "tried": [[10**400, *row[1:]] for row in TABLE]},
]  # fmt: skip


@pytest.mark.parametrize("kept", NONSENSE, ids=lambda kept: repr(kept)[:30])
def test_nonsense_is_no_calibration_and_changes_nothing(kept: Any) -> None:
    calibration = Calibration()
    calibration.saw(0, 0.5, True)
    before = json.dumps(calibration.to_json())
    with pytest.raises(ValueError, match="calibration"):
        calibration.load(kept)
    assert json.dumps(calibration.to_json()) == before


# At the drafter ----------------------------------------------------------------------


def session(experience: Experience, **sampling: Any) -> Session:
    request = Request(Ids([1, 2]), Sampling(**sampling))
    return Session(1, request, load("drafting", "pipelined")(Options()), 8, experience)


def test_a_nodes_chance_is_calibrated_and_its_raw_one_is_kept() -> None:
    made = session(Experience())
    (draft,) = made.expanded(Step((made.tree.root,), 2), [[(5, 0.5), (6, 0.25)]])
    first, second = made.tree.root.children
    assert (first.confidence, first.raw) == (pytest.approx(0.35 + 0.6 * 0.5), 0.5)
    assert (second.confidence, second.raw) == (pytest.approx(0.25), 0.25)
    assert draft.confidence == (first.confidence, second.confidence)


def test_every_guess_along_a_committed_text_teaches_by_rank_and_raw_chance() -> None:
    experience = Experience()
    made = session(experience)
    made.expanded(Step((made.tree.root,), 3), [[(5, 0.6), (6, 0.2), (7, 0.1)]])
    _, second, third = made.tree.root.children
    made.expanded(Step((second, third), 1), [[(8, 0.7)], [(9, 0.8)]])
    made.on_commit(Commit(1, 2, Ids([6, 8, 4]), 2, 6), 0.0)
    seen = Calibration(drafting)
    for rank, raw, right in [(0, 0.6, False), (1, 0.2, True), (2, 0.1, False), (0, 0.7, True)]:
        seen.saw(rank, raw, right)
    assert experience.greedy.to_json() == seen.to_json(), "nothing of 9, whose parent was wrong"
    assert (made.stats.tried_by_rank, made.stats.right_by_rank) == ([2, 1, 1], [1, 1, 0])


def test_greedy_and_sampled_texts_are_learned_apart_and_shared_by_their_sessions() -> None:
    experience = Experience()
    for sampling in ({}, {"temperature": 0.7}, {"temperature": 0.7}):
        made = session(experience, **sampling)
        made.expanded(Step((made.tree.root,), 1), [[(5, 0.5)]])
        made.on_commit(Commit(1, 2, Ids([6]), 0, 2, rejected=1), 0.0)
    tried = [sum(map(sum, c.to_json()["tried"])) for c in (experience.greedy, experience.sampled)]
    assert tried == [1, 2]
    made = session(experience, temperature=1.0)
    made.expanded(Step((made.tree.root,), 1), [[(5, 0.5)]])
    assert made.tree.root.children[0].confidence == pytest.approx(6 * 0.65 / 8)


def test_an_unlikely_node_is_sent_when_the_text_makes_it_likely() -> None:
    made = session(Experience())
    (draft,) = made.expanded(Step((made.tree.root,), 2, floor=0.3), [[(5, 0.9), (6, 0.25)]])
    assert draft.tokens == (5,)
    (first, second) = made.tree.root.children
    step = Step((first, second), 2, floor=0.3)
    # 0.89 * 0.5; 0.89 * 0.25; and below 6 nothing is likelier than 0.25.
    (draft,) = made.expanded(step, [[(7, 0.25), (8, 0.25)], [(9, 0.99), (4, 0.5)]])
    assert draft.tokens == (7,)
    assert made.pushes(0.3) == []
    made.on_commit(Commit(1, 2, Ids([6]), 0, 2, rejected=1), 0.0)
    (draft,) = made.pushes(0.3)
    assert (draft.position, draft.tokens) == (3, (9, 4)), "0.94 and 0.5 by now"
    assert made.pushes() == []
    whole = DraftTree([1, 2, 6], 9)
    assert whole.insert(draft).dropped == 0


def test_experience_survives_a_file_and_refuses_another(tmp_path: Any) -> None:
    known, again, path = Experience(), Experience(), tmp_path / "calibration.json"
    again.load(path)  # not there yet
    known.greedy.saw(0, 0.5, True)
    known.sampled.saw(1, 0.5, False)
    known.save(path)
    again.load(path)
    assert again.greedy.to_json() == known.greedy.to_json()
    assert again.sampled.to_json() == known.sampled.to_json()
    for text in ("", "{}", "[1]", '{"greedy": 1, "sampled": 2}', "\0"):
        path.write_text(text)
        with pytest.raises(BadSetup, match="--calibration"):
            again.load(path)
    with pytest.raises(BadSetup, match="cannot write"):
        known.save(tmp_path / "no" / "such" / "folder")


# Costs -------------------------------------------------------------------------------


def test_costs_lie_on_lines_between_what_was_measured() -> None:
    costs = Costs({2: 1.0, 4: 1.5, 8: 3.5})
    assert [costs.at(width) for width in (1, 2, 3, 4, 6, 8)] == [1.0, 1.0, 1.25, 1.5, 2.5, 3.5]
    assert (costs.at(16), costs.at(12)) == (7.5, 5.5), "along the last slope beyond"
    assert costs.known() == {2: 1.0, 4: 1.5, 8: 3.5}


def test_without_measurements_nothing_is_known() -> None:
    assert not Costs()
    assert Costs().at(5) == 0.0
    costs = Costs()
    costs.saw(4, 0.5)
    assert costs and (costs.at(4), costs.at(8)) == (0.5, 1.0)


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 64), st.floats(1e-4, 9.0), min_size=1, max_size=9))
def test_a_wider_step_never_counts_as_cheaper(known: dict[int, float]) -> None:
    costs = Costs(known)
    times = [costs.at(width) for width in range(1, 130)]
    assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(times))


def test_a_measurement_moves_its_width_by_a_tenth_and_the_others_by_a_fiftieth() -> None:
    costs = Costs({1: 1.0, 4: 2.0})
    costs.saw(4, 3.0)  # half as long again
    assert costs.known() == pytest.approx({1: 1.01, 4: 2.1})
    costs.saw(2, 1.5)  # a new width
    assert costs.known() == pytest.approx({1: 1.01, 2: 1.5, 4: 2.1})


def test_a_hiccup_counts_as_three_times_what_is_known() -> None:
    costs = Costs({1: 1.0, 4: 2.0})
    costs.saw(4, 500.0)
    assert costs.known() == pytest.approx({1: 1.04, 4: 2.4})
    costs.saw(8, 500.0)
    assert costs.known()[8] == pytest.approx(3 * (2.4 + 4 * (2.4 - 1.04 - (2.4 - 1.04) / 3) / 2))


def test_costs_follow_a_machine_that_slows_down() -> None:
    costs = Costs({1: 1.0, 4: 2.0})
    for _ in range(100):
        costs.saw(4, 4.0)
    assert costs.at(4) == pytest.approx(4.0, rel=0.01)
    assert 1.0 < costs.at(1) <= 2.0


def test_a_step_that_took_no_time_is_no_division_by_zero() -> None:
    costs = Costs()
    for _ in range(3):
        costs.saw(1, 0.0)
    assert costs.at(1) > 0
