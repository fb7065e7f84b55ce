"""What `sweep` and `report` do with their flags, their terminal and their files."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench import report, sweep
from bench.sweep import Grid, Sweep
from bench.throughput_cli import Progress, counts, models, numbers
from bus.errors import BadSetup


def listed(flag: str, text: str) -> tuple[str, ...]:
    """The names in a list with commas; BadSetup when there is none."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise BadSetup(f"{flag} names no strategy; write names with commas")
    return names


def grid(
    drafting: str, flags: dict[str, str], temperatures: str, rtts: str,
    acceptance: str = "exact", lockstep: bool = False,
) -> Grid:  # fmt: skip
    """The grid that comma-separated flags describe; `flags` are counts by option."""
    names, judged = listed("--drafting", drafting), listed("--acceptance", acceptance)
    chosen = {
        option: counts("--" + option.replace("_", "-"), text) for option, text in flags.items()
    }
    return Grid(names, **chosen, temperatures=numbers("--temperatures", temperatures),
                rtts=numbers("--rtts", rtts), acceptance=judged, lockstep=lockstep)  # fmt: skip


def pairs(names: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """The named pairs; a cost pair is made when it is not there yet."""
    return tuple((name, *models(name, None, None)) for name in names)


def run(asked: Sweep, out: Path, console: Console) -> bool:
    """Sweep, then report; True when all texts were plain decoding's."""
    say = Progress()
    differing = sweep.run(asked, out, say)
    say("done\n")
    show([out], None, console)
    if differing:
        console.print(f"[red]{differing} texts differ from plain decoding's[/red]")
    return not differing


def show(folders: Sequence[Path], plots: Path | None, console: Console) -> None:
    """The table, the best of each pair, and with a folder for them the plots."""
    found = report.lines(report.read(folders))
    console.print(report.table(found))
    for pair, line in report.best(found).items():
        console.print(f"best for {pair}: {line.name} ({line.ratio_plain:.2f} × plain decoding)")
    if plots is None:
        return
    from bench import plots as figures  # late: needs matplotlib

    for pair in dict.fromkeys(line.pair for line in found):
        rows = [{"name": line.name, "ratio_plain": line.ratio_plain}
                for line in found if line.pair == pair]  # fmt: skip
        path = figures.sweep(rows, pair, plots / f"sweep-{pair.replace('/', '-')}.png")
        console.print(f"drawn: {path}")
