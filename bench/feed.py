"""A helper process that is fed batches: one JSON line in, one JSON line out.

The helpers keep their models loaded while others run, so that every policy can
meet every prompt in turn.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from bench import processes
from bus.errors import DraftbusError

Batch = dict[str, Any]
Answer = dict[str, Any]


class Broken(DraftbusError):
    """A helper refused a batch, hung or ended; the text says which, and why."""


@dataclass(frozen=True)
class Place:
    """Where a helper computes."""

    cores: tuple[int, ...] | None
    """None: wherever the system likes."""
    threads: int
    preload: str | None = None
    """A BLAS to load before the process's own."""

    def environment(self) -> dict[str, str]:
        """What the helper's process gets to see."""
        extra = {"OPENBLAS_NUM_THREADS": str(self.threads)}
        if self.preload:
            extra["LD_PRELOAD"] = self.preload
        return processes.environment(self.threads) | extra


class Helper:
    """The parent's end. `about` is what the helper says of itself when it is ready."""

    def __init__(self, module: str, flags: Sequence[str], place: Place) -> None:
        """Start `python -m module flags`; `ready` waits until it has loaded."""
        self.about: Answer = {}
        self._name = module
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        with processes.on_cores(place.cores):
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *flags], env=place.environment(), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            )  # fmt: skip

    def ready(self, within_s: float = 600) -> None:
        """Wait for the helper's first line; Broken when there is none."""
        self.about = self._read(within_s)

    def ask(self, batch: Batch, within_s: float) -> Answer:
        """What the helper makes of `batch`; Broken when it refuses, ends, or is not through."""
        assert self._process.stdin is not None
        with suppress(OSError):  # when it has ended, reading says why
            self._process.stdin.write(json.dumps(batch) + "\n")
            self._process.stdin.flush()
        return self._read(within_s)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(OSError):  # of a batch that it did not take
            self._process.stdin.close()
        processes.stop(self._process)
        self._errors.close()

    def _read(self, within_s: float) -> Answer:
        assert self._process.stdout is not None
        too_late = threading.Timer(within_s, self._process.kill)
        too_late.start()
        try:
            line = self._process.stdout.readline()
        finally:
            too_late.cancel()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()[-1:] or ["nothing"]
            raise Broken(f"{self._name} ended with code {code} within {within_s:g} s: {said[0]}")
        try:
            answer: Answer = json.loads(line)
        except ValueError:
            raise Broken(f"{self._name} said {line[:80]!r} instead of an answer") from None
        if "error" in answer:
            raise Broken(answer["error"])
        return answer


def claim_stdout() -> TextIO:
    """The helper's end of the pipe; whatever else is printed goes to stderr from now on."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return out


def serve(out: TextIO, about: Answer, handle: Callable[[Batch], Answer]) -> None:
    """Say `about`, then answer every line of stdin until it ends."""
    print(json.dumps(about), file=out)
    for line in sys.stdin:
        try:
            answer = handle(json.loads(line))
        except Exception as error:  # reported where the result is wanted; the models stay loaded
            traceback.print_exc()
            reason = str(error).strip().split("\n")[0]
            answer = {"error": f"{type(error).__name__}: {reason}"}
        print(json.dumps(answer), file=out)


def loaded_blas() -> str:
    """`openblas` when this process has it, else `as shipped`."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return "openblas" if "libopenblas" in maps.read() else "as shipped"
    except OSError:
        return "as shipped"
