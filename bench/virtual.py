"""The two daemons on a virtual clock: their own loops and pure halves, with costs for models.

A loop is a generator that yields a `Pause` wherever the daemon would wait or
compute; the clock goes on with whoever is due next. What arrives while a loop
computes lies in its mailbox until it drains, as with ZeroMQ. Nothing sleeps.
"""

import heapq
import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.limits import Curve
from bench.oracle import Acceptance, Target, Text, children
from bus.messages import AnyMessage, Draft, Hello
from drafter_mlx.conversation import Conversation
from drafter_mlx.experience import Experience
from drafter_mlx.piece import Piece
from drafter_mlx.session import Request, Session
from strategies.drafting import Step
from verifier_cuda.registry import Registry, Reply
from verifier_cuda.scheduler import Entry, Scheduler

MOMENT_S = 1e-6
"""Between two readings of a real clock some time goes by; what follows a drain is later than it."""


class Pause(NamedTuple):
    """How long a loop does nothing else."""

    seconds: float
    until_mail: bool = False
    """Over early when a message can be read."""


Loop = Generator[Pause, None, None]


class _Wake(NamedTuple):
    at: float
    serial: int
    process: "Process"


class Clock:
    """Runs all loops in the order of their times; ties go by who asked first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._wakes: list[_Wake] = []

    def wake(self, process: "Process", at: float) -> None:
        """Go on with `process` at a time; an earlier wish of it is forgotten."""
        self.events += 1
        process.wish = self.events
        heapq.heappush(self._wakes, _Wake(at, self.events, process))

    def run(self, until: Callable[[], bool], limit_s: float) -> None:
        """RuntimeError when it is not over after `limit_s` seconds."""
        while not until():
            at, serial, process = heapq.heappop(self._wakes)
            if serial != process.wish:
                continue
            if at > limit_s:
                raise RuntimeError(f"not over after {limit_s:g} s of the virtual clock")
            self.now = max(self.now, at)
            process.go_on()


class Process:
    """One loop and its mailbox."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.wish = 0
        self._loop: Loop | None = None
        self._mail: list[tuple[float, int, bytes, AnyMessage]] = []
        self._arrivals = 0
        self._waits_until: float | None = None

    def start(self, loop: Loop, at: float) -> None:
        self._loop = loop
        self.clock.wake(self, at)

    def go_on(self) -> None:
        """Run the loop to its next pause."""
        assert self._loop is not None
        pause = next(self._loop, None)
        self._waits_until = None
        if pause is None:
            return
        at = self.clock.now + pause.seconds
        if pause.until_mail:
            at = self._waits_until = min(at, self._mail[0][0]) if self._mail else at
        self.clock.wake(self, at)

    def post(self, at: float, sender: bytes, message: AnyMessage) -> None:
        """`message` can be read from a time on."""
        self._arrivals += 1
        heapq.heappush(self._mail, (at, self._arrivals, sender, message))
        if self._waits_until is not None and at < self._waits_until:
            self._waits_until = at
            self.clock.wake(self, at)

    def drain(self) -> list[tuple[bytes, AnyMessage]]:
        """Everything that has arrived."""
        found: list[tuple[bytes, AnyMessage]] = []
        while self._mail and self._mail[0][0] <= self.clock.now:
            found.append(heapq.heappop(self._mail)[2:])
        return found


@dataclass
class Link:
    """One direction of a connection. Order is kept, as TCP does."""

    to: Process
    sender: bytes
    delay_s: float
    jitter_s: float
    loss: Callable[[AnyMessage], float]
    rng: random.Random
    size: Callable[[AnyMessage], int]
    bytes: int = 0
    _last: float = 0.0

    def send(self, message: AnyMessage) -> None:
        self.bytes += self.size(message)
        chance = self.loss(message)
        if chance and self.rng.random() < chance:
            return
        late_s = self.jitter_s * self.rng.random() if self.jitter_s else 0.0
        self._last = max(self._last, self.to.clock.now + self.delay_s + late_s)
        self.to.post(self._last, self.sender, message)


@dataclass(frozen=True)
class Costs:
    """What the models take; the simulator's only clocks."""

    pass_s: Curve
    """A pass by rows, all its sessions' together."""
    draft_s: Curve
    """A draft step by nodes."""
    prefill_s: float
    """A piece of prompt."""
    overhead_s: float = 0.0
    """Planning, judging and sending, in each pass."""


