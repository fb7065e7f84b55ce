"""What a verifier answers, whom it remembers, and which slots are free."""

from collections.abc import Callable

import pytest
from fakes import END, PEER, VOCAB, Verifier, Voice, guess, hello, opening

from bus import codec
from bus import messages as m
from bus.errors import Code, ProtocolError
from bus.messages import Close, Commit, Error, Open, Ping, Pong
from bus.packed import MAX_NODES, Ids
from verifier_cuda import registry as registry_module
from verifier_cuda.registry import MAX_FINISHED, Reply

OTHER = b"other"
ENDLESS = Voice(end_every=0)


def greeted(limits: m.Limits | None = None) -> Verifier:
    """A verifier that knows two peers."""
    room = limits or m.Limits(3, 64, 32, 5000)
    verifier = Verifier(ENDLESS, room, foreign={"broken": lambda: 1 / 0})
    for peer in (PEER, OTHER):
        assert isinstance(verifier.say(hello(), peer=peer)[0], m.Welcome)
    return verifier


def refusal(verifier: Verifier, message: m.Message, peer: bytes = PEER) -> Error:
    (answer,) = verifier.say(message, peer=peer)
    assert isinstance(answer, Error)
    assert answer.message
    return answer


FAULTS: list[tuple[m.Message, Code, int | None]] = [
    (hello(protocol=m.PROTOCOL - 1), Code.PROTOCOL_MISMATCH, None),
    (hello(protocol=m.PROTOCOL + 1), Code.PROTOCOL_MISMATCH, None),
    (hello(tokenizer_digest=bytes(32)), Code.TOKENIZER_MISMATCH, None),
    (hello(vocab_size=VOCAB + 1), Code.TOKENIZER_MISMATCH, None),
    (opening(()), Code.EMPTY_PROMPT, 1),
    (opening([1] * 64), Code.PROMPT_TOO_LONG, 1),
    (opening([1, VOCAB]), Code.TOKEN_OUT_OF_RANGE, 1),
    (opening(committed=[VOCAB]), Code.TOKEN_OUT_OF_RANGE, 1),
    (opening(stop_ids=Ids([VOCAB])), Code.TOKEN_OUT_OF_RANGE, 1),
    (opening(committed=[1, 2, 3], max_tokens=2), Code.BAD_PARAMS, 1),
    (opening(acceptance="wishful"), Code.UNKNOWN_STRATEGY, 1),
    (opening(acceptance="broken"), Code.STRATEGY_FAILED, 1),
    (guess([3, 1, 4], [1], session=9), Code.UNKNOWN_SESSION, 9),
    (guess([3, 1, 4], [VOCAB], session=2), Code.TOKEN_OUT_OF_RANGE, 2),
    (m.Draft(2, 3, 0, Ids([1, 2]), m.Confidences([0.5])), Code.BAD_MESSAGE, 2),
    (guess([3, 1, 4], [1, 2], [0], session=2), Code.BAD_MESSAGE, 2),
    (guess([3, 1, 4], [1, 2], [0, MAX_NODES + 1], session=2), Code.BAD_MESSAGE, 2),
    (guess([3], [1, 2], [0, MAX_NODES + 2], 2, more=[[3, 1]]), Code.BAD_MESSAGE, 2),
    (Commit(2, 3, Ids([1])), Code.BAD_MESSAGE, None),
    (Pong(0, 0), Code.BAD_MESSAGE, None),
]


@pytest.mark.parametrize(("message", "code", "session"), FAULTS)
def test_a_fault_is_named_and_changes_no_other_text(
    message: m.Message, code: Code, session: int | None
) -> None:
    verifier = greeted()
    mine, theirs = opening(session=2), opening((5, 6, 7, 8, 9), session=1, seed=3)
    verifier.say(mine)
    verifier.say(theirs, peer=OTHER)
    verifier.step()
    answer = refusal(verifier, message)
    assert (answer.code, answer.session) == (code, session)
    assert verifier.registry.errors == 1
    assert verifier.free == 1
    assert verifier.finish(2) == verifier.plain(mine)[0]
    assert verifier.finish(1, OTHER) == verifier.plain(theirs)[0]


@pytest.mark.parametrize("message", [opening(), guess([1], [2]), Close(1), Commit(1, 0, Ids())])
def test_nothing_but_hello_and_ping_is_taken_before_the_greeting(message: m.Message) -> None:
    verifier = Verifier()
    assert refusal(verifier, hello(protocol=1)).code == Code.PROTOCOL_MISMATCH
    assert refusal(verifier, message).code == Code.NOT_GREETED
    assert verifier.say(Ping(7), 3.5) == [Pong(7, 3_500_000)]
    assert verifier.registry._peers == {}


