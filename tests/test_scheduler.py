"""Who is served when, how long drafts are waited for, and where a text ends."""

from collections.abc import Sequence
from typing import Any

import pytest
from fakes import END, PEER, VOCAB, Verifier, Voice, guess, hello, opening
from msgspec.structs import replace

from bus import codec
from bus.errors import Code
from bus.messages import Commit, Error, Limits, Open, Timings
from bus.packed import Ids
from strategies.acceptance import Rows, TargetView, Verdict
from strategies.calibration import Calibration
from verifier_cuda.registry import Reply
from verifier_cuda.scheduler import Keep

ENDLESS = Voice(end_every=0)
ROOMY = Limits(3, 400, 64, 5000)


def serving(*opened: Open, **fields: Any) -> Verifier:
    """A verifier that has just opened these sessions."""
    verifier = Verifier(**{"voice": ENDLESS, "limits": ROOMY, **fields})
    verifier.say(hello())
    for each in opened:
        verifier.say(each)
    return verifier


def truth(verifier: Verifier, count: int, number: int = 1) -> list[int]:
    """The next tokens of a session, past every end."""
    session = verifier.session(number)
    tokens = list(session.tree.tokens)
    for _ in range(count):
        tokens.append(verifier.voice.next(tokens, session.sampling))
    return tokens[session.tree.tip :]


def foresee(verifier: Verifier, count: int, now: float = 0.0, number: int = 1) -> None:
    """Push the next tokens of a session as a right guess."""
    draft = guess(verifier.session(number).tree.tokens, truth(verifier, count, number), (), number)
    assert verifier.say(draft, now) == []


def test_sessions_that_share_a_pass_say_what_each_says_alone() -> None:
    opened = [opening([5, 2, number], number, max_tokens=20, seed=number) for number in (1, 2, 3)]
    verifier = serving(*opened)
    for turn in range(40):
        for session in (verifier.session(number) for number in (1, 2, 3)):
            if session.finish is None:
                foresee(verifier, session.id, float(turn), session.id)
        verifier.step(float(turn))
    assert [verifier.finish(each.session) for each in opened] == [
        verifier.plain(each)[0] for each in opened
    ]


def test_without_work_there_is_no_pass_and_a_held_commit_is_retried_sooner() -> None:
    verifier = serving(opening([1]))
    (reply,) = verifier.step()
    verifier.registry.hold(reply)
    assert verifier.step(5.0) == []
    assert verifier.scheduler.patience_s(5.0) == pytest.approx(0.01)
    verifier.registry.forget(PEER)
    assert verifier.scheduler.patience_s(5.0) == pytest.approx(0.2)


class Nonsense:
    """An acceptance strategy that answers what it was told to, or raises it."""

    lossy = False

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def judge(self, rows: Rows, view: TargetView) -> Verdict:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


NO_PATHS = [(2,), (0,), (1, 1), (1, 3), (9,), (-1,), ("1",)]
NO_TOKENS = [None, "1", 1.5, -1, VOCAB, 1 << 32]
ANSWERS = [
    RuntimeError("no"),
    AssertionError("x" * 3000),
    None,
    *(Verdict(path, 1) for path in NO_PATHS),
    *(Verdict((), token) for token in NO_TOKENS),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: repr(answer)[:40])
def test_a_strategy_that_fails_ends_its_own_session_and_nothing_else(answer: Any) -> None:
    odd, other = opening([1, 2], acceptance="odd"), opening([1, 2], 2)
    verifier = serving(odd, other, foreign={"odd": lambda: Nonsense(answer)})
    verifier.step()
    foresee(verifier, 3)
    replies = verifier.step(2.0)
    refused = [reply.message for reply in replies if isinstance(reply.message, Error)]
    assert [(error.code, error.session) for error in refused] == [(Code.STRATEGY_FAILED, 1)]
    assert verifier.registry.errors == 1
    assert verifier.free == 2
    assert all(codec.decode(codec.encode(reply.message)) for reply in replies)
    assert verifier.finish(2) == verifier.plain(other)[0]


