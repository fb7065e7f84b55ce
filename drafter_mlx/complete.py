"""`complete`: jobs through a daemon, rows out, in order."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from bus.errors import DraftbusError
from drafter_mlx import logprobs
from drafter_mlx.daemon import Daemon
from drafter_mlx.piece import Piece
from drafter_mlx.rows import Job, Row
from drafter_mlx.session import Session


class Viewer(Protocol):
    """Watches texts while they are committed; with several at once, pieces mix."""

    def begin(self, prompt: str) -> None:
        """A job starts."""

    def __call__(self, piece: Piece) -> None:
        """A piece of its text."""


class Nobody:
    """Does not watch."""

    def begin(self, prompt: str) -> None:
        pass

    def __call__(self, piece: Piece) -> None:
        pass


class Completion:
    """Runs jobs through a daemon and hands out their rows in order."""

    def __init__(
        self, daemon: Daemon, decode: Callable[[list[int]], str], at_once: int = 1
    ) -> None:
        """`decode` makes text of ids; `at_once` is how many jobs run at a time."""
        self._daemon = daemon
        self._decode = decode
        self._at_once = at_once

    def run(self, jobs: list[Job], viewer: Viewer) -> Iterator[tuple[Job, Row]]:
        """Yield each job's row when it and all before it are over.

        When the verifier is lost for good, the rows of running jobs say so and hold
        what was generated; jobs that were not begun have none.
        """
        waiting, running = deque(jobs), deque[tuple[Job, Session]]()
        bytes_before = self._daemon.wire_bytes
        while running or (waiting and not self._daemon.talk.failure):
            live = [session for _, session in running if not self._over(session)]
            while waiting and len(live) < self._at_once and not self._daemon.talk.failure:
                job = waiting.popleft()
                viewer.begin(self._decode(list(job.request.prompt)))
                live.append(self._daemon.start(job.request, job.drafts, viewer))
                running.append((job, live[-1]))
            self._daemon.run(lambda: any(self._over(session) for session in live))  # noqa: B023
            while running and self._over(running[0][1]):
                job, session = running.popleft()
                self._daemon.forget(session)
                session.stats.wire_bytes = self._daemon.wire_bytes - bytes_before
                bytes_before = self._daemon.wire_bytes
                yield job, self._row(job, session)

    def _over(self, session: Session) -> bool:
        talk = self._daemon.talk
        return bool(session.finish or session.id in talk.errors or talk.failure)

    def _row(self, job: Job, session: Session) -> Row:
        talk = self._daemon.talk
        error: DraftbusError | None = None
        if session.finish is None:
            error = talk.errors.get(session.id) or talk.failure
        ids = list(session.committed)
        shown = ids[:-1] if session.finish == "stop" else ids
        row: Row = {
            "prompt_ids": list(job.request.prompt),
            "token_ids": ids,
            "text": self._decode(shown),
            "finish_reason": session.finish or "error",
            "timings": session.stats.timings(),
            "metrics": session.stats.metrics(),
        }
        row["metrics"]["draftbus"]["rtt_s"] = talk.rtt_s
        if job.request.logprobs is not None or any(session.logprobs):
            row["logprobs"] = logprobs.to_rows(ids, session.logprobs)
        return row if error is None else row | {"error": str(error)}
