"""Invariant: whatever the link, the drafts, restarts and leases do, each text is the target's own.

The two pure halves are real and talk through the codec. Between them lies a link
that loses, repeats, delays and reorders, under a virtual clock. The committed text
is always a prefix of plain decoding and only grows; once the link is healed, every
session ends with exactly that text, in a bounded number of steps.

More seeds: `SOAK_SEEDS=2000 pytest tests/test_halves.py -k soak`; one again: `-k "soak and [17]"`.
"""

import itertools
import os
import random
from typing import Any

import pytest
from fakes import END, Verifier, Voice, guesses, hello, plain_decode
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import strategies
from bus import codec
from bus.messages import Limits, Message, Sampling
from bus.packed import Ids
from drafter_mlx.conversation import Conversation
from drafter_mlx.experience import Experience
from drafter_mlx.session import Piece, Request, Session
from strategies.costs import Costs
from strategies.drafting import OPTIONS, Options
from verifier_cuda.registry import Reply

FIELDS: dict[str, list[Any]] = {
    "prompt": [Ids([1]), Ids([5, 0, 5]), Ids([7, 2, 9, 4, 4, 1, 3, 8, 6])],
    "max_tokens": [1, 9, 50, 90],
    "temperature": [0.0, 1.0],
    "seed": [1, 2, 1 << 63],
    "stop_ids": [Ids(), Ids(), Ids([3])],
    "ignore_eos": [False, True],
    "acceptance": ["exact", "exact", "exact", "greedy"],
    "drafting": strategies.names("drafting"),
    "window": [1, 2, 3, 5, 8],
    "num_draft_tokens": [1, 3, 4],
    "branches": [1, 2, 3, 9], "step_nodes": [1, 3, 8], "shared": [0, 7],
}  # fmt: skip
"""What a job may ask for."""
WORLD: dict[str, list[Any]] = {
    "salt": [*range(20)], "end_every": [0, 20, 90],
    "max_sessions": [1, 3, 4],
    "max_model_len": [14, 60, 100],
    "max_tree_nodes": [2, 7, 32],
    "width": [1, 4, 6],
    "room": [2, 6, 20], "ragged": [True, False],
    "costs": [{}, {1: 0.03, 6: 0.09}, {1: 0.03, 6: 0.03}],
}  # fmt: skip
"""What a verifier and its link may be like; `room` is how many messages a direction holds."""
STEP_COSTS = {1: 0.01, 4: 0.011, 8: 0.03}  # so that several nodes at once pay
ACTIONS: list[tuple[Any, ...]] = [
    *[("turn", style, elapsed_s) for style in ("good", "good", "fair", "odd")
      for elapsed_s in (0.0, 0.03, 0.03)],
    *[("draft", steps, style) for steps in (1, 3) for style in ("good", "good", "fair", "bad")],
    *[("carry", way, count) for way in ("up", "down") for count in (1, 2, 9, 9, 9, 9)],
    *[("serve", elapsed_s) for elapsed_s in (0.0, 0.03, 0.03, 0.03, 0.03, 0.2)],
    *[("disturb", way, how, at) for way in ("up", "down") for how in ("lose", "repeat", "swap")
      for at in (0, 2)],
    *[("wait", duration_s, False) for duration_s in (0.01, 0.01, 0.05, 0.05, 0.6, 2.1)],
] * 3 + [
    ("wait", 5.5, False), ("wait", 0.0, True), ("reconnect",), ("restart_drafter",),
    ("restart_verifier", True), ("restart_verifier", False),
]  # fmt: skip
"""What may happen next, the disasters more rarely."""


