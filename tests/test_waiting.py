"""How long the scheduler waits for drafts: never for nothing, and never for long."""

from typing import Any

import pytest
from fakes import VOCAB, Verifier, Voice, guess, hello, opening
from msgspec.structs import replace
from test_planner import paced

from bus.messages import Limits
from verifier_cuda.planner import Mean, prospect


def serving(*numbers: int, **fields: object) -> Verifier:
    """A verifier whose passes take a second however wide, with a session or more at 0 s."""
    limits = Limits(3, 400, 64, 5000)
    verifier = Verifier(
        **{"voice": Voice(end_every=0), "limits": limits, "costs": {1: 1.0, 64: 1.0}, **fields}
    )
    verifier.say(hello())
    for number in numbers:
        verifier.say(opening([number], number, max_tokens=300))
    return verifier


def know(verifier: Verifier, **measured: float) -> None:
    """Let the drafter of all sessions be known."""
    verifier.session().sources[0].pace.__dict__.update(vars(paced(**measured)))


def measured(verifier: Verifier) -> dict[str, Mean]:
    """All that is believed of the drafter's pace."""
    return {
        k: v for k, v in vars(verifier.session().sources[0].pace).items() if isinstance(v, Mean)
    }


def passes(verifier: Verifier, count: int) -> list[int]:
    """Run passes of a second with a drafter that says nothing; those that were waited for."""
    now, waited = 0.0, []
    for number in range(count):
        began = now
        while not verifier.step(now, 1.0):
            now += verifier.scheduler.patience_s(now) or 1e-6
        waited += [number] if now > began else []
        assert now <= began + 1.0, "no longer than a pass"
        now += 1.0
    return waited


def test_a_drafter_that_has_sent_nothing_is_never_waited_for() -> None:
    assert passes(serving(1), 60) == []


def test_the_first_draft_however_late_tells_whether_the_next_is_worth_a_wait() -> None:
    verifier = serving(1)
    assert len(verifier.step(0.0, 1.0)) == 1
    late = replace(guess([1], [5]), turnaround_us=125_000)
    verifier.say(late, 1.0)
    pace = verifier.session().sources[0].pace
    assert pace.turnaround_s.value == pytest.approx(0.125)
    assert verifier.step(1.0) == [], "the answer to the last Commit is due at 1.125"
    assert verifier.scheduler.patience_s(1.0) > 0


def test_a_measured_turnaround_is_waited_for_where_it_pays() -> None:
    verifier = serving(1)
    know(verifier, alpha=0.5, turnaround_s=0.125, interval_s=0.0625)
    # Of a pass of 1 s 0.25 are saved by waiting for 0.125 s, and so on; the draft is given
    # up half the turnaround after it was due.
    assert verifier.step(0.0) == verifier.step(0.18) == []
    assert verifier.scheduler.patience_s(0.125) == pytest.approx(0.0625)
    assert verifier.scheduler.patience_s(0.19) == 0
    assert len(verifier.step(0.19)) == 1
    slow = serving(1)
    know(slow, alpha=0.5, turnaround_s=0.5, interval_s=0.25)
    assert len(slow.step(0.0)) == 1, "0.25 s are not worth half a second"


def test_what_was_waited_for_in_vain_is_expected_less() -> None:
    verifier = serving(1)
    know(verifier, alpha=0.5, turnaround_s=0.125, interval_s=0.0625)
    pace = verifier.session().sources[0].pace
    assert verifier.step(0.1) == []
    assert len(verifier.step(0.625)) == 1
    assert pace.turnaround_s.value > 0.625, "it takes longer than that"
    assert verifier.step(0.625) != [], "and is not waited for"
    know(verifier, alpha=0.5, turnaround_s=0.125, interval_s=0.0625)
    verifier.say(guess(verifier.session().tree.tokens, [1]), 0.625)
    verifier.step(9.0)
    assert verifier.session().sources[0].pace.growth.value < 1.0, "nothing followed the first draft"


def test_a_drafter_that_falls_silent_is_soon_not_waited_for() -> None:
    verifier = serving(1)
    know(verifier, alpha=0.5, turnaround_s=0.125, interval_s=0.0625)
    waited = passes(verifier, 60)
    assert waited == list(range(len(waited))) and 1 <= len(waited) <= 5


SILENCES = [
    lambda verifier, tokens: [],
    lambda verifier, tokens: [guess([*tokens, 3], [1])],  # below nothing known
    lambda verifier, tokens: [replace(guess(tokens, [3]), digest=1)],
    lambda verifier, tokens: [guess(tokens, [])],
    lambda verifier, tokens: [guess(tokens, [3]), guess(tokens, [3])],
    lambda verifier, tokens: [opening([5], 2, max_tokens=300)],  # and no draft for it, ever
]


