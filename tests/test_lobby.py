"""Who may join a session, what a guest is told, and what stays when it leaves."""

from typing import Any

import pytest
from fakes import PEER, VOCAB, Verifier, guess, hello, opening
from msgspec.structs import replace

from bus.errors import Code
from bus.messages import Close, Commit, Error, Join, Message, Open, Share
from bus.packed import Ids
from verifier_cuda.lobby import FIRST_OFFER, MAX_DRAFTERS

GUEST = b"guest"
SECRET = 7
SHARED = replace(opening(max_tokens=20, ignore_eos=True), shared=SECRET)


def replies(verifier: Verifier, message: Message, peer: bytes) -> list[tuple[bytes, Message]]:
    return [(r.peer, r.message) for r in verifier.registry.handle(peer, message, 0.0)]


def greeted() -> Verifier:
    """A verifier before which two drafters are."""
    verifier = Verifier()
    for peer in (PEER, GUEST):
        verifier.say(hello(model=peer.decode()), peer=peer)
    return verifier


def joined(verifier: Verifier) -> Open:
    """The offer by which the guest drafts for the other's session."""
    replies(verifier, SHARED, PEER)
    ((_, offer),) = replies(verifier, Join(SECRET), GUEST)
    assert isinstance(offer, Open)
    replies(verifier, offer, GUEST)
    return offer


def test_sessions_are_offered_to_whoever_knows_their_secret_now_and_later() -> None:
    verifier = greeted()
    replies(verifier, SHARED, PEER)
    assert replies(verifier, Join(SECRET + 1), GUEST) == []
    assert replies(verifier, Join(0), GUEST) == []
    ((to, offer),) = replies(verifier, Join(SECRET), GUEST)
    assert (to, offer) == (GUEST, replace(SHARED, session=FIRST_OFFER, guest=True))
    (answer, (to, second)) = replies(verifier, replace(SHARED, session=2), PEER)
    assert answer[0] == PEER
    assert isinstance(answer[1], Commit)
    assert to == GUEST
    assert isinstance(second, Open)
    assert second.session == FIRST_OFFER + 1
    assert replies(verifier, replace(SHARED, session=3, shared=0), PEER)[1:] == [], "not shared"
    assert replies(verifier, Join(SECRET), PEER) == [], "its own"
    ((_, refused),) = replies(verifier, offer, PEER)
    assert isinstance(refused, Error)


def test_an_offer_says_how_far_the_text_is_and_is_not_made_twice() -> None:
    verifier = greeted()
    replies(verifier, SHARED, PEER)
    for _ in range(4):
        verifier.step()
    ((_, offer),) = replies(verifier, Join(SECRET), GUEST)
    assert isinstance(offer, Open)
    text = tuple(verifier.session().tree.tokens[3:])
    assert offer.committed == text
    assert len(text) > 1
    ((_, said),) = replies(verifier, offer, GUEST)
    assert said == Commit(FIRST_OFFER, 3 + len(text), Ids())
    assert replies(verifier, Join(SECRET), GUEST) == []


@pytest.mark.parametrize(
    "change",
    [{"shared": SECRET + 1}, {"shared": 0}, {"session": FIRST_OFFER + 1}, {"prompt": Ids([3, 1])},
     {"committed": Ids([1])}, {"acceptance": "greedy"}],
)  # fmt: skip
def test_who_does_not_know_the_session_cannot_join_it(change: dict[str, Any]) -> None:
    verifier = greeted()
    replies(verifier, SHARED, PEER)
    ((_, offer),) = replies(verifier, Join(SECRET), GUEST)
    assert isinstance(offer, Open)
    ((_, said),) = replies(verifier, replace(offer, **change), GUEST)
    assert isinstance(said, Error)
    assert said.code == Code.NOT_SHARED
    assert len(verifier.session().sources) == 1


