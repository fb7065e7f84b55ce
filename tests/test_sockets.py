"""The sockets carry whole messages, bear garbage, and say what became of each send."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from test_messages import EXAMPLES, GOLDEN, ints

from bus import messages as m
from bus import sockets
from bus.errors import BadSetup, Code
from bus.sockets import Delivery, DrafterSocket, VerifierSocket
from bus.vocabulary import Vocabulary


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as stack:
        yield stack


def listening(keep: ExitStack, port: int = 0) -> VerifierSocket:
    return keep.enter_context(closing(VerifierSocket("127.0.0.1", port)))


def greeting(keep: ExitStack, address: str) -> DrafterSocket:
    """A drafter whose Open is on its way."""
    drafter = keep.enter_context(closing(DrafterSocket(address)))
    while drafter.send(EXAMPLES["Open"]) is not Delivery.SENT:
        drafter.wait(0.01)
    return drafter


def arrivals(at: Any, count: int) -> list[Any]:
    """What `at` drains until `count` things have come, or none came for a long time."""
    came: list[Any] = []
    while len(came) < count and at.wait(10.0):
        came += at.drain()
    return came


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_flag(host: str) -> None:
    sockets.check_exposure(host, insecure=False)
    assert sockets.host_of(sockets.tcp_address(host, 5555)) == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*", "8.8.8.8", "2001:db8::1", "gpu.example"])
def test_other_hosts_are_refused_unless_insecure(host: str) -> None:
    with pytest.raises(BadSetup, match="--insecure"):
        VerifierSocket(host, 0)
    with pytest.raises(BadSetup, match="--insecure"):
        sockets.check_exposure(host, insecure=False)
    sockets.check_exposure(host, insecure=True)


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:80", "ipc://x", "tcp://:80", "tcp://a", "tcp://a:", "tcp://a:0", "tcp://a:65536",
     "tcp://a:80/", "tcp://a b:80", "tcp://me@a:80",
     "tcp://127.0.0.1:\uff11\uff12", "tcp://::1:80", "tcp://[::1]", "tcp://a:80\n"],
)  # fmt: skip
def test_what_is_no_address_is_bad_setup(address: str) -> None:
    with pytest.raises(BadSetup, match="tcp://HOST:PORT"):
        DrafterSocket(address, insecure=True)


@pytest.mark.parametrize("address", ["tcp://*:5555", "tcp://;:55"])
def test_an_address_that_zmq_refuses_is_bad_setup(address: str) -> None:
    with pytest.raises(BadSetup, match="cannot connect to tcp://"):
        DrafterSocket(address, insecure=True)


@pytest.mark.parametrize("port", [-1, 65536, 70000])
def test_a_port_that_does_not_exist_is_bad_setup(port: int) -> None:
    with pytest.raises(BadSetup, match=f"there is no port {port}"):
        VerifierSocket("127.0.0.1", port)


def test_messages_travel_both_ways_and_their_bytes_are_counted(keep: ExitStack) -> None:
    verifier = listening(keep)
    drafter = greeting(keep, verifier.address)
    (asked,) = arrivals(verifier, 1)
    assert asked.content == EXAMPLES["Open"]
    assert verifier.send(asked.peer, EXAMPLES["Commit"]) is Delivery.SENT
    assert arrivals(drafter, 1) == [EXAMPLES["Commit"]]
    assert drafter.bytes_sent == verifier.bytes_received == len(GOLDEN["Open"]) // 2
    assert verifier.bytes_sent == drafter.bytes_received == len(GOLDEN["Commit"]) // 2


def test_a_port_in_use_is_bad_setup_that_names_the_flag(keep: ExitStack) -> None:
    taken = listening(keep)
    with pytest.raises(BadSetup, match="--port"):
        listening(keep, int(taken.address.rpartition(":")[2]))


def test_garbage_frames_hide_no_good_message(keep: ExitStack) -> None:
    verifier, good = listening(keep), bytes.fromhex(GOLDEN["Ping"])
    raw = keep.enter_context(zmq.Context.instance().socket(zmq.DEALER))
    raw.connect(verifier.address)
    for frames in ([good, good], [b"", good], [b"garbage"], [b""], [good]):
        raw.send_multipart(frames)
    *bad, last = arrivals(verifier, 5)
    assert [one.content.code for one in bad] == [Code.BAD_MESSAGE] * 4
    assert last.content == EXAMPLES["Ping"]
    assert {one.peer for one in bad} == {last.peer}


def test_a_drafter_leaves_out_what_is_no_message(keep: ExitStack) -> None:
    raw = keep.enter_context(zmq.Context.instance().socket(zmq.ROUTER))
    port = raw.bind_to_random_port("tcp://127.0.0.1")
    drafter = greeting(keep, f"tcp://127.0.0.1:{port}")
    peer, _ = raw.recv_multipart()
    raw.send_multipart([peer, b"garbage"])
    raw.send_multipart([peer, bytes.fromhex(GOLDEN["Pong"])])
    assert arrivals(drafter, 1) == [EXAMPLES["Pong"]]


def test_nothing_is_queued_for_a_verifier_that_is_not_there(keep: ExitStack) -> None:
    drafter = keep.enter_context(closing(DrafterSocket("tcp://127.0.0.1:1")))
    assert drafter.send(EXAMPLES["Ping"]) is Delivery.FULL
    assert drafter.bytes_sent == 0


def test_a_peer_that_left_is_gone(keep: ExitStack) -> None:
    verifier = listening(keep)
    with closing(greeting(keep, verifier.address)):
        (asked,) = arrivals(verifier, 1)
    tries = (verifier.wait(0.01) or verifier.send(asked.peer, m.Pong(1, 2)) for _ in range(500))
    assert Delivery.GONE in tries


def test_another_thread_ends_a_wait(keep: ExitStack) -> None:
    drafter = keep.enter_context(closing(DrafterSocket("tcp://127.0.0.1:1")))
    for rung_before in (True, False):
        waiting = threading.Thread(target=drafter.wait, args=(600.0,), daemon=True)
        if rung_before:
            drafter.wake()
        waiting.start()
        for _ in range(3):
            drafter.wake()
        waiting.join(20)
        assert not waiting.is_alive()
        assert drafter.wait(0.0) is False, "nothing can be read"
    drafter.wait(0.01)
    assert not drafter._woken(), "one wait takes all that was rung"


@given(st.dictionaries(st.text(), ints(1 << 20)))
def test_a_vocabulary_depends_on_the_map_alone(ids: dict[str, int]) -> None:
    known = Vocabulary.of(ids)
    assert known == Vocabulary.of(dict(reversed(ids.items())))
    assert known.size == max(ids.values(), default=-1) + 1


def test_another_token_or_id_makes_another_vocabulary() -> None:
    maps = [{"a": 0, "b": 1}, {"a": 1, "b": 0}, {"a": 0, "c": 1}, {"a": 0, "b": 2}, {"a": 0}, {}]
    assert len({Vocabulary.of(one).digest for one in maps}) == len(maps)
    assert Vocabulary.of(maps[0]).digest == hashlib.sha256(b"0 1 a1 1 b").digest()


def test_a_token_with_separators_in_it_makes_another_vocabulary() -> None:
    assert Vocabulary.of({"a": 0, "b": 1, "c": 2}) != Vocabulary.of({"a1 1 b": 0, "c": 2})
