"""`report`: the logs of sweeps as a table, the best configuration of each pair, and plots."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import estimates
from bench.sweep import RUNS
from bus.errors import BadSetup


@dataclass(frozen=True)
class Line:
    """One configuration on one pair, over all its prompts."""

    pair: str
    name: str
    texts: int
    tokens_per_s: float
    ratio_plain: float
    """Median over prompts."""
    interval: tuple[float, float] | None
    accepted_length: float | None
    bytes_per_token: float | None
    equal: bool


def read(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs logged in `folders`; BadSetup names a line that is none."""
    runs: list[dict[str, Any]] = []
    for folder in folders:
        path = folder / RUNS
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise BadSetup(f"cannot read {path}: {error.strerror}; run `sweep` first") from None
        for number, line in enumerate(text.splitlines(), 1):
            try:
                run = json.loads(line)
                runs.append({"ratio": run["ratio_plain"], **run})
            except (ValueError, KeyError, TypeError):
                raise BadSetup(f"{path}:{number} is not a logged run") from None
    if not runs:
        raise BadSetup("the logs are empty")
    return runs


def lines(runs: Sequence[dict[str, Any]]) -> list[Line]:
    """The configurations, pair by pair, the fastest first."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        if run["policy"] != "plain":
            groups[run["pair"], name(run)].append(run)
    found = [_line(*key, group) for key, group in groups.items()]
    return sorted(found, key=lambda line: (line.pair, -line.ratio_plain))


def best(found: Sequence[Line]) -> dict[str, Line]:
    """The fastest configuration of each pair whose texts are plain decoding's."""
    chosen: dict[str, Line] = {}
    for line in found:
        known = chosen.get(line.pair)
        if line.equal and (known is None or line.ratio_plain > known.ratio_plain):
            chosen[line.pair] = line
    return chosen


def name(run: dict[str, Any]) -> str:
    """A configuration in words, short enough for a plot."""
    options = " ".join(f"{key}={value}" for key, value in sorted(run["options"].items()))
    return f"{run['policy']} {options} RTT {run['rtt_tv']:g} T {run['temperature']:g}"


def table(found: Sequence[Line]) -> Table:
    """What loses to plain decoding is red."""
    shown = Table(title="configurations by speed, over the same prompts")
    for column in ("pair", "configuration", "texts", "tokens/s", "× plain", "tokens/pass",
                   "bytes/token", "equal"):  # fmt: skip
        shown.add_column(column, justify="left" if column in ("pair", "configuration") else "right")
    for line in found:
        spread = "" if line.interval is None else " ({:.2f} to {:.2f})".format(*line.interval)
        ratio = f"{line.ratio_plain:.2f}{spread}"
        length = "-" if line.accepted_length is None else f"{line.accepted_length:.2f}"
        size = "-" if line.bytes_per_token is None else f"{line.bytes_per_token:.0f}"
        shown.add_row(line.pair, line.name, str(line.texts), f"{line.tokens_per_s:.1f}",
                      ratio if line.ratio_plain >= 1 else f"[red]{ratio} loses[/red]",
                      length, size, "yes" if line.equal else "[red]NO[/red]")  # fmt: skip
    return shown


def _line(pair: str, title: str, group: list[dict[str, Any]]) -> Line:
    ratios = [run["ratio_plain"] for run in group]
    tokens = sum(run["timings"]["predicted_n"] for run in group)
    seconds = sum(run["timings"]["predicted_ms"] for run in group) / 1e3
    spec = [run["metrics"]["speculative_decoding"] for run in group if run.get("metrics")]
    passes = sum(part["num_spec_steps"] for part in spec)
    accepted = sum(part["num_accepted_draft_tokens"] for part in spec)
    own = [run["metrics"].get("draftbus") for run in group if run.get("metrics")]
    sent = sum(part["wire_bytes"] for part in own if part)
    middle = estimates.middle(ratios)
    assert middle is not None, "a group has at least one run"
    return Line(
        pair, title, len(group), tokens / seconds, middle, estimates.interval(ratios),
        1 + accepted / passes if passes else None, sent / tokens if sent else None,
        all(run["text_equal"] for run in group),
    )  # fmt: skip