def test_bytes_that_are_no_message_are_answered_with_their_fault() -> None:
    verifier = greeted()
    fault = ProtocolError(Code.TOO_LARGE, "x" * 3000)
    (reply,) = verifier.registry.handle(PEER, fault, 0.0)
    assert reply == Reply(PEER, Error(Code.TOO_LARGE, "x" * 1000))


@pytest.mark.parametrize("code", list(Code))
def test_every_refusal_can_travel(code: Code) -> None:
    (reply,) = greeted().registry.handle(PEER, ProtocolError(code, "why"), 0.0)
    assert codec.decode(codec.encode(reply.message)) == Error(code.value, "why")


def test_a_full_verifier_is_overloaded_until_a_session_closes() -> None:
    verifier = greeted(m.Limits(2, 64, 32, 5000))
    for session in (1, 2):
        assert verifier.say(opening(session=session)) == [Commit(session, 3, Ids())]
    answer = refusal(verifier, opening(session=3), OTHER)
    assert (answer.code, answer.session) == (Code.OVERLOADED, 3)
    assert verifier.say(Close(1)) == []
    assert verifier.say(opening(session=3), peer=OTHER) == [Commit(3, 3, Ids())]


def test_a_draining_verifier_takes_nothing_new_and_goes_on_with_the_old() -> None:
    verifier = greeted()
    verifier.say(opening())
    verifier.registry.draining = True
    assert refusal(verifier, opening(session=2)).code == Code.SHUTTING_DOWN
    assert verifier.say(opening()) == [Commit(1, 3, Ids())]


def test_peers_beyond_the_limit_are_overloaded_and_known_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_module, "MAX_PEERS", 2)
    verifier = greeted()
    assert refusal(verifier, hello(), b"third").code == Code.OVERLOADED
    assert isinstance(verifier.say(hello())[0], m.Welcome)


def test_every_greeting_is_welcomed_and_takes_no_session_away() -> None:
    verifier = Verifier(boot_id=77)
    names = verifier.settings.strategies
    welcome = m.Welcome(77, "target", verifier.limits, names, Ids([END]))
    assert verifier.say(hello()) == [welcome]
    verifier.say(opening())
    assert verifier.say(hello()) == [welcome]
    assert verifier.session().finish is None


@pytest.mark.parametrize("known", [0, 1, 4])
def test_a_repeated_open_says_the_text_again_from_where_the_peer_stands(known: int) -> None:
    verifier = greeted()
    opened = opening(max_tokens=20)
    verifier.say(opened)
    [verifier.step(float(turn)) for turn in range(6)]
    text, _ = verifier.plain(opened)
    said = verifier.session().tree.tokens[3:]
    again = opening(max_tokens=20, committed=text[:known])
    assert len(said) > 4
    assert verifier.say(again) == [Commit(1, 3 + known, Ids(said[known:]))]
    assert verifier.free == 2


OTHER_TEXTS = [
    {"prompt": (3, 1, 5)}, {"max_tokens": 5}, {"acceptance": "greedy"}, {"committed": [1] * 9}
]  # fmt: skip


@pytest.mark.parametrize("other", [opening(**fields) for fields in OTHER_TEXTS])
def test_an_open_that_asks_for_another_text_starts_anew_in_the_same_room(other: Open) -> None:
    verifier = greeted(m.Limits(1, 64, 32, 5000))
    verifier.say(opening())
    verifier.step(), verifier.step()
    assert verifier.say(other) == [Commit(1, len(other.prompt) + len(other.committed), Ids())]
    session = verifier.session()
    assert session.tree.tokens == [*other.prompt, *other.committed]
    assert session.slot == 0 and session.cached in (2, 3), "what both begin with is still there"


@pytest.mark.parametrize("known", range(1, 9))
def test_a_resumed_text_goes_on_as_if_it_had_never_stopped(known: int) -> None:
    verifier = greeted()
    whole = opening(max_tokens=9, temperature=1.0, seed=5)
    text, finish = verifier.plain(whole)
    rest = opening(max_tokens=9, temperature=1.0, seed=5, committed=text[:known])
    verifier.say(rest)
    assert verifier.finish() == text
    assert verifier.say(rest) == [Commit(1, 3 + known, Ids(text[known:]), finish=finish)]


@pytest.mark.parametrize(
    ("opened", "finish"),
    [
        (opening(committed=[5, END]), "stop"),
        (opening(committed=[5, 7], stop_ids=Ids([7])), "stop"),
        (opening(committed=[5, 7], max_tokens=2), "length"),
        (opening([1] * 60, committed=[5, 7, 1, 2]), "length"),
        (opening(committed=[5, END], max_tokens=2, ignore_eos=True), "length"),
    ],
)
def test_a_text_that_is_over_already_needs_no_slot(opened: Open, finish: str) -> None:
    verifier = greeted(m.Limits(0, 64, 32, 5000))
    position = len(opened.prompt) + len(opened.committed)
    assert verifier.say(opened) == [Commit(1, position, Ids(), finish=finish)]