def rate(guessed: int, turnaround_s: float, pass_s: float = 1.0) -> float:
    """Tokens per pass time, when right guesses arrive `turnaround_s` after every Commit."""
    verifier = serving(opening([1], max_tokens=300), costs={1: 1.0, 6: 1.0})
    session, now, turnaround_us = verifier.session(), 0.0, int(turnaround_s * 1e6)
    coming: list[tuple[float, Any]] = []
    while session.finish is None:
        while coming and coming[0][0] <= now:
            verifier.say(coming.pop(0)[1], now)
        if verifier.step(now, pass_s):
            now += pass_s
            tokens = truth(verifier, guessed)
            draft = replace(guess(session.tree.tokens, tokens), turnaround_us=turnaround_us)
            coming.append((now + turnaround_s, draft))
        else:
            later = now + max(verifier.scheduler.patience_s(now), 1e-6)
            now = min([later, *(at for at, _ in coming)])
    return 300 * pass_s / now


@pytest.mark.parametrize("guessed", [0, 1, 2, 4])
@pytest.mark.parametrize("turnaround_s", [0.2, 0.7, 1.5, 1.9, 3.0, 8.0])
def test_waiting_never_makes_it_slower_than_plain_decoding(
    guessed: int, turnaround_s: float
) -> None:
    assert rate(guessed, turnaround_s) > 0.9


@pytest.mark.parametrize(
    ("guessed", "turnaround_s"), [(2, 0.2), (2, 0.7), (4, 0.2), (4, 0.7), (4, 1.5), (4, 3.0)]
)
def test_waiting_brings_what_drafts_are_worth(guessed: int, turnaround_s: float) -> None:
    # The rule counts on drafts that come during a pass, and this drafter sends none then.
    assert rate(guessed, turnaround_s) > 0.6 * (guessed + 1) / (1 + turnaround_s)


def test_the_wait_and_the_pass_are_told_with_the_commit() -> None:
    verifier = serving(opening([1]), costs={1: 1.0, 6: 1.0})
    foresee(verifier, 2)
    verifier.step(5.0, 1.0)
    foresee(verifier, 4, 6.5)
    (reply,) = verifier.step(7.5, 1.0)
    assert reply.message == Commit(
        1, 4, Ids(verifier.session().tree.tokens[4:]), 4, 5, None, Timings(1_000_000, 1_500_000)
    )


TALKER = Voice(salt=4, end_every=12)
TEXTS = [
    (opening([1, 2], max_tokens=60), "stop"),
    (opening([1, 2], max_tokens=60, ignore_eos=True, stop_ids=Ids([7])), "stop"),
    (opening([1, 2], max_tokens=60, ignore_eos=True), "length"),
    (opening([1, 2], max_tokens=1), "length"),
    (opening([1, 2], max_tokens=5), "length"),
    (opening([1] * 45, max_tokens=60, ignore_eos=True), "length"),
    (opening([1] * 49, max_tokens=60, ignore_eos=True), "length"),
]


@pytest.mark.parametrize("guessed", range(7))
@pytest.mark.parametrize(("opened", "finish"), TEXTS)
def test_a_text_ends_where_plain_decoding_ends_it(opened: Open, finish: str, guessed: int) -> None:
    verifier = serving(opened, voice=TALKER, limits=Limits(1, 50, 32, 5000))
    session, said = verifier.session(), []
    for turn in range(100):
        if session.finish is None:
            foresee(verifier, guessed)
            said += [reply.message for reply in verifier.step(float(turn))]
    text, _ = verifier.plain(opened)
    assert [token for commit in said for token in commit.tokens] == list(text)
    assert [commit.finish for commit in said] == [None] * (len(said) - 1) + [finish]
    assert sum(commit.accepted for commit in said) >= len(text) * guessed // (guessed + 1) - guessed
    assert all(commit.accepted <= len(commit.tokens) for commit in said)
    assert verifier.free == 1