class Job:
    """One text to be made, over as many drafter runs as it takes."""

    def __init__(self, fields: dict[str, Any], voice: Voice, max_len: int) -> None:
        names = ("max_tokens", "temperature", "seed", "stop_ids", "ignore_eos")
        self.sampling = Sampling(**{name: fields[name] for name in names})
        self.fields = fields
        self.prompt = fields["prompt"]
        self.text: tuple[int, ...] = ()
        self.begin(0)
        self.expected, self.finish = plain_decode(
            voice, self.prompt, self.sampling, frozenset({END}), max_len
        )

    def begin(self, session_id: int) -> Session:
        """A new drafter takes it up, with the text that the last one had."""
        fields, self.told = self.fields, len(self.text)
        options = Options(*(fields[name] for name in OPTIONS))
        drafting = strategies.load("drafting", fields["drafting"])(options)
        named = (self.prompt, self.sampling, fields["acceptance"], Ids(self.text))
        request = Request(*named, shared=fields["shared"])
        experience = Experience(step_costs=Costs(STEP_COSTS))
        self.session = Session(session_id, request, drafting, options.window, experience)
        return self.session

    def listen(self, piece: Piece) -> None:
        assert len(piece.tokens) == len(piece.origins)
        self.told += len(piece.tokens)

    def check(self) -> None:
        committed = self.session.committed
        assert committed == self.expected[: len(committed)]
        assert committed[: len(self.text)] == self.text, "text was taken back"
        assert self.told == len(committed)
        assert len(self.session.tree) <= self.session.tree.max_nodes
        assert len(self.session.tree.chain()) <= self.fields["window"]
        stats = self.session.stats
        assert stats.tokens == len(committed) - len(self.session.request.committed)
        assert stats.accepted <= min(stats.drafted, stats.tokens)
        if self.session.finish:
            assert (committed, self.session.finish) == (self.expected, self.finish)
        self.text = committed


class World:
    """Both halves and the link between them."""

    def __init__(self, chosen: dict[str, Any], jobs: list[dict[str, Any]]) -> None:
        self.now = 100.0
        self.chosen = chosen
        self.voice = Voice(chosen["salt"], chosen["end_every"])
        sizes = ("max_sessions", "max_model_len", "max_tree_nodes")
        self.limits = Limits(*(chosen[name] for name in sizes), lease_ms=5000)
        self.links: dict[str, list[tuple[bytes, bytes]]] = {"up": [], "down": []}
        self.jobs = [Job(fields, self.voice, self.limits.max_model_len) for fields in jobs]
        self._serial = itertools.count(1)
        self.restart_verifier(rename=True)
        self.restart_drafter()

    def restart_verifier(self, rename: bool) -> None:
        more = {name: self.chosen[name] for name in ("width", "costs", "ragged")}
        self.verifier = Verifier(self.voice, self.limits, next(self._serial), **more)
        if rename:
            self.reconnect()

    def restart_drafter(self) -> None:
        self.talk = Conversation(hello(), "tcp://verifier:7700", 1e9, self.now)
        for job in self.jobs:
            if not job.session.finish:
                self.talk.start(job.begin(next(self._serial)), job.listen, self.now)
        self.reconnect()

    def reconnect(self) -> None:
        """The drafter gets another routing id, as from every new connection."""
        self.peer = b"name %d" % next(self._serial)

    def turn(self, style: str, elapsed_s: float) -> None:
        """A turn of both loops while the link is well."""
        self.draft(2, style)
        self.carry("up", 99)
        self.serve(elapsed_s)
        self.carry("down", 99)

    def draft(self, steps: int, style: str) -> None:
        """A turn of the drafter's loop, with up to `steps` draft steps."""
        self.talk.tick(self.now)
        for _, session in itertools.product(range(steps), self.talk.sessions):
            if step := session.plan():
                found = [
                    guesses(style, self.voice, session.tokens_to(node),
                            session.request.sampling, step.children)
                    for node in step.expand
                ]  # fmt: skip
                self.talk.push(session.expanded(step, found))
        outbox, self.talk.outbox = self.talk.outbox, []
        for message in outbox:
            if not self._post("up", self.peer, message):
                self.talk.unsent(message)

    def serve(self, elapsed_s: float) -> None:
        """The end of a turn of the verifier's loop: held commits, then a pass."""
        self._reply(self.verifier.registry.held())
        replies = self.verifier.step(self.now, elapsed_s)
        self.now += elapsed_s
        self._reply(replies)

    def carry(self, way: str, count: int) -> None:
        """Deliver up to `count` messages."""
        link = self.links[way]
        for peer, payload in [link.pop(0) for _ in link[:count]]:
            message = codec.decode(payload)
            if way == "up":
                self._reply(self.verifier.registry.handle(peer, message, self.now))
            elif peer == self.peer:
                self.talk.handle(message, self.now)

    def disturb(self, way: str, how: str, at: int) -> None:
        link = self.links[way]
        if len(link) > at:
            taken = link[at] if how == "repeat" else link.pop(at)
            if how != "lose":
                link.append(taken)

    def wait(self, duration_s: float, expire: bool) -> None:
        self.now += duration_s
        if expire:
            self.verifier.registry.expire(self.now)

    def check(self) -> None:
        assert not (self.talk.failure or self.talk.errors)
        for job in self.jobs:
            job.check()
        registry, limits = self.verifier.registry, self.limits
        held = [session for peer in registry._peers.values() for session in peer.sessions.values()]
        slots = [session.slot for session in held if session.slot is not None] + registry.slots.free
        assert sorted(slots) == [*range(limits.max_sessions)], "a slot is lost or shared"
        for session in held:
            assert (session.slot is None) == (session.finish is not None)
            assert len(session.tree) <= limits.max_tree_nodes
            if session.slot is not None:
                assert session.unread >= 0
                cached = session.tree.tokens[: session.cached]
                assert self.verifier.target.holds(session.slot, cached), "the cache lies"

    def finish(self) -> None:
        """Heal the link and run to the end."""
        self.chosen["room"] = 1000
        turns = 0
        while not all(job.session.finish for job in self.jobs):
            turns += 1
            assert turns < 1500, "a text is not finished"
            self.turn("good", 0.02)
            self.wait(0.08, True)
            self.check()
        self.wait(10, True)
        assert self.verifier.free == self.limits.max_sessions

    def _reply(self, replies: list[Reply]) -> None:
        for reply in replies:
            if reply.peer != self.peer:
                self.verifier.registry.forget(reply.peer)
            elif not self._post("down", reply.peer, reply.message):
                self.verifier.registry.hold(reply)

    def _post(self, way: str, peer: bytes, message: Message) -> bool:
        if len(self.links[way]) >= self.chosen["room"]:
            return False
        self.links[way].append((peer, codec.encode(message)))
        return True