class VerifierLoop(Process):
    """`verifier_cuda.daemon.Daemon.run`, with a target of hashes."""

    def __init__(
        self, clock: Clock, registry: Registry, scheduler: Scheduler, costs: Costs
    ) -> None:
        super().__init__(clock)
        self.scheduler = scheduler
        self.links: dict[bytes, Link] = {}
        self.busy_s = 0.0
        self._registry = registry
        self._costs = costs
        self._target = Target()

    def run(self) -> Loop:
        clock = self.clock
        while True:
            yield Pause(self.scheduler.patience_s(clock.now), until_mail=True)
            for peer, message in self.drain():
                self._send(self._registry.handle(peer, message, clock.now))
            self._registry.expire(clock.now + MOMENT_S)
            self._send(self._registry.held())
            yield from self._step()

    def _step(self) -> Loop:
        work = self.scheduler.plan(self.clock.now)
        if not work:
            return
        elapsed_s = self._cost_s(work)
        views = self._target.forward([entry.block for entry in work])
        yield Pause(elapsed_s + self._costs.overhead_s)
        self.busy_s += elapsed_s
        replies, keeps = self.scheduler.complete(work, views, elapsed_s, self.clock.now)
        self._send(replies)
        self._target.keep(keeps)

    def _cost_s(self, work: list[Entry]) -> float:
        if all(entry.selection is None for entry in work):
            return self._costs.prefill_s
        return self._costs.pass_s.at(sum(len(entry.block.tokens) for entry in work))

    def _send(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            self.links[reply.peer].send(reply.message)


class DrafterLoop(Process):
    """`drafter_mlx.daemon.Daemon.run`, with a draft of hashes."""

    def __init__(
        self,
        clock: Clock,
        hello: Hello,
        costs: Costs,
        acceptance: Acceptance,
        experience: Experience,
    ) -> None:
        super().__init__(clock)
        self.link: Link | None = None
        self.busy_s = 0.0
        self.gaps: dict[int, list[tuple[float, int]]] = {}
        """By session: seconds since the piece before, and tokens, of each piece of text."""
        self.sessions: list[Session] = []
        self.texts: dict[int, Text] = {}
        self._hello = hello
        self._costs = costs
        self._acceptance = acceptance
        self._experience = experience

    def want(self, text: Text, request: Request, session: Session) -> None:
        """Make this text; to be said before the loop starts."""
        assert request.prompt == text.prompt
        self.sessions.append(session)
        self.texts[session.id] = text

    @property
    def done(self) -> bool:
        return all(session.finish is not None for session in self.sessions)

    def run(self) -> Loop:
        clock, stepped = self.clock, True
        self._talk = talk = Conversation(self._hello, "tcp://verifier:7700", 1e9, clock.now)
        for session in self.sessions:
            talk.start(session, self._listener(session.id), clock.now)
        while not self.done:
            if not stepped:
                yield Pause(talk.wake_in_s(clock.now), until_mail=True)
            for _, message in self.drain():
                talk.handle(message, clock.now)
            talk.tick(clock.now)
            self._send()
            steps = [(session, session.plan()) for session in talk.sessions]
            for session, step in steps:
                if step is not None:
                    yield from self._step(session, step)
            stepped = any(step is not None for _, step in steps)
            self._send()
            if talk.failure or talk.errors:
                raise RuntimeError(f"a drafter failed: {talk.failure or talk.errors}")

    def _step(self, session: Session, step: Step) -> Loop:
        if step.expand:
            elapsed_s = self._costs.draft_s.at(len(step.expand))
            yield Pause(elapsed_s)
            self.busy_s += elapsed_s
            session.stats.drafter_busy_s += elapsed_s
            self._experience.step_costs.saw(len(step.expand), elapsed_s)
        text = self.texts[session.id]
        found = [children(text, self._acceptance, node, step.children) for node in step.expand]
        self._talk.push(session.expanded(step, found, self.clock.now))

    def _listener(self, session_id: int) -> Callable[[Piece], None]:
        last = self.clock.now
        gaps = self.gaps.setdefault(session_id, [])

        def listen(piece: Piece) -> None:
            nonlocal last
            gaps.append((self.clock.now - last, len(piece.tokens)))
            last = self.clock.now

        return listen

    def _send(self) -> None:
        assert self.link is not None
        outbox, self._talk.outbox = self._talk.outbox, []
        for message in outbox:
            self.link.send(message)


def lossy(drafts: float, rest: float) -> Callable[[Any], float]:
    """The chance that a message is lost: drafts, and all others."""
    return lambda message: drafts if isinstance(message, Draft) else rest
