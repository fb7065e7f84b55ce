"""What a drafter says to its verifier, and when. All times are arguments."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes import END, guess, hello

import strategies
from bus.errors import Code, ProtocolError, Refused, Unreachable
from bus.messages import (
    Close,
    Commit,
    Error,
    Hello,
    Limits,
    Message,
    Open,
    Ping,
    Pong,
    Sampling,
    Welcome,
)
from bus.packed import Ids
from drafter_mlx.conversation import GREET_EVERY_S, RETRY, RETRY_EVERY_S, SILENCE_S, Conversation
from drafter_mlx.piece import Piece
from drafter_mlx.session import Request, Session
from strategies.drafting import Options

ADDRESS = "tcp://gpu:7700"
DEADLINE_S = 30.0
STEP_S = 0.05


def welcome(boot_id: int = 1) -> Welcome:
    return Welcome(boot_id, "target", Limits(2, 64, 5, 5000), ("exact",), Ids([END]))


@dataclass
class Talk:
    """A conversation whose sends are noted with their times."""

    now: float = 0.0
    sent: list[tuple[float, Message]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inner = Conversation(hello(), ADDRESS, DEADLINE_S, self.now)

    def start(self, number: int = 1, **fields: Any) -> Session:
        drafting = strategies.load("drafting", "pipelined")(Options())
        request = Request(Ids([1, 2]), Sampling(max_tokens=20), **fields)
        session = Session(number, request, drafting, 8)
        self.inner.start(session, self.pieces.append, self.now)
        return session

    def tick(self, now: float) -> list[Message]:
        """What is sent at `now`, pings left out."""
        self.now = now
        self.inner.tick(now)
        said, self.inner.outbox = self.inner.outbox, []
        self.sent += [(now, message) for message in said]
        return [message for message in said if not isinstance(message, Ping)]

    def hear(self, *messages: Any) -> list[Message]:
        """What is sent after these arrived."""
        for message in messages:
            self.inner.handle(message, self.now)
        return self.tick(self.now)

    def live(self, until: float, answer: Iterable[Message] = ()) -> list[float]:
        """Tick on, pings and opens (with `answer`) being answered; the times of the opens."""
        opened = []
        while self.now < until:
            said = self.tick(self.now + STEP_S)
            self.inner.handle(Pong(0, 0), self.now)
            for _ in (message for message in said if isinstance(message, Open)):
                opened.append(self.now)
                for message in answer:
                    self.inner.handle(message, self.now)
        return opened


def welcomed(*numbers: int) -> Talk:
    """A conversation with open sessions at time 0."""
    talk = Talk()
    for number in numbers:
        talk.start(number)
    assert talk.tick(0.0) == [hello()]
    assert [type(message) for message in talk.hear(welcome())] == [Open] * len(numbers)
    return talk


def opening(number: int = 1, committed: Iterable[int] = ()) -> Open:
    return Open(number, Ids([1, 2]), Ids(committed), Sampling(max_tokens=20), "exact")


def test_the_greeting_is_repeated_until_it_is_answered() -> None:
    talk = Talk()
    session = talk.start()
    for turn in range(100):
        talk.tick(turn * 0.1)
    assert {type(message) for _, message in talk.sent} == {Hello}
    times = [at for at, _ in talk.sent]
    assert times == pytest.approx([turn * GREET_EVERY_S for turn in range(20)], abs=0.11)
    assert talk.inner.sessions == [], "nothing is drafted before"
    assert talk.inner.missing_s(9.9) == pytest.approx(9.9)
    assert talk.hear(welcome()) == [opening()]
    assert talk.inner.sessions == [session]
    assert talk.inner.missing_s(9.9) == 0


@pytest.mark.parametrize("first", [True, False])
def test_a_session_learns_the_verifiers_limits(first: bool) -> None:
    talk = Talk()
    session = talk.start() if first else None
    talk.hear(welcome())
    session = session or talk.start()
    assert (session.ends, session.max_len, session.tree.max_nodes) == ({END}, 64, 5)


def test_a_welcomed_drafter_pings_every_second() -> None:
    talk = welcomed(1)
    talk.live(4.5)
    assert [at for at, message in talk.sent if isinstance(message, Ping)] == pytest.approx(
        [0, 1, 2, 3, 4], abs=0.25
    )


def test_silence_is_greeted_and_the_text_so_far_is_resumed() -> None:
    talk = welcomed(1)
    talk.hear(Commit(1, 2, Ids([5, 6]), width=1))
    assert talk.tick(SILENCE_S) == [opening(committed=[5, 6])], "two seconds without a Commit"
    assert talk.tick(SILENCE_S + 0.1) == [hello()]
    assert talk.inner.sessions == []
    assert talk.hear(welcome()) == [opening(committed=[5, 6])]
    talk.hear(Commit(1, 4, Ids([7]), finish="length"))
    assert talk.pieces == [Piece((5, 6), ("plain",) * 2), Piece((7,), ("plain",))]


def test_only_a_new_boot_makes_a_repeated_welcome_matter() -> None:
    talk = welcomed(1, 2)
    assert talk.hear(welcome()) == []
    assert talk.hear(welcome(2)) == [opening(1), opening(2)]


def test_a_verifier_that_forgot_the_greeting_is_greeted_at_once() -> None:
    talk = welcomed(1)
    assert talk.hear(Error(Code.NOT_GREETED, "say Hello first")) == [hello()]
    assert talk.hear(welcome()) == [opening()]


def test_after_the_deadline_the_error_names_the_address_and_what_to_do() -> None:
    talk = Talk()
    for turn in range(301):
        talk.tick(turn * 0.1)
    assert talk.inner.failure is None
    talk.tick(DEADLINE_S + 0.1)
    assert isinstance(talk.inner.failure, Unreachable)
    for word in (ADDRESS, "30 s", "draftbus-verifier serve", "--verifier"):
        assert word in str(talk.inner.failure)


@pytest.mark.parametrize("met", [False, True])
def test_a_pause_of_the_drafter_itself_is_no_deadline(met: bool) -> None:
    talk = welcomed(1) if met else Talk()
    assert talk.tick(10 * DEADLINE_S) == [hello()]
    assert talk.inner.failure is None


@pytest.mark.parametrize("code", [Code.PROTOCOL_MISMATCH, Code.TOKENIZER_MISMATCH, "new_code"])
def test_a_refused_greeting_ends_the_conversation(code: str) -> None:
    talk = Talk()
    talk.start()
    talk.hear(Error(code, "install the same release"))
    assert isinstance(talk.inner.failure, Refused)
    assert talk.inner.failure.code == code
    assert "install the same release" in str(talk.inner.failure)


def test_a_busy_verifier_is_greeted_again() -> None:
    talk = Talk()
    talk.tick(0.0)
    talk.hear(Error(Code.OVERLOADED, "1024 drafters are connected already"))
    assert talk.inner.failure is None
    assert talk.tick(GREET_EVERY_S) == [hello()]


@pytest.mark.parametrize("code", sorted(RETRY))
def test_a_session_without_room_is_tried_again_until_the_deadline(code: Code) -> None:
    talk = welcomed(1, 2)
    opened = talk.live(DEADLINE_S - 1, [Error(code, "try again", 1)])
    assert talk.inner.errors == {}
    assert len(opened) > 0.6 * DEADLINE_S / (RETRY_EVERY_S + STEP_S)
    talk.live(DEADLINE_S + 1, [Error(code, "try again", 1)])
    (failed,) = talk.inner.errors.items()
    assert (failed[0], type(failed[1]), failed[1].code) == (1, Refused, code)
    assert [session.id for session in talk.inner.sessions] == [2]
    assert talk.inner.failure is None


def test_between_the_tries_of_a_session_without_room_there_is_a_pause() -> None:
    talk = welcomed(1)
    talk.hear(Error(Code.OVERLOADED, "try again", 1))
    opened = talk.live(DEADLINE_S - 1, [Error(Code.OVERLOADED, "try again", 1)])
    gaps = [after - before for before, after in itertools.pairwise(opened)]
    assert len(gaps) > 90
    assert min(gaps) > RETRY_EVERY_S - 0.01


@pytest.mark.parametrize("code", [Code.PROMPT_TOO_LONG, Code.STRATEGY_FAILED, "new_code"])
def test_a_refused_session_fails_alone(code: str) -> None:
    talk = welcomed(1, 2)
    assert talk.hear(Error(code, "why", 1)) == [Close(1)]
    assert [str(error) for error in talk.inner.errors.values()] == [
        f"the verifier refused ({code}): why"
    ]
    assert [session.id for session in talk.inner.sessions] == [2]
    assert talk.hear(Error(code, "why", 1), Error(code, "why"), Error(code, "why", 77)) == []
    assert (list(talk.inner.errors), talk.inner.failure) == ([1], None)


def test_stalls_are_opened_again_with_growing_pauses() -> None:
    talk = welcomed(1)
    talk.hear(Commit(1, 2, Ids([5]), width=1))
    opened = talk.live(59)
    assert opened == pytest.approx([2, 6, 14, 30], abs=4 * STEP_S)
    assert talk.sent[-1][1] != opening(), "what was received is said"
    talk.hear(Commit(1, 3, Ids([6]), width=1))
    assert talk.live(63) == pytest.approx([61 + STEP_S], abs=2 * STEP_S)


def test_a_long_stall_is_no_flood() -> None:
    talk = welcomed(1)
    opened = talk.live(400)
    assert min(after - before for before, after in itertools.pairwise(opened)) > 2
    assert len(opened) < 15


def test_a_repeat_is_not_told_twice_and_a_gap_asks_for_what_is_missing() -> None:
    talk = welcomed(1)
    assert talk.hear(*[Commit(1, 2, Ids([5]))] * 3, Commit(1, 4, Ids([7]))) == []
    assert talk.pieces == [Piece((5,), ("plain",))]
    assert talk.inner.wake_in_s(0.0) == pytest.approx(RETRY_EVERY_S)
    assert talk.tick(RETRY_EVERY_S) == [opening(committed=[5])]
    talk.hear(Commit(1, 3, Ids([6, 7])))
    assert [token for piece in talk.pieces for token in piece.tokens] == [5, 6, 7]


def test_changed_text_fails_its_session_alone() -> None:
    talk = welcomed(1, 2)
    assert talk.hear(Commit(1, 2, Ids([5])), Commit(1, 2, Ids([6, 7]))) == [Close(1)]
    assert [type(error) for error in talk.inner.errors.values()] == [ProtocolError]
    assert talk.hear(Commit(1, 3, Ids([7]))) == []
    assert talk.pieces == [Piece((5,), ("plain",))]
    assert [session.id for session in talk.inner.sessions] == [2]


@pytest.mark.parametrize("again", [False, True])
def test_a_finished_session_is_closed_and_over(again: bool) -> None:
    talk = welcomed(1)
    last = Commit(1, 2, Ids([5, END]), finish="stop")
    said = [Commit(1, 2, Ids([5])), Commit(1, 3, Ids([END])), Commit(1, 4, Ids(), finish="stop")]
    assert talk.hear(*(said if again else [last])) == [Close(1)]
    assert again or talk.pieces == [Piece((5, END), ("plain", "end"))]
    assert (talk.inner.sessions, talk.inner.errors) == ([], {})
    talk.inner.cancel(1)
    assert talk.tick(0.1) == []


def test_a_draft_that_found_no_room_is_pushed_again_and_nothing_else_is() -> None:
    talk = welcomed(1)
    (session,) = talk.inner.sessions
    step = session.plan()
    assert step is not None
    (draft,) = session.expanded(step, [[(5, 0.5)]])
    talk.inner.push([draft])
    assert talk.tick(0.1) == [draft]
    for message in (Ping(0), opening(), guess([1], [2], session=9)):
        talk.inner.unsent(message)
    assert session.pushes() == []
    talk.inner.unsent(draft)
    assert session.pushes() == [draft]


def test_a_close_that_found_no_room_is_said_again() -> None:
    talk = welcomed(1)
    talk.inner.unsent(Close(7))
    assert talk.tick(0.1) == [Close(7)]


def test_a_resumed_request_counts_its_resumptions() -> None:
    talk = Talk()
    session = talk.start(committed=Ids([5, 6]))
    assert talk.hear(welcome())[-1] == opening(committed=[5, 6])
    talk.hear(Commit(1, 4, Ids([7]), width=1), welcome(2))
    assert session.stats.resumed == 1
    assert (session.committed, session.stats.tokens) == ((5, 6, 7), 1)
