"""Several drafters for one session: whoever comes, leaves or lags, the text is the target's own.

The halves are those of `test_halves.py`, with guests beside the drafter that opened
the sessions: each has a connection of its own over the same bad link.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from fakes import Voice, guesses, hello
from test_halves import ACTIONS, FIELDS, WORLD, World

import strategies
from bus import codec
from bus.messages import Message
from drafter_mlx.conversation import Conversation
from drafter_mlx.piece import Piece
from drafter_mlx.request import Request
from drafter_mlx.session import Session
from strategies.drafting import Options
from verifier_cuda.registry import Reply

GUEST = b"guest"
SECRET = 7


class Guest:
    """A drafter that helps whoever shares with it."""

    def __init__(self, name: bytes, style: str, drafting: str, now: float) -> None:
        self.name, self.style = name, style
        self.talk = Conversation(hello(), "tcp://verifier:7700", 1e9, now)
        self.talk.joined = SECRET
        self.heard: list[Piece] = []
        self._drafting = drafting

    def turn(self, voice: Voice, now: float) -> list[Message]:
        """What it has to say."""
        self.talk.tick(now)
        offers, self.talk.offers = self.talk.offers, {}
        for number, offer in offers.items():
            request = Request(offer.prompt, offer.sampling, offer.acceptance, offer.committed,
                              offer.lockstep, shared=offer.shared, guest=True)  # fmt: skip
            drafting = strategies.load("drafting", self._drafting)(Options(3, 6, 2, 3))
            self.talk.start(Session(number, request, drafting, 6), self.heard.append, now)
        for session in self.talk.sessions:
            if step := session.plan():
                found = [guesses(self.style, voice, session.tokens_to(node),
                                 session.request.sampling, step.children)
                         for node in step.expand]  # fmt: skip
                self.talk.push(session.expanded(step, found))
        self.talk.errors.clear()
        outbox, self.talk.outbox = self.talk.outbox, []
        return outbox


class Party(World):
    """A world with guests."""

    def __init__(
        self, chosen: dict[str, Any], jobs: list[dict[str, Any]], guests: Sequence[tuple[str, str]]
    ) -> None:
        self.guests: list[Guest] = []
        super().__init__(chosen, jobs)
        self._styles = guests
        for _ in guests:
            self.come()

    def come(self) -> None:
        """A guest arrives."""
        style, drafting = self._styles[len(self.guests) % len(self._styles)]
        name = b"guest %d" % next(self._serial)
        self.guests.append(Guest(name, style, drafting, self.now))

    def leave(self) -> None:
        """The guest that is here longest is gone without a word; another comes."""
        if self.guests:
            self.guests.pop(0)
        self.come()

    def draft(self, steps: int, style: str) -> None:
        super().draft(steps, style)
        for guest in self.guests:
            for message in guest.turn(self.voice, self.now):
                if not self._post("up", guest.name, message):
                    guest.talk.unsent(message)

    def carry(self, way: str, count: int) -> None:
        guests = {guest.name: guest for guest in self.guests}
        for peer, payload in self.links[way][:count] if way == "down" else ():
            if peer in guests:
                guests[peer].talk.handle(codec.decode(payload), self.now)
        super().carry(way, count)

    def check(self) -> None:
        super().check()
        for guest in self.guests:
            for session in guest.talk.sessions:
                assert any(
                    job.expected[: len(session.committed)] == session.committed
                    for job in self.jobs
                    if job.prompt == session.request.prompt
                )

    def _reply(self, replies: list[Reply]) -> None:
        here = {guest.name for guest in self.guests}
        for reply in replies:
            if reply.peer in here and not self._post("down", reply.peer, reply.message):
                self.verifier.registry.hold(reply)
        super()._reply([reply for reply in replies if reply.peer not in here])


STYLES = [("good", "pipelined"), ("bad", "fixed"), ("fair", "tree"), ("odd", "multi")]


@pytest.mark.parametrize("seed", range(60))
def test_guests_on_a_bad_link_leave_every_text_plain(seed: int) -> None:
    rng = random.Random(seed)
    tables = [WORLD] + [FIELDS | {"shared": [SECRET]}] * rng.randint(1, 3)
    chosen, *jobs = [{name: rng.choice(table[name]) for name in table} for table in tables]
    party = Party(chosen, jobs, rng.choices(STYLES, k=rng.randint(1, 3)))
    for action in rng.choices([*ACTIONS, ("leave",), ("leave",), ("come",)], k=150):
        getattr(party, action[0])(*action[1:])
        party.check()
    party.finish()


def test_a_good_guest_makes_up_for_a_bad_drafter_and_the_other_way_round() -> None:
    base = {name: values[0] for name, values in FIELDS.items()}
    job = base | {"max_tokens": 50, "drafting": "pipelined", "window": 6, "shared": SECRET}
    chosen = {name: values[-1] for name, values in WORLD.items()} | {"end_every": 0}
    passes = {}
    for own, helped in (("bad", "bad"), ("bad", "sure"), ("sure", "bad")):
        party = Party(chosen, [job], [(helped, "pipelined")])
        for _ in range(60):
            party.turn(own, 0.03)
            party.check()
        stats = party.jobs[0].session.stats
        assert stats.tokens == 50
        passes[own, helped] = stats.passes
        assert [share.model for share in stats.shares] == ["draft", "draft"]
        first, second = (share.accepted / share.drafted for share in stats.shares)
        assert (first > 0.8) == (own == "sure")
        assert (second > 0.8) == (helped == "sure")
    assert passes["bad", "bad"] == 50
    assert passes["bad", "sure"] < 30
    assert passes["sure", "bad"] < 30
