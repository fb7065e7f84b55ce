"""What one batch showed, and what all batches of a cell amount to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.cells import Cell, Unit
from bench.crew import OVERHEAD, PassLog
from bench.feed import Answer

Text = tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """One batch of one cell. Seconds count from the end of prompt processing."""

    units: tuple[int, ...]
    texts: tuple[Text, ...]
    tokens: int
    seconds: float
    rows: tuple[dict[str, Any], ...]
    began: float
    """When the batch began and ended, in seconds of the monotonic clock."""
    ended: float
    steps: int | None = None
    """Draft steps; None without a drafter."""

    @property
    def rate(self) -> float:
        """Tokens per second, of all its sessions together."""
        return self.tokens / self.seconds if self.seconds else 0.0


def taken(cell: Cell, units: Sequence[Unit], answer: Answer, began: float, ended: float) -> Sample:
    """What a helper's answer says.

    One session's time is its own; of several it is that from the first committed
    piece of any to the last of all, with the tokens after the first.
    """
    rows = answer["rows"]
    if cell.sessions > 1:
        tokens, seconds = answer["span_tokens"], answer["span_s"]
    else:
        tokens = sum(row["timings"]["predicted_n"] for row in rows)
        seconds = sum(row["timings"]["predicted_ms"] for row in rows) / 1e3
    return Sample(
        tuple(unit.number for unit in units),
        tuple(tuple(row["token_ids"]) for row in rows),
        tokens, seconds, tuple(rows), began, ended, answer.get("steps"),
    )  # fmt: skip


def rates(samples: Sequence[Sample]) -> dict[tuple[int, ...], float]:
    """Tokens per second by the prompts they were measured on."""
    return {sample.units: sample.rate for sample in samples}


def overall(samples: Sequence[Sample]) -> float:
    """All tokens over all seconds; 0 of nothing."""
    seconds = sum(sample.seconds for sample in samples)
    return sum(sample.tokens for sample in samples) / seconds if seconds else 0.0


def differing(samples: Sequence[Sample], plain: dict[int, Text]) -> tuple[int, int]:
    """How many texts differ from plain decoding's, and how many could be compared."""
    pairs = [
        (text, plain[unit])
        for sample in samples
        for unit, text in zip(sample.units, sample.texts, strict=True)
        if unit in plain
    ]
    return sum(text != other for text, other in pairs), len(pairs)


def drafting(samples: Sequence[Sample]) -> dict[str, Any]:
    """Figures of the rows' own statistics; empty for policies that are not ours."""
    rows = [row for sample in samples for row in sample.rows]
    if not rows or any(row["metrics"] is None for row in rows):
        return {}
    spec = [row["metrics"]["speculative_decoding"] for row in rows]
    own = [row["metrics"]["draftbus"] for row in rows]
    passes = sum(part["num_spec_steps"] for part in spec)
    tokens = sum(row["timings"]["predicted_n"] for row in rows)
    alphas = [part["alpha"] for part in own if part["alpha"] is not None]
    steps = [sample.steps for sample in samples if sample.steps is not None]
    return {
        "alpha": sum(alphas) / len(alphas) if alphas else None,
        "alpha_by_depth": _shares(own, "accepted_by_depth", "judged_by_depth"),
        "alpha_by_rank": _shares(own, "accepted_by_rank", "judged_by_rank"),
        "mean_accepted_length":
            1 + _ratio(sum(part["num_accepted_draft_tokens"] for part in spec), passes, 0.0),
        "empty_passes_share": _ratio(sum(part["empty_passes"] for part in own), passes),
        "hedge_hits_per_pass": _ratio(sum(part["hedge_hits"] for part in own), passes),
        "wire_bytes_per_token": _ratio(sum(part["wire_bytes"] for part in own), tokens),
        "drafter_busy": _ratio(
            sum(part["drafter_busy_s"] for part in own),
            sum(sample.ended - sample.began for sample in samples),
        ),
        "drafter_steps_per_pass": _ratio(sum(steps), passes),
    }  # fmt: skip


def passes(samples: Sequence[Sample], log: PassLog) -> dict[str, Any]:
    """Figures of the verifier's log; empty where it has nothing."""
    logged = [entry for sample in samples for entry in log.between(sample.began, sample.ended)]
    seconds = sum(sample.seconds for sample in samples)
    if not logged or not seconds:
        return {}
    forward_s = sum(entry["forward_s"] for entry in logged)
    overhead_s = sum(entry.get(part, 0.0) for entry in logged for part in OVERHEAD)
    return {
        "bubble_share": sum(entry["wait_s"] for entry in logged) / seconds,
        "overhead_ms_per_pass": 1e3 * overhead_s / len(logged),
        "forward_ms_per_pass": 1e3 * forward_s / len(logged),
        "verifier_busy": (forward_s + overhead_s) / seconds,
    }


def _shares(parts: list[dict[str, Any]], right: str, tried: str) -> list[float | None] | None:
    """Right of tried, place by place, over lists of unequal lengths; None where not counted."""
    if any(right not in part or tried not in part for part in parts):
        return None
    length = max((len(part[tried]) for part in parts), default=0)

    def total(name: str, place: int) -> int:
        return sum(part[name][place] for part in parts if place < len(part[name]))

    return [_ratio(total(right, i), total(tried, i)) for i in range(length)]


def _ratio(part: float, whole: float, otherwise: Any = None) -> Any:
    return part / whole if whole else otherwise