def test_a_guests_draft_is_verified_and_every_drafter_is_told() -> None:
    verifier = greeted()
    offer = joined(verifier)
    verifier.step()
    session = verifier.session()
    right = verifier.plain(SHARED)[0]
    known = len(session.tree.tokens) - 3
    replies(verifier, guess(session.tree.tokens, right[known : known + 2], session=offer.session),
            GUEST)  # fmt: skip
    told = verifier.step()
    assert [(r.peer, r.message.session) for r in told] == [(PEER, 1), (GUEST, offer.session)]
    assert {r.message.tokens for r in told} == {right[known : known + 3]}
    assert all(r.message.accepted == 2 for r in told)
    assert [source.share for source in session.sources] == [
        Share("peer", 0, 0), Share("guest", 2, 2)
    ]  # fmt: skip


def test_a_guess_of_two_counts_for_both() -> None:
    verifier = greeted()
    offer = joined(verifier)
    verifier.step()
    tokens = list(verifier.session().tree.tokens)
    right = verifier.plain(SHARED)[0][len(tokens) - 3]
    wrong = (right + 1) % VOCAB
    replies(verifier, guess(tokens, [right]), PEER)
    replies(verifier, guess(tokens, [wrong, right], [0, 0], offer.session), GUEST)
    verifier.step()
    shares = [(s.drafted, s.accepted) for s in verifier.session().sources]
    assert shares == [(1, 1), (2, 1)]


def test_the_last_commit_says_what_each_gave_and_can_be_repeated() -> None:
    verifier = greeted()
    joined(verifier)
    text = verifier.finish()
    last = verifier.session().since(3)
    assert last.tokens == text
    assert last.shares == (Share("peer", 0, 0), Share("guest", 0, 0))
    assert verifier.registry._peers[GUEST].guest_of == {}, "the guest has left"


def test_a_guest_that_leaves_or_reads_nothing_is_no_more_told() -> None:
    for farewell in ("close", "forget", "full"):
        verifier = greeted()
        offer = joined(verifier)
        verifier.step()
        told = verifier.step()
        assert [r.peer for r in told] == [PEER, GUEST]
        if farewell == "close":
            replies(verifier, Close(offer.session), GUEST)
        elif farewell == "forget":
            verifier.registry.forget(GUEST)
        else:
            verifier.registry.hold(told[1])
        assert [r.peer for r in verifier.step()] == [PEER]
        assert not verifier.registry.holding
        assert verifier.free == 2


def test_a_guest_that_has_left_is_not_said_to_be_late() -> None:
    verifier = greeted()
    offer = joined(verifier)
    verifier.step()
    session = verifier.session()
    for _ in range(2):
        replies(verifier, replace(guess(session.tree.tokens, [1], session=offer.session),
                                  turnaround_us=10), GUEST)  # fmt: skip
        verifier.step()
    replies(verifier, Close(offer.session), GUEST)
    before = session.sources[1].pace.arrives.value
    for turn in range(5):
        verifier.step(100.0 + turn)
    assert session.sources[1].pace.arrives.value == before


def test_a_session_ends_with_its_opener() -> None:
    verifier = greeted()
    offer = joined(verifier)
    replies(verifier, Close(1), PEER)
    assert verifier.free == 3
    assert verifier.step() == []
    assert replies(verifier, guess((3, 1, 4), [5], session=offer.session), GUEST) == []
    ((_, said),) = replies(verifier, offer, GUEST)
    assert isinstance(said, Error)


def test_one_drafter_can_come_back_and_many_cannot_come() -> None:
    verifier = greeted()
    offer = joined(verifier)
    for _ in range(3):
        replies(verifier, Close(offer.session), GUEST)
        replies(verifier, offer, GUEST)
    assert len(verifier.session().sources) == 2
    for number in range(MAX_DRAFTERS):
        name = b"more %d" % number
        verifier.say(hello(), peer=name)
        replies(verifier, offer, name)
    assert len(verifier.session().sources) == MAX_DRAFTERS
