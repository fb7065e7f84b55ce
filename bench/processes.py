"""Start the daemons as the processes a user would start, and end them again."""

import ctypes.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib")


@dataclass(frozen=True)
class Cores:
    """Who computes where: the drafter on the last core, if there are two; the verifier on others.

    None: wherever the system likes.
    """

    every: tuple[int, ...] | None

    @classmethod
    def usable(cls) -> Self:
        """Those this process may use; None where the system cannot say, nor pin."""
        known = hasattr(os, "sched_getaffinity")
        return cls(tuple(sorted(os.sched_getaffinity(0))) if known else None)

    @property
    def verifier(self) -> tuple[int, ...] | None:
        return self.every and (self.every[:-1] or self.every)

    @property
    def drafter(self) -> tuple[int, ...] | None:
        return self.every and self.every[-1:]


@dataclass(frozen=True)
class Verifier:
    """A verifier process that accepts work."""

    process: subprocess.Popen[str]
    address: str


def environment(threads: int | None = None) -> dict[str, str]:
    """This process's environment, with the number of compute threads set."""
    extra = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **extra}  # fmt: skip


def openblas() -> str | None:
    """OpenBLAS on this Linux machine, for MLX, whose Linux wheel brings a slow BLAS; or None."""
    if not sys.platform.startswith("linux"):
        return None
    folders = [Path(root) for root in _LIBRARIES]
    beside = (path for folder in folders for path in sorted(folder.glob("*/libopenblas.so.0")))
    found = next((path for path in beside if path.exists()), None)
    return str(found) if found else ctypes.util.find_library("openblas")


@contextmanager
def on_cores(cores: Sequence[int] | None) -> Iterator[None]:
    """Processes started inside the block run on `cores` only, where the system can do that."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Front:
    """A drafter process that serves HTTP."""

    process: subprocess.Popen[str]
    url: str


@contextmanager
def verifier(
    model: str | Path,
    flags: Sequence[str] = (),
    threads: int | None = None,
    ready_s: float = 300,
    cores: Sequence[int] | None = None,
) -> Iterator[Verifier]:
    """Run `verifier_cuda serve` on a free port of the loopback until the block ends.

    `cores` pins it, with one compute thread for each unless `threads` says otherwise.
    RuntimeError with what it wrote when it does not become ready in `ready_s` seconds.
    """
    command = [sys.executable, "-m", "verifier_cuda", "serve", "--model", str(model)]
    if "--port" not in flags:
        command += ["--port", "0"]
    threads = threads or (len(cores) if cores else None)
    with _running([*command, *flags], "ready", threads, ready_s, cores) as (process, address):
        yield Verifier(process, address)


@contextmanager
def front(
    address: str, model: str | Path, flags: Sequence[str] = (), until: str = "ready"
) -> Iterator[Front]:
    """Run `drafter_mlx serve` likewise, until it says `until`: `listening`, or `ready`."""
    command = [
        sys.executable, "-m", "drafter_mlx", "serve", "--verifier", address,
        "--model", str(model), "--port", "0", *flags,
    ]  # fmt: skip
    with _running(command, until, 1) as (process, url):
        yield Front(process, url)


@contextmanager
def _running(
    command: Sequence[str],
    until: str,
    threads: int | None,
    ready_s: float = 300,
    cores: Sequence[int] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has printed `until` and an address."""
    with tempfile.TemporaryFile("w+") as errors:
        with on_cores(cores):
            process = subprocess.Popen(
                command, env=environment(threads), text=True,
                stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        too_late = threading.Timer(ready_s, process.kill)
        too_late.start()
        try:
            assert process.stdout is not None
            said = next((line for line in process.stdout if line.startswith(f"{until} ")), None)
            too_late.cancel()
            if said is None:
                process.wait()
                errors.seek(0)
                raise RuntimeError(f"{command[2]} did not start: {errors.read().strip()[-2000:]}")
            yield process, said.split()[1]
        finally:
            too_late.cancel()
            if process.poll() not in (None, 0, -signal.SIGKILL):
                errors.seek(0)
                print(f"{command[2]} failed: {errors.read().strip()[-2000:]}", file=sys.stderr)
            stop(process)


def stop(process: subprocess.Popen[str]) -> int:
    """End a daemon by SIGTERM, by SIGKILL if that does not help; its exit code."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
    code = process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    return code


def complete_command(address: str, model: str | Path, flags: Sequence[str]) -> list[str]:
    """The command line of `drafter_mlx complete`."""
    return [
        sys.executable, "-m", "drafter_mlx", "complete",
        "--verifier", address, "--model", str(model), *flags,
    ]  # fmt: skip