@pytest.mark.parametrize("silence", SILENCES)
def test_no_wait_lasts(silence: Any) -> None:
    verifier = serving(1)
    know(verifier, alpha=0.6, turnaround_s=0.3, interval_s=0.1)
    now = 0.0
    for _ in range(5):
        for message in silence(verifier, verifier.session().tree.tokens):
            verifier.say(message, now)
            verifier.registry.expire(now)
        waited_s = 0.0
        while not verifier.step(now, 1.0):
            waited_s += verifier.scheduler.patience_s(now) or 1e-6
            now += verifier.scheduler.patience_s(now) or 1e-6
            verifier.registry.expire(now)
            assert waited_s < 3.0, "as long as three passes"
        now += 1.0


def test_a_drafter_that_is_always_wrong_is_not_waited_for_once_that_is_known() -> None:
    verifier = serving(1)
    know(verifier, alpha=0.6, turnaround_s=0.05, interval_s=0.05)
    session, now, waited = verifier.session(), 0.0, []
    for number in range(100):
        tokens, due = list(session.tree.tokens), now + 0.05
        wrong = verifier.voice.next(tokens, session.sampling) % (VOCAB - 1) + 1
        while not verifier.step(now, 1.0):
            waited.append(number)
            now = min(due, now + verifier.scheduler.patience_s(now))
            if now >= due:
                verifier.say(guess(tokens, [wrong]), now)
                due = 1e9
            verifier.registry.expire(now)
        now += 1.0
    assert max(waited, default=0) < 60


def test_sessions_share_each_pass_and_a_wait_for_one_is_a_wait_for_all() -> None:
    verifier = serving(1, 2)
    know(verifier, alpha=0.5, turnaround_s=0.125, interval_s=0.0625)
    verifier.say(guess([2], [3]), 0.0)  # the second has what it needs
    assert verifier.step(0.1) == []
    assert [reply.message.session for reply in verifier.step(0.5)] == [1, 2]


def test_a_prompt_is_read_while_the_others_wait_for_drafts() -> None:
    verifier = serving(1)
    know(verifier, alpha=0.5, turnaround_s=0.125, interval_s=0.0625)
    verifier.say(opening([1] * 13, 2), 0.0)
    assert verifier.scheduler.patience_s(0.0) == 0, "there is work"
    pieces = []
    for now in (0.05, 0.1, 0.125):
        (entry,) = verifier.scheduler.plan(now)
        pieces.append((entry.session.id, entry.block.start, entry.block.sampling))
        assert verifier.step(now) == []
    assert pieces == [(2, 0, None), (2, 4, None), (2, 8, None)]
    assert verifier.session(2).unread == 0


def test_in_lockstep_a_draft_is_waited_for_before_each_pass_and_no_second_one() -> None:
    verifier = Verifier(voice=Voice(end_every=0), limits=Limits(3, 400, 64, 5000))
    verifier.say(hello())
    verifier.say(replace(opening([1], max_tokens=9), lockstep=True))
    session, now, widths = verifier.session(), 0.0, []
    while session.finish is None:
        if session.room > 0:
            assert verifier.step(now) == verifier.step(now + 0.25) == []
            verifier.say(guess(session.tree.tokens, [1, 2, 3]), now + 0.25)
        (reply,) = verifier.step(now + 0.25, 0.125)
        widths.append(reply.message.width)
        now += 0.375
    assert widths[0] == 4 and 1 not in widths[:-1]


def test_a_drafter_in_lockstep_that_falls_silent_is_given_up() -> None:
    verifier = Verifier(voice=Voice(end_every=0), limits=Limits(3, 400, 64, 5000))
    verifier.say(hello())
    verifier.say(replace(opening([1], max_tokens=9), lockstep=True))
    assert len(verifier.finish()) == 9


def test_a_silent_drafter_in_lockstep_keeps_nobody_else_waiting() -> None:
    verifier = serving(2)
    verifier.session(2).sources[0].pace.turnaround_s.at_least(100.0)
    verifier.say(replace(opening([1], max_tokens=9), lockstep=True))
    replies = verifier.step(0.1, 0.01)
    assert [reply.message.session for reply in replies] == [2]
    assert {reply.message.session for reply in verifier.step(0.6, 0.01)} == {1, 2}


def test_a_drafter_whose_drafts_stay_away_is_believed_less_until_they_come() -> None:
    pace = paced(alpha=0.5, turnaround_s=0.1, interval_s=0.1)
    before = prospect(pace, [], 0.1, 1.0, 0.0)
    pace.missed(0.05)
    assert pace.arrives.value == pytest.approx(0.8)
    after = prospect(pace, [], 0.1, 1.0, 0.0)
    assert before is not None and after is not None
    assert after.saved_s < before.saved_s
    for _ in range(9):
        pace.heard(0.1)
    assert pace.arrives.value > 0.95
    pace.heard(9.0)
    assert pace.arrives.value < 0.95, "far later than was expected is as good as not at all"


def test_asking_how_long_to_wait_changes_nothing() -> None:
    asked, other = serving(1), serving(1)
    for verifier in (asked, other):
        know(verifier, alpha=0.5, turnaround_s=0.125, interval_s=0.0625)
    for now in (0.05, 0.1, 0.2, 0.7):
        asked.scheduler.patience_s(now)
    assert measured(asked) == measured(other)
    assert asked.scheduler.patience_s(0.05) == other.scheduler.patience_s(0.05)
