"""Measured runs once more on the virtual clock: how well does the simulator foretell them?

Takes the costs and the acceptance of a result of `throughput`, and none of its
rates; those are what the simulated ones are compared with. Pass times are scaled to
the mean that the row's own passes took: the machine's mood is not foretold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from statistics import mean
from typing import Any

from rich.table import Table

from bench import limits
from bench.cells import SYNCHRONOUS
from bench.limits import Curve
from bench.oracle import Acceptance, Drawn, Recorded
from bench.simulate import World, run
from bus.errors import BadSetup
from strategies import names
from strategies.drafting import Options

USUAL_ROWS = 5
"""Rows of a pass whose time the row's mean pass time is compared with."""
GOAL = 0.1
"""A larger deviation is shown in red."""
RUNS = 4
"""Simulated texts of a row without records of its own."""
DRAFTERS = ("model", "dead", "none", None)
"""What can be foretold; others are not modelled."""
_SHORT = {"k": "k =", "rtt_tv": "RTT/t_v", "temperature": "T", "sessions": "×"}
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Replayed:
    """One measured row and its simulation; rates in tokens per second, of all texts together."""

    name: str
    measured: float
    simulated: float

    @property
    def deviation(self) -> float:
        return self.simulated / self.measured - 1


def replay(result: Fields, seed: int = 0) -> tuple[list[Replayed], list[str]]:
    """Simulate the rows of a result; also the names of those that are not simulated.

    BadSetup when something needed is missing.
    """
    foretold, skipped = [], []
    try:
        for row in result["rows"]:
            known = row["policy"] in ("plain", SYNCHRONOUS, *names("drafting"))
            if known and row.get("drafter") in DRAFTERS and row.get("tokens_per_s"):
                foretold.append(_replayed(result, row, seed))
            else:
                skipped.append(_name(row))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadSetup(
            f"this is no result of `draftbus-bench throughput`: {type(error).__name__}: {error}"
        ) from None
    if not foretold:
        raise BadSetup("the result holds no rate that could be foretold: let the run get further")
    return foretold, skipped


def _replayed(result: Fields, row: Fields, seed: int) -> Replayed:
    world = _world(result, row, seed)
    texts = world.sessions
    if row["policy"] == "plain":
        return Replayed(_name(row), row["tokens_per_s"], texts * limits.plain(world.setting))
    records = _records(result, row)
    first = [records[i:] + records[:i] for i in range(row.get("prompts") or 1)] if records else []
    worlds = [replace(world, acceptance=Recorded(turned)) for turned in first[::texts]]
    worlds = worlds or [replace(world, seed=seed + i) for i in range(RUNS)]
    rates = [run(each).session_tokens_per_s for each in worlds]
    return Replayed(_name(row), row["tokens_per_s"], texts / mean(1 / rate for rate in rates))


def _name(row: Fields) -> str:
    parts = [row["policy"]]
    parts += [
        f"{short} {row[name]:g}" for name, short in _SHORT.items() if row.get(name) is not None
    ]
    if row.get("drafter") not in ("model", "none", None):
        parts.append(row["drafter"])
    return ", ".join(parts)


def _world(result: Fields, row: Fields, seed: int) -> World:
    measured, chosen = result["measured"], row.get("options") or {}
    pass_s = Curve.measured(_pass_times(measured["tv_s"], row))
    known = {field.name for field in fields(Options)}
    through_bus = row.get("rtt_tv") is not None
    world = World(
        acceptance=_acceptance(result, row),
        pass_s=pass_s,
        draft_s=Curve.measured(measured.get("td_s") or {"1": 0.0}),
        prefill_s=measured.get("prefill_s", pass_s.at(1)),
        overhead_s=(measured.get("overhead_s") or 0.0) if through_bus else 0.0,
        rtt_s=(row.get("rtt_tv") or 0.0) * measured.get("plain_pass_s", pass_s.at(1)),
        loss=1.0 if row.get("drafter") == "dead" else 0.0,
        sessions=row.get("sessions") or 1,
        max_tokens=(result.get("settings") or {}).get("max_tokens") or World.max_tokens,
        options=Options(**{name: chosen[name] for name in known & set(chosen)}),
        seed=seed,
    )
    if row["policy"] in ("fixed", SYNCHRONOUS):
        length = row.get("k") or world.options.num_draft_tokens
        return replace(world.with_k(length), lockstep=row["policy"] == SYNCHRONOUS)
    return world if row["policy"] == "plain" else replace(world, drafting=row["policy"])


def _pass_times(idle: Mapping[str, float], row: Fields) -> dict[str, float]:
    """Pass times by width as they were in this row: a busy drafter slows its verifier down."""
    known = {int(width): seconds for width, seconds in idle.items()}
    mean_s = (row.get("forward_ms_per_pass") or 0.0) / 1e3
    near = min(known, key=lambda width: abs(width - USUAL_ROWS))
    factor = mean_s / known[near] if mean_s and row.get("sessions", 1) == 1 else 1.0
    return {str(width): seconds * factor for width, seconds in idle.items()}


def _acceptance(result: Fields, row: Fields) -> Acceptance:
    if records := _records(result, row):
        return Recorded(records)
    ranks = row.get("alpha_by_rank") or result["measured"].get("alpha_by_rank") or [0.0]
    return Drawn(tuple(share or 0.0 for share in ranks))


def _records(result: Fields, row: Fields) -> list[Fields]:
    """What the draft guessed along the texts of the row's temperature, text by text."""
    known = result["measured"].get("acceptance") or {}
    return known.get(f"{row.get('temperature') or 0.0:g}") or []


def table(rows: list[Replayed], skipped: list[str]) -> Table:
    """Measured and simulated, side by side."""
    shown = Table("run", "measured tokens/s", "simulated", "deviation")
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in rows:
        style = "red" if abs(row.deviation) > GOAL else "green"
        shown.add_row(row.name, f"{row.measured:.1f}", f"{row.simulated:.1f}",
                      f"[{style}]{row.deviation:+.1%}[/{style}]")  # fmt: skip
    within = sum(abs(row.deviation) <= GOAL for row in rows)
    shown.caption = f"{within} of {len(rows)} within {GOAL:.0%}; {len(skipped)} rows not simulated"
    return shown
