"""An emulated network: nothing is read before its time, and nothing overtakes."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from test_messages import EXAMPLES
from test_sockets import arrivals

from bus import messages as m
from bus.delay import Line
from bus.errors import BadSetup
from bus.sockets import Delivery, DrafterSocket, VerifierSocket

# The line itself, with times as arguments --------------------------------------------


def carried(sender: Line, receiver: Line, number: int, now: float, peer: bytes = b"") -> None:
    """A message that travels in no time, so that all delay is the line's."""
    receiver.hold(peer, [b"%d" % number, sender.stamp(b"", now)])


def test_a_message_is_held_back_for_its_delay() -> None:
    sender, receiver = Line(0.25), Line()
    carried(sender, receiver, 1, 10.0)
    carried(sender, receiver, 2, 10.125)
    assert receiver.next_at() == 10.25
    assert receiver.due(10.2499) == []
    assert receiver.due(10.25) == [[b"1"]]
    assert receiver.next_at() == 10.375
    assert receiver.due(99.0) == [[b"2"]]
    assert receiver.next_at() is None


@pytest.mark.parametrize("seed", range(20))
def test_jitter_adds_to_the_delay_and_keeps_the_order(seed: int) -> None:
    sender, receiver = Line(0.25, 0.5, seed), Line()
    for number in range(50):
        carried(sender, receiver, number, number / 100)
    readable, order = [], []
    while (at := receiver.next_at()) is not None:
        for (payload,) in receiver.due(at):
            readable.append(at)
            order.append(int(payload))
    assert order == list(range(50))
    assert all(at >= number / 100 + 0.25 for number, at in zip(order, readable, strict=True))
    assert readable[-1] <= 0.49 + 0.25 + 0.5
    assert len({round(at - number / 100, 6) for number, at in enumerate(readable)}) > 10


def test_two_peers_keep_their_own_order_and_delays() -> None:
    near, far, receiver = Line(0.125), Line(1.0), Line()
    carried(far, receiver, 1, 0.0, b"far")
    carried(near, receiver, 2, 0.5, b"near")
    carried(far, receiver, 3, 0.5, b"far")
    assert receiver.due(0.7) == [[b"2"]]
    assert receiver.due(1.5) == [[b"1"], [b"3"]]


def test_what_a_peer_stamps_holds_for_the_answers() -> None:
    mine, theirs = Line(0.25), Line()
    carried(mine, theirs, 1, 0.0, b"far")
    for peer, readable in ((b"far", 5.25), (b"unknown", 5.0)):
        mine.hold(b"", [b"answer", theirs.stamp(peer, 5.0)])
        assert mine.next_at() == readable
        assert mine.due(readable) == [[b"answer"]]


def test_what_has_no_stamp_is_not_heard() -> None:
    line = Line()
    line.hold(b"peer", [b"peer", b"no stamp"])
    line.hold(b"peer", [b""])
    assert line.next_at() is None
    assert line.due(1e9) == []


# Through sockets ---------------------------------------------------------------------


@pytest.fixture
def open_() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as stack:
        yield stack


def pair(open_: ExitStack, delay_s: float) -> tuple[DrafterSocket, VerifierSocket]:
    verifier = open_.enter_context(closing(VerifierSocket("127.0.0.1", 0, line=Line())))
    drafter = DrafterSocket(verifier.address, line=Line(delay_s))
    return open_.enter_context(closing(drafter)), verifier


def sent(drafter: DrafterSocket, message: m.Message) -> float:
    """When `message` was handed over."""
    while True:
        now = time.monotonic()
        if drafter.send(message) is Delivery.SENT:
            return now
        drafter.wait(0.01)


def arrived(at: Any) -> tuple[Any, float]:
    """One thing that came, and when."""
    (came,) = arrivals(at, 1)
    return came, time.monotonic()


def test_both_ways_take_the_drafters_delay(open_: ExitStack) -> None:
    drafter, verifier = pair(open_, 0.2)
    began = sent(drafter, EXAMPLES["Open"])
    asked, heard = arrived(verifier)
    assert asked.content == EXAMPLES["Open"]
    assert heard - began >= 0.2
    answered = time.monotonic()
    assert verifier.send(asked.peer, EXAMPLES["Commit"]) is Delivery.SENT
    answer, back = arrived(drafter)
    assert answer == EXAMPLES["Commit"]
    assert back - answered >= 0.2


def test_a_busy_receiver_loses_nothing_by_what_was_on_its_way(open_: ExitStack) -> None:
    drafter, verifier = pair(open_, 0.1)
    for number in range(20):
        sent(drafter, m.Ping(number))
    time.sleep(0.2)
    assert [one.content for one in arrivals(verifier, 20)] == [m.Ping(n) for n in range(20)]


def test_stamps_are_no_payload(open_: ExitStack) -> None:
    drafter, verifier = pair(open_, 0.0)
    sent(drafter, EXAMPLES["Open"])
    (asked,) = arrivals(verifier, 1)
    verifier.send(asked.peer, EXAMPLES["Commit"])
    arrivals(drafter, 1)
    assert drafter.bytes_sent == verifier.bytes_received
    assert verifier.bytes_sent == drafter.bytes_received


def test_a_wait_ends_when_nothing_comes(open_: ExitStack) -> None:
    drafter, verifier = pair(open_, 30.0)
    sent(drafter, EXAMPLES["Ping"])
    began = time.monotonic()
    assert not verifier.wait(0.05)
    assert time.monotonic() - began >= 0.05
    assert verifier.drain() == []


def test_a_peer_without_stamps_is_not_heard(open_: ExitStack) -> None:
    drafter, verifier = pair(open_, 0.0)
    plain = open_.enter_context(closing(DrafterSocket(verifier.address)))
    sent(plain, EXAMPLES["Open"])
    sent(drafter, EXAMPLES["Ping"])
    assert [one.content for one in arrivals(verifier, 1)] == [EXAMPLES["Ping"]]
    assert not verifier.wait(0.1)


def test_a_network_is_emulated_on_loopback_alone() -> None:
    for insecure in (False, True):
        with pytest.raises(BadSetup, match="loopback"):
            VerifierSocket("0.0.0.0", 0, insecure, line=Line())
        with pytest.raises(BadSetup, match="loopback"):
            DrafterSocket("tcp://192.0.2.1:80", insecure, line=Line())