def leave_by_close(verifier: Verifier) -> None:
    assert verifier.say(Close(1)) == []


def leave_by_lease(verifier: Verifier) -> None:
    verifier.say(Ping(0), 4.0, OTHER)
    verifier.registry.expire(5.0)
    assert verifier.free == 1, "the lease is not over yet"
    verifier.registry.expire(5.001)


def leave_by_forget(verifier: Verifier) -> None:
    for _ in range(2):
        verifier.registry.forget(PEER)


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_lease, leave_by_forget])
def test_who_leaves_frees_the_slot_and_the_others_stay(leave: Callable[[Verifier], None]) -> None:
    verifier = greeted()
    theirs = opening(session=1, seed=9)
    verifier.say(opening())
    verifier.say(theirs, peer=OTHER)
    verifier.step()
    leave(verifier)
    assert verifier.free == 2
    assert [peer for peer, _ in verifier.registry.waiting()] == [OTHER]
    assert verifier.finish(1, OTHER) == verifier.plain(theirs)[0]
    assert verifier.say(Close(1)) in ([], [Error(Code.NOT_GREETED, "say Hello first")])
    assert verifier.free == 3


def test_drafts_that_found_no_place_are_counted_when_the_session_ends() -> None:
    verifier = greeted()
    verifier.say(opening())
    lost = [([3, 1, 5], [1, 2]), ([3, 9], [4, 5]), ([3], [9, 4, 5]), ([3, 1, 4, 1], [5])]
    for elsewhere in (guess(anchor, tokens) for anchor, tokens in lost):
        assert verifier.say(elsewhere) == []
    verifier.say(Close(1))
    assert verifier.registry.dropped_drafts == 8


def test_a_lost_last_commit_can_be_asked_for_again_without_a_slot() -> None:
    verifier = greeted()
    verifier.say(opening(max_tokens=3))
    text = verifier.finish()
    assert verifier.free == 3
    again = opening(max_tokens=3, committed=text[:2])
    for _ in range(2):
        assert verifier.say(again) == [Commit(1, 5, Ids(text[2:]), finish="length")]
    assert verifier.say(guess([3, 1, 4, *text], [1])) == []


def test_the_number_of_finished_texts_is_bounded_and_the_newest_stay() -> None:
    verifier = greeted()
    for session in range(3 * MAX_FINISHED):
        verifier.say(opening(session=session, committed=[END]))
    kept = list(verifier.registry._peers[PEER].sessions)
    assert kept[-MAX_FINISHED:] == list(range(2 * MAX_FINISHED, 3 * MAX_FINISHED))
    assert len(kept) <= MAX_FINISHED + 1


def test_a_held_commit_is_said_again_and_its_session_rests_meanwhile() -> None:
    verifier = greeted()
    opened = opening((3,), max_tokens=9)
    verifier.say(opened)
    (reply,) = verifier.step()
    verifier.registry.hold(reply)
    assert verifier.registry.holding
    assert verifier.step(9.0) == []
    said = Commit(1, 1, Ids(verifier.plain(opened)[0][:1]))
    assert verifier.registry.held() == [Reply(PEER, said)]
    assert not verifier.registry.holding
    assert verifier.step(9.0) != []


def test_the_earliest_held_position_counts_and_an_open_settles_it() -> None:
    verifier = greeted()
    opened = opening((3,), max_tokens=9)
    verifier.say(opened)
    first, second = verifier.step(0.0), verifier.step(1.0)
    for reply in (*second, *first, *second):
        verifier.registry.hold(reply)
    text, _ = verifier.plain(opened)
    (reply,) = verifier.registry.held()
    assert reply.message == Commit(1, 1, Ids(text[:2]))
    verifier.registry.hold(Reply(PEER, Pong(0, 0)))
    assert not verifier.registry.holding, "the peer asks for this again by itself"
    verifier.registry.hold(reply)
    verifier.say(opened)
    assert verifier.registry.held() == []


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_forget])
def test_who_leaves_is_told_nothing_that_was_held(leave: Callable[[Verifier], None]) -> None:
    verifier = greeted()
    verifier.say(opening((3,)))
    for reply in verifier.step():
        verifier.registry.hold(reply)
    leave(verifier)
    assert verifier.registry.held() == []


def test_held_commits_of_finished_texts_outlive_their_number() -> None:
    verifier = greeted()
    for session in range(2 * MAX_FINISHED):
        (commit,) = verifier.say(opening(session=session, committed=[END]))
        verifier.registry.hold(Reply(PEER, commit))
    assert len(verifier.registry.held()) <= 2 * MAX_FINISHED
