"""The drafter's loop: drain, step, send. One thread owns the model and the socket."""

import itertools
import time
from collections.abc import Callable
from itertools import takewhile

import structlog

from bus.delay import Line
from bus.errors import StrategyFailed
from bus.messages import PROTOCOL, Hello
from bus.sockets import Delivery, DrafterSocket
from drafter_mlx.cache import Reading
from drafter_mlx.config import Config, Drafts
from drafter_mlx.conversation import Conversation
from drafter_mlx.experience import Experience
from drafter_mlx.model import DraftModel
from drafter_mlx.piece import Piece
from drafter_mlx.readings import Readings
from drafter_mlx.request import Request
from drafter_mlx.session import Session
from strategies import load as load_strategy
from strategies.drafting import Step

AGENT = "draftbus/0.1"
REPORT_AFTER_S = 1.0
REST_S = 0.01
"""Pause before pushing again to a verifier that had no room."""
log = structlog.get_logger()


class Daemon:
    """A drafter that works on all its requests at once."""

    def __init__(self, config: Config, model: DraftModel) -> None:
        self._model = model
        line = None if config.delay_s is None else Line(config.delay_s, config.jitter_s)
        self._socket = DrafterSocket(config.verifier, config.insecure, line=line)
        hello = Hello(
            PROTOCOL, config.model[-200:], model.vocabulary.digest, model.vocabulary.size, AGENT
        )
        self.experience = Experience(step_costs=model.step_costs())
        self._calibration = config.calibration
        if config.calibration is not None:
            self.experience.load(config.calibration)
        self.talk = Conversation(hello, config.verifier, config.deadline_s, time.monotonic())
        self._ids = itertools.count(1)  # a session number names a session of this connection
        self._address = config.verifier
        self._missing = False
        self._full = False
        self._readings: dict[int, Reading] = {}
        self._old_readings = Readings(model.reading)

    def start(
        self,
        request: Request,
        drafts: Drafts,
        listener: Callable[[Piece], None],
        number: int | None = None,
    ) -> Session:
        """Begin a request; `listener` gets each piece of its text.

        `number` is the session's, where it is another drafter's.
        """
        assert max((*request.prompt, *request.committed)) < self._model.vocabulary.size
        drafting = load_strategy("drafting", drafts.drafting)(drafts.options)
        session = Session(
            next(self._ids) if number is None else number,
            request, drafting, drafts.options.window, self.experience,
        )  # fmt: skip
        self._readings[session.id] = self._old_readings.take(session.tree.tokens)
        self.talk.start(session, listener, time.monotonic())
        return session

    def forget(self, session: Session) -> None:
        """Free what a request that is over, or no longer wanted, still holds."""
        self.talk.cancel(session.id)
        reading = self._readings.pop(session.id, None)
        if reading is not None:
            self._old_readings.give(session.tree.tokens, reading)
        self._send()

    def wake(self) -> None:
        """Make the loop ask `done` soon. Any thread may call this."""
        self._socket.wake()

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id that the draft knows."""
        return self._model.vocabulary.size

    @property
    def wire_bytes(self) -> int:
        """Payload bytes sent and received since the start."""
        return self._socket.bytes_sent + self._socket.bytes_received

    # loop:begin
    def run(self, done: Callable[[], bool]) -> None:
        """Work until `done`, or until the verifier is given up (`talk.failure`)."""
        stepped = True
        while not done() and self.talk.failure is None:
            rest_s = REST_S if self._full else 0.0
            self._socket.wait(rest_s if stepped else self.talk.wake_in_s(time.monotonic()))
            for message in self._socket.drain():
                self.talk.handle(message, time.monotonic())
            self.talk.tick(time.monotonic())
            self._report()
            self._send()
            steps = [(session, self._plan(session)) for session in self.talk.sessions]
            for session, step in steps:
                self._step(session, step)
            stepped = any(step is not None for _, step in steps)
            self._send()

    def _plan(self, session: Session) -> Step | None:
        try:
            return session.plan()
        except Exception as error:  # a strategy is foreign code: its session ends, nothing else
            self.talk.fail(session.id, StrategyFailed(f"the drafting strategy raised {error!r}"))
            return None

    def _step(self, session: Session, step: Step | None) -> None:
        if step is None:
            return
        began = time.monotonic()
        reading = self._readings[session.id]
        sampling = session.request.sampling
        if not step.expand or self._model.catch_up(reading, session.tree):
            found, drawn_from = [], []
            asked = reading, session.tree, step.expand, sampling, step.children
            if step.expand and session.draws:
                found, drawn_from = self._model.draw(*asked)
            elif step.expand:
                found = self._model.expand(*asked)
            self.talk.push(session.expanded(step, found, time.monotonic(), drawn_from))
            if step.expand:
                self.experience.step_costs.saw(len(step.expand), time.monotonic() - began)
            session.stats.draft_steps += bool(step.expand)
        session.stats.drafter_busy_s += time.monotonic() - began

    def _send(self) -> None:
        outbox, self.talk.outbox = self.talk.outbox, []
        sent = takewhile(lambda m: self._socket.send(m) is Delivery.SENT, outbox)
        unsent = outbox[sum(1 for _ in sent) :]  # in order, or draws would change places
        self._full = bool(unsent)
        for message in unsent:
            self.talk.unsent(message)

    # loop:end

    def _report(self) -> None:
        """Say so when the verifier is missing, and when it is back."""
        missing = self.talk.missing_s(time.monotonic()) > REPORT_AFTER_S
        if missing and not self._missing:
            log.warning("waiting for a verifier", at=self._address)
        elif self._missing and self.talk.welcome is not None:
            log.info("connected", at=self._address)
        self._missing = missing

    def close(self) -> None:
        self._socket.close()
        if self._calibration is not None:
            self.experience.save(self._calibration)
