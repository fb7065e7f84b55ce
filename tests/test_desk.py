"""The desk and the queue before it: what is asked for is done in the loop, and told once."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from bus.errors import Refused, Unreachable
from bus.messages import Sampling
from bus.packed import Ids
from drafter_mlx.config import Drafts
from drafter_mlx.desk import Desk, Over
from drafter_mlx.http.metrics import Gauges, Metrics, Watch
from drafter_mlx.http.problems import Problem
from drafter_mlx.http.reception import Entry, Reception
from drafter_mlx.session import Request
from drafter_mlx.stats import Stats

REQUEST = Request(Ids([1, 2]), Sampling())


class FakeDaemon:
    """Sessions without a model; `turns` are what happens between two questions whether to stop."""

    def __init__(self, turns=()):
        self.talk = SimpleNamespace(errors={}, failure=None, welcome=None, rtt_s=None, overs=0)
        self.talk.start_over = self._start_over
        self.turns, self.sessions, self.forgotten, self.woken = list(turns), [], [], 0
        self.wire_bytes = 0

    def start(self, request, drafts, listener):
        if drafts.drafting == "broken":
            raise ZeroDivisionError
        session = SimpleNamespace(id=len(self.sessions), finish=None, tree=(), stats=Stats(2))
        self.sessions.append(session)
        return session

    def forget(self, session):
        self.forgotten.append(session.id)

    def wake(self):
        self.woken += 1

    def run(self, done):
        while not done() and self.talk.failure is None:
            self.turns.pop(0)(self)

    def _start_over(self, now):
        self.talk.failure = None
        self.talk.overs += 1


def submit(desk, told, drafting="tree"):
    return desk.submit(REQUEST, Drafts(drafting), told.append)


def test_a_session_that_ends_is_told_once_and_forgotten():
    daemon = FakeDaemon()
    desk, told = Desk(daemon), []
    ticket = submit(desk, told)
    assert daemon.woken == 1
    assert daemon.sessions == [], "nothing is done in the caller's thread"

    def finish(daemon):
        daemon.sessions[0].finish = "stop"

    daemon.turns = [finish, lambda _: desk.withdraw(ticket), lambda _: desk.close()]
    desk.run()
    assert [(over.finish, over.error) for over in told] == [("stop", None)]
    assert daemon.forgotten == [0]


def test_what_fails_or_is_withdrawn_leaves_nothing_behind():
    daemon = FakeDaemon()
    desk, told = Desk(daemon), []
    error = Refused("bad_params", "no")
    submit(desk, told)
    second = submit(desk, told)
    submit(desk, told, "broken")

    def refuse(daemon):
        daemon.talk.errors[0] = error

    daemon.turns = [refuse, lambda _: desk.withdraw(second), lambda _: desk.close()]
    desk.run()
    assert "ZeroDivisionError" in str(told[0].error)
    assert told[1].error is error
    assert told[2] == Over(None, daemon.sessions[1].stats)
    assert daemon.talk.errors == {}, "or they would pile up"
    assert daemon.forgotten == [0, 1]


def test_a_verifier_given_up_fails_what_is_open_and_is_hoped_for():
    daemon = FakeDaemon()
    desk, told = Desk(daemon), []
    submit(desk, told)

    def lose(daemon):
        daemon.talk.failure = Unreachable("gone")

    daemon.turns = [lose, lambda _: submit(desk, told), lambda _: desk.close()]
    desk.run()
    assert str(told[0].error) == "gone"
    assert desk.standing.trouble == "gone"
    assert daemon.talk.overs == 1
    assert "shutting down" in str(told[1].error)


class FakeDesk:
    def __init__(self):
        self.tickets, self.withdrawn = [], []

    def submit(self, request, drafts, tell):
        self.tickets.append(tell)
        return tell

    def withdraw(self, ticket):
        self.withdrawn.append(ticket)


def reception(desk, max_concurrent, max_queue):
    return Reception(desk, Metrics(Gauges, lambda: "m"), max_concurrent, max_queue)


def entry(told, name):
    return Entry(REQUEST, Drafts(), lambda event: told.append((name, event)), Watch())


async def ended(desk, number):
    """The desk says, in another thread, that its n-th text is over."""
    over = Over("stop", Stats(2))
    thread = threading.Thread(target=desk.tickets[number], args=(over,))
    thread.start()
    thread.join()
    await asyncio.sleep(0)
    return over


def test_texts_are_made_in_order_and_the_queue_is_bounded():
    async def story():
        desk, told = FakeDesk(), []
        front = reception(desk, max_concurrent=2, max_queue=1)
        entries = [entry(told, name) for name in "abcd"]
        front.admit(entries[:2])
        assert len(desk.tickets) == 2
        front.admit(entries[2:3])
        with pytest.raises(Problem) as caught:
            front.admit(entries[3:])
        assert caught.value.status == 429
        over = await ended(desk, 0)
        assert told == [("a", over)]
        assert desk.tickets[2:] == [entries[2].ticket], "a place is filled as soon as it is free"
        front.admit(entries[3:])
        front.dismiss(entries[3])
        assert (len(front.waiting), len(front.running)) == (0, 2)
        front.dismiss(entries[1])
        assert desk.withdrawn == [entries[1].ticket]
        assert entries[1] in front.running, "until the desk has let go of it"

    asyncio.run(story())


def test_a_verifier_given_up_fails_those_who_wait_for_a_place_too():
    async def story():
        desk, told = FakeDesk(), []
        front = reception(desk, max_concurrent=1, max_queue=5)
        front.admit([entry(told, name) for name in "abc"])
        desk.tickets[0](Over(None, Stats(2), Unreachable("gone")))
        await asyncio.sleep(0)
        assert sorted(name for name, _ in told) == ["a", "b", "c"]
        assert {str(over.error) for _, over in told} == {"gone"}
        assert (len(desk.tickets), len(front.waiting), len(front.running)) == (1, 0, 0)

    asyncio.run(story())


def test_when_time_is_up_everybody_is_told():
    async def story():
        desk, told = FakeDesk(), []
        front = reception(desk, max_concurrent=1, max_queue=5)
        front.admit([entry(told, name) for name in "abc"])
        front.end_all(Unreachable("closing"))
        assert sorted(name for name, _ in told) == ["a", "b", "c"]
        assert {str(over.error) for _, over in told} == {"closing"}
        assert len(desk.withdrawn) == 1

    asyncio.run(story())
