"""The processes of a run: one verifier, the drafters before it, and the baselines.

They are started once and stay, so that only the one that is asked computes. The
verifier and the drafters are pinned to cores of their own; baselines that run
without a drafter get all of them, except `engine`, which gets the verifier's.
"""

import json
import os
import tempfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self

from bench import feed, processes
from bench.assistant import Second, helping
from bench.cells import IMPOSTORS, Choice, Settings

FIRST = ("engine", "model")
"""Helpers that are started alone: they measure themselves, or what all else is divided by."""
LOAD_WITHIN_S = 600.0
OVERHEAD = ("plan_s", "judge_s", "send_s", "keep_s", "drain_s")
"""Fields of a pass's entry: what it costs the verifier beside the model."""


class PassLog:
    """The verifier's log of its passes, read as it grows. Times are of the monotonic clock."""

    def __init__(self, path: Path) -> None:
        self.pass_times: dict[str, float] = {}
        """Seconds of a pass by its width, measured when the verifier started."""
        self._path = path
        self._read = 0
        self._passes: list[dict[str, float]] = []

    def between(self, began: float, ended: float) -> list[dict[str, float]]:
        """The passes that began in a stretch of time and committed tokens."""
        self.catch_up()
        return [p for p in self._passes if began <= p["at"] <= ended and p.get("tokens")]

    def overhead_s(self) -> float | None:
        """Mean seconds that a pass took beside the model; None before the first."""
        if not self._passes:
            return None
        spent = sum(entry.get(part, 0.0) for entry in self._passes for part in OVERHEAD)
        return spent / len(self._passes)

    def catch_up(self) -> None:
        """Take in what was written since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                entry = json.loads(line)
                self.pass_times = entry.get("pass_times", self.pass_times)
                if "at" in entry:
                    self._passes.append(entry)


class Crew:
    """All processes that a run needs. Use it in a `with` block."""

    def __init__(self, settings: Settings, helpers: set[str]) -> None:
        self.cores = processes.Cores.usable()
        self.about: dict[str, feed.Answer] = {}
        self._settings = settings
        self._wanted = helpers
        self._helpers: dict[str, feed.Helper] = {}
        self._failed: dict[str, str] = {}
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.log = PassLog(folder / "passes.jsonl")
        self._stack.callback(self.log.catch_up)  # once the verifier has ended and written it all
        self._log_path = folder / "passes.jsonl"
        self._address: str | None = None

    def __enter__(self) -> Self:
        """Start everything. First those that measure themselves, alone; then the rest at once."""
        try:
            drafters = self._wanted & {"model", *IMPOSTORS}
            if drafters:
                self._address = self._start_verifier()
            groups = [self._wanted & {name} for name in FIRST]
            for group in (*groups, self._wanted - set(FIRST)):
                for name in group:
                    self._helpers[name] = self._started(name)
                for name in group:
                    self._wait_for(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers.values():
            helper.close()
        self._stack.close()

    def ask(self, name: str, batch: feed.Batch, within_s: float) -> feed.Answer:
        """What a helper answers; Broken when it does not.

        One that ended is started again, but not one that never loaded.
        """
        if name not in self._failed and not self._helpers[name].alive:
            self._helpers[name].close()
            self._helpers[name] = self._started(name)
            self._wait_for(name)
        if name in self._failed:
            raise feed.Broken(self._failed[name])
        return self._helpers[name].ask(batch, within_s)

    def second(
        self, drafting: str, options: Choice, delay_s: float
    ) -> AbstractContextManager[None]:
        """A second drafter with the same draft, on the drafter's core, for one text."""
        assert self._address is not None
        learned = self._log_path.with_name(f"{drafting}.learned.json")
        place = self._place(self.cores.drafter, processes.openblas())
        asked = Second(self._address, self._settings.draft, drafting, options, delay_s, learned)
        return helping(asked, place)

    def _start_verifier(self) -> str:
        settings = self._settings
        flags = ["--dtype", settings.dtype, "--port", "0", "--emulate-network",
                 "--max-sessions", str(max(settings.sessions, default=1)),
                 "--pass-log", str(self._log_path), "--log-level", "warning"]  # fmt: skip
        running = processes.verifier(settings.target, flags, cores=self.cores.verifier)
        return self._stack.enter_context(running).address

    def _started(self, name: str) -> feed.Helper:
        settings = self._settings
        models = ["--model", settings.target, "--draft", settings.draft]
        both = self._place(self.cores.every)
        if name in ("model", *IMPOSTORS):
            assert self._address is not None
            flags = ["--verifier", self._address, "--model", settings.draft]
            flags += [] if name == "model" else ["--impostor", name]
            blas = processes.openblas() if name == "model" else None
            return feed.Helper("bench.worker", flags, self._place(self.cores.drafter, blas))
        if name == "mlx-lm":
            place = feed.Place(both.cores, both.threads, processes.openblas())
            return feed.Helper("bench.baselines", [name, *models], place)
        place = self._place(self.cores.verifier) if name == "engine" else both
        kind = "engine" if name.startswith("engine") else name
        return feed.Helper("bench.baselines", [kind, *models, "--dtype", settings.dtype], place)

    def _place(self, chosen: tuple[int, ...] | None, preload: str | None = None) -> feed.Place:
        return feed.Place(chosen, len(chosen) if chosen else os.cpu_count() or 1, preload)

    def _wait_for(self, name: str) -> None:
        try:
            self._helpers[name].ready(LOAD_WITHIN_S)
            self.about[name] = self._helpers[name].about
        except feed.Broken as error:
            self._failed[name] = str(error)
