"""The search for each policy's best setting, on prompts that are not reported on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench import estimates
from bench.cells import Cell, Choice, Settings, Unit

DRAFT_LENGTHS = tuple(range(1, 13))
WINDOWS = (2, 3, 4, 6, 8, 12, 16)
ASSISTANT_DTYPES = ("float32", "bfloat16")
ASSISTANT_LENGTHS = (1, 2, 3, 4, 6, 8)
HEURISTIC_START = 5
MLX_LENGTHS = (1, 2, 3, 4, 6)
QUICK_LENGTHS = (1, 2, 3, 5)
QUICK_ASSISTANT_LENGTHS = (2, 4)
SHARED_LENGTHS = (1, 2, 4)
"""Tried for several sessions at once in a quick run: they fill a pass with few drafts each."""

Trial = Callable[[Cell, Sequence[Unit], int, Choice], tuple[int, float]]
"""Runs a cell on units for so many tokens each; total tokens and seconds."""


@dataclass(frozen=True)
class Effort:
    """How thoroughly to search."""

    tokens: int
    """Of each text."""
    survivors: tuple[int, ...]
    """Candidates left after each round; see `estimates.best`."""


def effort(settings: Settings, sessions: int) -> Effort:
    """How thoroughly a run searches; several texts at once need not be as long."""
    tokens, survivors = (24, (3, 1)) if settings.quick else (48, (5, 2, 1))
    if sessions > 1:
        tokens, survivors = max(12, 2 * tokens // sessions), survivors[1:]
    return Effort(min(tokens, settings.max_tokens), survivors)


def candidates(cell: Cell, quick: bool = False) -> list[Choice]:
    """Every setting that may win; one empty choice for a policy that has none."""
    match cell.policy:
        case "fixed" | "synchronous":
            lengths = SHARED_LENGTHS if quick and cell.sessions > 1 else DRAFT_LENGTHS
            return [{"num_draft_tokens": count} for count in lengths]
        case "pipelined":
            return [{"window": window} for window in WINDOWS]
        case "assisted":
            counts = QUICK_ASSISTANT_LENGTHS if quick else ASSISTANT_LENGTHS
            kinds = [(n, "constant") for n in counts] + [(HEURISTIC_START, "heuristic")]
            return [{"num_assistant_tokens": n, "schedule": schedule, "assistant": dtype}
                    for dtype in ASSISTANT_DTYPES for n, schedule in kinds]  # fmt: skip
        case "assisted-default":
            return [{"assistant": kind} for kind in ASSISTANT_DTYPES]
        case "mlx-lm":
            return [{"num_draft_tokens": n} for n in (QUICK_LENGTHS if quick else MLX_LENGTHS)]
    return [{}]


def trials(found: Sequence[Choice], how: Effort) -> int:
    """How many batches `search` runs."""
    if len(found) == 1:
        return 1
    return 1 + len(found) + sum(how.survivors[:-1])


def searched_as(cell: Cell, settings: Settings) -> Cell:
    """The cell whose search serves this one, too: that of temperature 0, and of one session."""
    cooler = 0.0 if 0.0 in settings.temperatures else cell.temperature
    fewer = 1 if 1 in settings.sessions else cell.sessions
    return replace(cell, temperature=cooler, sessions=fewer, prompts=1)


def search(
    cell: Cell, found: Sequence[Choice], units: Sequence[Unit], how: Effort, trial: Trial
) -> Choice:
    """The best choice for `cell`; `units` are tuning prompts. One trial warms up first."""
    count = cell.sessions

    def measure(choice: Choice, number: int) -> tuple[int, float]:
        start = number * count % max(1, len(units) - count + 1)
        return trial(cell, units[start : start + count], how.tokens, choice)

    measure(found[len(found) // 2], len(how.survivors))
    return estimates.best(found, measure, how.survivors)


def first_number(choice: Choice) -> int | None:
    """The number in a choice: a draft length or a window."""
    numbers: list[Any] = [value for value in choice.values() if isinstance(value, int)]
    return numbers[0] if numbers else None
