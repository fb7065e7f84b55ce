"""What `draftbus-bench throughput` does with its flags, its terminal and its files."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import machine, results
from bench.cells import NAMES, NEAR, Settings, cells
from bench.crew import Crew
from bench.results import Result
from bench.throughput import Run, rounds, workload
from bus.errors import BadSetup

BUSY = 0.7
"""A load average before the start above which the figures are not to be trusted."""


@dataclass(frozen=True)
class Output:
    """Where the result goes; None for nowhere."""

    json: Path | None = None
    plots: Path | None = None


class Progress:
    """One line on stderr that is written over, where that is a terminal."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        line = f"[{time.monotonic() - self._began:5.0f} s] {text}"
        print(f"\r\033[K{line}" if self._terminal else line,
              end="" if self._terminal and not text.endswith("\n") else "\n",
              file=sys.stderr, flush=True)  # fmt: skip


def cache_folder() -> Path:
    """Where pairs that were made are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftbus"


def models(pair: str, target: str | None, draft: str | None) -> tuple[str, str]:
    """Folders or hub ids of target and draft: those given, else those of a named pair.

    A cost pair is made in the user's cache folder when it is not there yet.
    """
    if target is not None and draft is not None:
        return target, draft
    if pair == "tiny":
        from bench.pair import DRAFT, TARGET

        found = (TARGET, DRAFT)
    else:
        from bench.pair import widen

        names = pair.split("/")
        if len(names) != 2:
            raise BadSetup(f"--pair {pair}: write TARGET/DRAFT, such as 0.2b/5m, or tiny")
        found = widen.pair(cache_folder(), *names)
    return target or str(found[0]), draft or str(found[1])


def numbers(flag: str, text: str) -> tuple[float, ...]:
    """A comma-separated list; BadSetup when it is none."""
    try:
        found = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or min(found) < 0:
        raise BadSetup(f"{flag} {text}: write numbers of at least 0 with commas, such as 0,1")
    return found


def counts(flag: str, text: str) -> tuple[int, ...]:
    """A comma-separated list of whole numbers of at least 1; BadSetup when it is none."""
    found = numbers(flag, text)
    if any(number < 1 or number != int(number) for number in found):
        raise BadSetup(f"{flag} {text}: write whole numbers of at least 1, such as 1,4")
    return tuple(int(number) for number in found)


def fitted(settings: Settings) -> Settings:
    """The same run, cut short where `quick` asks for it, without what would take for ever."""
    if settings.only == NAMES and machine.mlx_is_hopeless(Path(settings.target)):
        settings = replace(settings, only=tuple(name for name in NAMES if name != "mlx-lm"))
    if not settings.quick:
        return settings
    near = tuple(rtt for rtt in settings.rtts if rtt in NEAR)
    return replace(
        settings, num_prompts=min(4, settings.num_prompts), seeds=1, rtts=near or settings.rtts[:1],
        max_tokens=min(64, settings.max_tokens),
    )  # fmt: skip


def run(settings: Settings, output: Output, console: Console) -> bool:
    """Do it all; True when no row failed. An interrupt keeps what was measured."""
    if output.plots is not None:
        _drawing()  # better now than after the run
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # keeps results, ends helpers
    say, work, compared = Progress(), workload(settings), cells(settings)
    load = os.getloadavg()[0]
    if load > BUSY:
        say(f"this machine is busy (load {load:.1f}): expect noise\n")
    say(f"starting {len({cell.helper for cell in compared})} processes")
    with Crew(settings, {cell.helper for cell in compared}) as crew:
        going = Run(settings, crew, compared, work, say, load)
        complete = False
        try:
            _measure(going, output, say)
            complete = True
        except KeyboardInterrupt:
            say("interrupted: what was measured so far is kept\n")
    result = going.result(_command(), complete)  # now that the verifier has closed its log
    _finish(result, output, console)
    if not complete:
        raise KeyboardInterrupt
    return all(row.error is None for row in result.rows)


def _measure(going: Run, output: Output, say: Progress) -> None:
    going.time_plain()
    tune_s, run_s = going.expected_s()
    say(f"a plain pass takes {1e3 * going.pass_s:.1f} ms; {len(going.cells)} rows: about "
        f"{tune_s / 60:.0f} min to tune and {run_s / 60:.0f} min to measure\n")  # fmt: skip
    going.tune()
    order, began = rounds(going.cells, going.work.reporting), time.monotonic()
    for number, tasks in enumerate(order):
        spent = time.monotonic() - began
        left_s = spent / max(1, number) * (len(order) - number)
        left = f", about {left_s / 60:.0f} min left" if number else ""
        say(f"prompt {number + 1} of {len(order)}{left}")
        going.run_round(tasks)
        if output.json is not None:
            results.write(going.result(_command(), complete=False), output.json)
    going.record()


def _finish(result: Result, output: Output, console: Console) -> None:
    if output.json is not None:
        results.write(result, output.json)
    print(file=sys.stderr)
    for table in results.tables(result):
        console.print(table)
    for line in results.lines(result):
        console.print(line, soft_wrap=True)
    if output.plots is not None:
        drawn = _drawing()(results.as_dict(result), output.plots)
        console.print("drawn: " + ", ".join(str(path) for path in drawn))


def _drawing() -> Callable[[dict[str, Any], Path], list[Path]]:
    """What draws the figures; BadSetup without matplotlib."""
    try:
        from bench.plots import throughput
    except ImportError as error:
        raise BadSetup(f"--plots: {error}; pip install 'draftbus[bench]'") from None
    draw: Callable[[dict[str, Any], Path], list[Path]] = throughput
    return draw


def _command() -> str:
    return shlex.join(["draftbus-bench", *sys.argv[1:]])