def some_world(rng: random.Random) -> World:
    """Any of the worlds, with one to three jobs."""
    tables = [WORLD] + [FIELDS] * rng.randint(1, 3)
    chosen, *jobs = [{name: rng.choice(table[name]) for name in table} for table in tables]
    return World(chosen, jobs)


class Halves(RuleBasedStateMachine):
    """Hypothesis chooses what happens."""

    @initialize(rng=st.randoms(use_true_random=False))
    def begin(self, rng: random.Random) -> None:
        self.world = some_world(rng)

    @rule(action=st.sampled_from(ACTIONS))
    def act(self, action: tuple[Any, ...]) -> None:
        getattr(self.world, action[0])(*action[1:])

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.finish()


TestHalves = Halves.TestCase
TestHalves.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


@pytest.mark.parametrize("seed", range(int(os.environ.get("SOAK_SEEDS", "150"))))
def test_soak_of_a_bad_link_leaves_every_text_plain(seed: int) -> None:
    rng = random.Random(seed)
    world = some_world(rng)
    for action in rng.choices(ACTIONS, k=rng.randint(20, 200)):
        getattr(world, action[0])(*action[1:])
        world.check()
    world.finish()


@pytest.mark.parametrize("drafting", sorted({*FIELDS["drafting"]} - {"lookup"}))
def test_right_drafts_on_a_good_link_save_four_passes_of_five(drafting: str) -> None:
    job = {name: values[0] for name, values in FIELDS.items()}
    job |= {"max_tokens": 50, "drafting": drafting, "window": 8, "num_draft_tokens": 4}
    world = World({name: values[-1] for name, values in WORLD.items()} | {"end_every": 0}, [job])
    for _ in range(20):
        world.draft(8, "sure")
        world.turn("sure", 0.03)
        world.check()
    stats = world.jobs[0].session.stats
    assert (stats.tokens, stats.accepted) == (50, 50 - stats.passes)
    assert stats.passes <= 12