@pytest.mark.parametrize("width", [1, 2, 6])
def test_a_pass_has_as_many_rows_as_it_may(width: int) -> None:
    verifier = serving(opening([1], max_tokens=40), width=width)
    foresee(verifier, 10)
    (entry,) = verifier.scheduler.plan(9.0)
    assert list(entry.block.tokens) == [1, *truth(verifier, width - 1)]


def test_the_last_open_token_is_never_drafted() -> None:
    verifier = serving(opening([1], max_tokens=4))
    foresee(verifier, 6)
    (entry,) = verifier.scheduler.plan(9.0)
    assert len(entry.block.tokens) == 4
    (reply,) = verifier.step(9.0)
    assert (reply.message.accepted, len(reply.message.tokens)) == (3, 4)
    assert reply.message.finish == "length"


def test_an_end_inside_an_accepted_path_cuts_it_there() -> None:
    opened = opening([1, 2], stop_ids=Ids([7]), ignore_eos=True)
    verifier = serving(opened, voice=TALKER)
    text = verifier.plain(opened)[0]
    verifier.say(opening([1, 2], stop_ids=Ids([7]), ignore_eos=True, committed=text[:-2]))
    for _ in range(10):
        verifier.step()  # read the prompt again
        if not verifier.session().unread:
            break
    foresee(verifier, 5)
    assert verifier.step(9.0) == [
        Reply(PEER, Commit(1, len(text), Ids(text[-2:]), 2, 6, "stop", Timings(0, 9_000_000)))
    ]


def bushy(right: Sequence[int]) -> tuple[list[int], list[int]]:
    """Two levels, with a wrong sibling before each right token: tokens and parents."""
    wrong = [(token + 1) % VOCAB or 1 for token in right]
    return [wrong[0], right[0], wrong[1], right[1]], [0, 0, 2, 2]


def test_an_accepted_branch_is_moved_together_in_the_cache() -> None:
    verifier = serving(opening([1], max_tokens=20))
    right = truth(verifier, 2)
    verifier.say(guess([1], *bushy(right)))
    work = verifier.scheduler.plan(0.0)
    views = verifier.target.forward([entry.block for entry in work])
    (reply,), keeps = verifier.scheduler.complete(work, views, 0.0, 0.0)
    rows = work[0].block
    path = tuple(rows.tokens.index(token) for token in right)
    assert keeps == [Keep(0, 0, (0, *(rows.places[row] for row in path)))]
    assert keeps[0].places == (0, 17, 34), "the branch does not lie in place by chance"
    verifier.target.keep(keeps)
    assert verifier.target.holds(0, [1, *right])
    assert (reply.message.accepted, reply.message.width, reply.message.rejected) == (2, 5, 0)


def test_a_turned_down_token_is_counted_where_the_correction_stands() -> None:
    verifier = serving(opening([1]))
    right = truth(verifier, 3)
    wrong = [token for token in range(1, VOCAB) if token not in (*right, END)][:2]
    verifier.say(guess([1], [right[0], *wrong], [0, 1, 1]))
    (reply,) = verifier.step()
    assert reply.message == Commit(1, 1, Ids(right[:2]), 1, 4, rejected=2)
    count = verifier.scheduler.counters
    assert (count.passes, count.tokens, count.drafted, count.accepted) == (1, 2, 3, 1)


def test_every_guess_along_a_committed_text_teaches_about_its_drafter() -> None:
    verifier = serving(opening([1]))
    right = truth(verifier, 2)
    wrong = next(token for token in range(1, VOCAB) if token not in right)
    verifier.say(guess([1], [wrong, right[0], right[1], 9], [0, 0, 2, 1]))
    verifier.step(9.0)
    pace, seen = verifier.session().sources[0].pace, Calibration()
    for rank, hit in [(0, False), (1, True), (0, True)]:
        seen.saw(rank, 0.9, hit)
    assert pace.calibration.to_json() == seen.to_json(), "nothing of 9, whose parent was wrong"
    first = 0.6 + (0 - 0.6) / 5
    assert pace.alpha.value == pytest.approx(first + (1 - first) / 6), "of first choices alone"
