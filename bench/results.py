"""The result of `throughput`: written while it grows, read again, shown as tables."""

import os
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from bus.errors import BadSetup

Interval = tuple[float, float]


class Row(msgspec.Struct, kw_only=True):
    """One policy under one set of conditions. What was not measured is None."""

    policy: str
    k: int | None = None
    """The tuned number: draft length, or the window of `pipelined`."""
    options: dict[str, Any] = {}
    """All that was tuned."""
    rtt_tv: float | None = None
    """Round trip in plain passes; None without a network."""
    drafter: str
    temperature: float
    sessions: int
    tokens_per_s: float | None = None
    """All tokens over all seconds after prompt processing; of all sessions together."""
    ratio_plain: float | None = None
    """Median over prompts of this policy's rate over plain decoding's on the same prompt."""
    ratio_plain_interval: Interval | None = None
    """95 %, by bootstrap over prompts."""
    ratio_best_fixed: float | None = None
    """The same over tuned synchronous drafting under the same conditions."""
    ratio_best_fixed_interval: Interval | None = None
    texts_equal: bool | None = None
    """Whether every text equals plain decoding's, token for token."""
    texts_compared: int = 0
    texts_differing: int = 0
    prompts: int = 0
    tokens_per_s_by_prompt: list[float] = []
    alpha: float | None = None
    """Mean over prompts of the chance that drafts at a position hold the target's token."""
    alpha_by_depth: list[float | None] | None = None
    alpha_by_rank: list[float | None] | None = None
    mean_accepted_length: float | None = None
    """Tokens per pass: one and the accepted drafts."""
    empty_passes_share: float | None = None
    bubble_share: float | None = None
    """Share of the time in which the verifier held a pass back for drafts."""
    hedge_hits_per_pass: float | None = None
    overhead_ms_per_pass: float | None = None
    """What a pass costs at the verifier beside the model."""
    forward_ms_per_pass: float | None = None
    wire_bytes_per_token: float | None = None
    """Payload both ways, the prompt's included."""
    verifier_busy: float | None = None
    drafter_busy: float | None = None
    drafter_steps_per_pass: float | None = None
    error: str | None = None
    """Why there is nothing here, or less than was asked for."""


class Result(msgspec.Struct):
    """One run."""

    hardware: dict[str, Any]
    models: dict[str, Any]
    settings: dict[str, Any]
    measured: dict[str, Any]
    """Times in seconds: the plain pass (the unit of `rtt_tv`), passes by their rows, draft
    steps by their nodes, round trips. And by temperature `acceptance`: what the draft would
    have guessed along each text."""
    rows: list[Row]
    complete: bool = False
    """False while the run goes on, or when it was interrupted."""


def write(result: Result, path: Path) -> None:
    """Replace `path` whole, so that a reader never sees half a result."""
    beside = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
        os.replace(beside, path)
    except OSError as error:
        raise BadSetup(f"cannot write {path}: {error.strerror}; choose another --json") from None


def read(path: Path) -> Result:
    """A result that was written; BadSetup when the file is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError) as error:
        raise BadSetup(f"{path} is no result of `throughput`: {error}") from None


def as_dict(result: Result) -> dict[str, Any]:
    """Plain dicts and lists, as in the file."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result))
    return plain


def tables(result: Result) -> list[Table]:
    """The ratios by policy and RTT, then every row. What loses to plain is red and says so."""
    return [_matrix(result.rows), _listing(result.rows)]


def lines(result: Result) -> list[str]:
    """The hardware, the models and the measured times, in words."""
    machine, models, times = result.hardware, result.models, result.measured
    note = models.get("cost_pair")
    own = f"; a cost model: it says what the tiny {note['source']} says" if note else ""
    draft_s = (times.get("td_s") or {}).get("1")
    return [
        f"{machine['processor']}, {machine['cores']} cores; verifier on {machine['verifier cores']}"
        f", drafter on {machine['drafter cores']}, its BLAS {machine['drafter BLAS']}"
        f"; load before the run {machine['load_before']}",
        f"target {models['target']} in {models['target_dtype']}, draft {models['draft']} in "
        f"{models['draft_dtype']}{own}",
        f"plain pass {1e3 * times['plain_pass_s']:.1f} ms"
        + (f", draft step {1e3 * draft_s:.1f} ms" if draft_s else "")
        + ("" if result.complete else "; NOT COMPLETE"),
    ]


def _matrix(rows: list[Row]) -> Table:
    main = [r for r in rows if r.temperature == 0 and r.sessions == 1 and r.rtt_tv is not None]
    rtts = sorted({row.rtt_tv for row in main})
    table = Table(title="× plain decoding, with its 95 % interval; [× best fixed] (greedy, alone)")
    table.add_column("policy, drafter")
    for rtt in rtts:
        table.add_column(f"RTT {rtt:g} t_v", justify="right")
    for name in dict.fromkeys((row.policy, row.drafter) for row in main):
        cells = {row.rtt_tv: row for row in main if (row.policy, row.drafter) == name}
        table.add_row(", ".join(name), *(_ratios(cells.get(rtt)) for rtt in rtts))
    return table


def _ratios(row: Row | None) -> str:
    if row is None:
        return ""
    if row.ratio_plain is None:
        return "[red]failed[/red]" if row.error else "-"
    text = f"{row.ratio_plain:.2f}"
    if row.ratio_plain_interval:
        text += " ({:.2f} to {:.2f})".format(*row.ratio_plain_interval)
    if row.ratio_plain < 1:
        text = f"[red]{text} loses[/red]"
    if row.ratio_best_fixed is not None and row.policy != "fixed":
        text += f" \\[{row.ratio_best_fixed:.2f}]"
    return text


COLUMNS = ("policy", "drafter", "RTT", "T", "sessions", "k", "tokens/s", "× plain", "α",
           "tokens/pass", "texts equal")  # fmt: skip


def _listing(rows: list[Row]) -> Table:
    table = Table(title="every row")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("policy", "drafter") else "right")
    for row in rows:
        same = f"{row.texts_compared - row.texts_differing} of {row.texts_compared}"
        same = same if row.texts_compared else "-"
        table.add_row(
            row.policy,
            row.drafter,
            _number(row.rtt_tv, "g"),
            f"{row.temperature:g}",
            str(row.sessions),
            _number(row.k, "d"),
            _number(row.tokens_per_s, ".1f"),
            f"[red]{row.error}[/red]" if row.error else _ratios(row),
            _number(row.alpha, ".2f"),
            _number(row.mean_accepted_length, ".2f"),
            f"[red]{same}[/red]" if row.texts_differing else same,
        )
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
