"""The verifier's loop: drain, step, send. One thread owns the model and the socket."""

import time
from collections.abc import Iterable
from dataclasses import asdict

from bus.sockets import Delivery, VerifierSocket
from verifier_cuda.model import TargetModel
from verifier_cuda.passlog import PassLog, Watch
from verifier_cuda.registry import Registry, Reply
from verifier_cuda.scheduler import Scheduler


class Daemon:
    """A verifier that serves until it is told to stop."""

    def __init__(
        self,
        socket: VerifierSocket,
        registry: Registry,
        scheduler: Scheduler,
        model: TargetModel,
        log: PassLog | None = None,
    ) -> None:
        self._socket = socket
        self._registry = registry
        self._scheduler = scheduler
        self._model = model
        self._log = log
        self._drain_until: float | None = None

    # loop:begin
    def run(self) -> None:
        """Serve until drained."""
        watch = Watch()
        while not self._drained(time.monotonic()):
            if not self._registry.waiting():
                watch = Watch()  # idle is nobody's wait
            self._socket.wait(self._scheduler.patience_s(time.monotonic()))
            watch.lap("wait")
            for arrival in self._socket.drain():
                self._send(self._registry.handle(arrival.peer, arrival.content, time.monotonic()))
            self._registry.expire(time.monotonic())
            self._send(self._registry.held())
            watch.lap("drain")
            if self._step(watch):
                watch = Watch()

    def _step(self, watch: Watch) -> bool:
        began = time.monotonic()
        work = self._scheduler.plan(began)
        watch.lap("plan")
        if not work:
            return False
        views = self._model.forward([entry.block for entry in work])
        watch.lap("forward")
        now = time.monotonic()
        replies, keeps = self._scheduler.complete(work, views, now - began, now)
        watch.lap("judge")
        self._send(replies)
        watch.lap("send")
        self._model.keep(keeps)
        watch.lap("keep")
        if self._log:
            self._log.put(began, work, replies, watch)
        return True

    def _send(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            match self._socket.send(reply.peer, reply.message):
                case Delivery.FULL:
                    self._registry.hold(reply)
                case Delivery.GONE:
                    self._registry.forget(reply.peer)

    # loop:end

    def drain(self, within_s: float) -> None:
        """Take nothing new, finish what runs within `within_s` seconds, then stop."""
        self._registry.draining = True
        self._drain_until = time.monotonic() + within_s

    def totals(self) -> dict[str, float]:
        """What was done since the start."""
        registry = self._registry
        lost = {"dropped_drafts": registry.dropped_drafts, "errors": registry.errors}
        return asdict(self._scheduler.counters) | lost

    def _drained(self, now: float) -> bool:
        until = self._drain_until
        if until is None:
            return False
        return now >= until or not (self._registry.waiting() or self._registry.holding)
