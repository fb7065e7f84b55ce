"""A second drafter for a benchmark, before a verifier that emulates a network.

`python -m bench.assistant --verifier ADDR --model DIR ...` is what `draftbus-drafter
assist` is, with an emulated delay, and it says `ready` only when the verifier has
greeted it. What it learns about its draft stays in a file between the texts.
"""

import argparse
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from bench import feed, processes
from bench.cells import Choice
from drafter_mlx.assist import Assistant
from drafter_mlx.config import Config, Drafts
from drafter_mlx.daemon import Daemon
from drafter_mlx.model import load
from drafter_mlx.request import shared_word
from strategies.drafting import OPTIONS, Options

SECRET = "a benchmark's second drafter"
SHARED = shared_word(SECRET)


@dataclass(frozen=True)
class Second:
    """The second drafter of one text."""

    verifier: str
    model: str
    drafting: str
    options: Choice
    delay_s: float
    learned: Path

    def flags(self) -> list[str]:
        """The command line's."""
        named = {"verifier": self.verifier, "model": self.model, "drafting": self.drafting,
                 "delay": self.delay_s, "learned": self.learned}  # fmt: skip
        known = {key: value for key, value in self.options.items() if key in OPTIONS}
        flags = {**named, **known}
        return [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]


@contextmanager
def helping(second: Second, place: feed.Place) -> Iterator[None]:
    """It runs until the block ends; Broken when it does not start."""
    with processes.on_cores(place.cores):
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.assistant", *second.flags()], env=place.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise feed.Broken(f"the second drafter did not start: {' '.join(second.flags())}")
        yield
    finally:
        processes.stop(process)


def main() -> None:
    """Load, greet, say `ready`, and help until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("verifier", "model", "drafting"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--delay", type=float, required=True)
    parser.add_argument("--learned", type=Path, required=True)
    for name in OPTIONS:
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=getattr(Options, name))
    flags = parser.parse_args()
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    config = Config(flags.verifier, flags.model, deadline_s=math.inf, delay_s=flags.delay,
                    calibration=flags.learned)  # fmt: skip
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    daemon = Daemon(config, load(config))
    drafts = Drafts(flags.drafting, options=Options(*(getattr(flags, name) for name in OPTIONS)))
    try:
        assistant = Assistant(daemon, drafts, SHARED)
        assistant.run(lambda: daemon.talk.welcome is not None or stopped.is_set())
        print("ready", flush=True)
        assistant.run(stopped.is_set)
    finally:
        daemon.close()


if __name__ == "__main__":
    main()
