"""`sweep`: a grid of strategies and settings on the same prompts, logged as it goes.

Two files of JSON lines grow in the output folder: `runs.jsonl`, a line for each
text, and `passes.jsonl`, a line for each pass of the verifier with the number of
its run. `report` reads them.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from bench import cells, workloads
from bench.assistant import SHARED
from bench.cells import Cell, Choice, Settings, Unit
from bench.crew import Crew
from bench.workloads import Prompt
from bus.errors import BadSetup
from strategies.drafting import OPTIONS

RUNS, PASSES = "runs.jsonl", "passes.jsonl"
WITHIN_S = 600.0
_USES = {
    "fixed": ("num_draft_tokens",),
    "synchronous": ("num_draft_tokens",),
    "pipelined": ("window",),
    "tree": ("branches", "step_nodes", "window"),
    "tree-lookup": ("branches", "step_nodes", "window"),
    "multi": ("num_draft_tokens", "branches"),
    "beam": ("num_draft_tokens", "branches"),
    "lookup": ("window",),
    "adaptive": ("num_draft_tokens",),
}
"""Options that a strategy looks at; a strategy of somebody else's gets all of them."""
SAME_TEXT = ("exact", "greedy")
"""Acceptances under which every text is plain decoding's."""


@dataclass(frozen=True)
class Grid:
    """What is varied. RTT is in plain passes."""

    drafting: tuple[str, ...] = ("fixed", "pipelined", "tree")
    num_draft_tokens: tuple[int, ...] = (2, 4, 8)
    window: tuple[int, ...] = (16,)
    branches: tuple[int, ...] = (2, 3)
    step_nodes: tuple[int, ...] = (4,)
    temperatures: tuple[float, ...] = (0.0,)
    rtts: tuple[float, ...] = (0.0,)
    acceptance: tuple[str, ...] = ("exact",)
    lockstep: bool = False
    """The verifier waits for a draft before each pass: then what is accepted is no question of
    time."""

    def choices(self, drafting: str) -> list[Choice]:
        """Every combination of the options that `drafting` looks at."""
        parts = drafting.split("+")
        used = [name for name in OPTIONS if any(name in _USES.get(p, OPTIONS) for p in parts)]
        values = [getattr(self, name) for name in used]
        more: Choice = {"lockstep": True} if self.lockstep else {}
        return [
            dict(zip(used, chosen, strict=True)) | more | named
            for chosen in itertools.product(*values)
            for named in self._named()
        ]

    def _named(self) -> list[Choice]:
        """The acceptances, where they are not the default alone."""
        several = self.acceptance != Grid.acceptance
        return [{"acceptance": name} for name in self.acceptance] if several else [{}]

    def cells(self) -> Iterator[tuple[Cell, Choice]]:
        """All configurations."""
        for drafting, rtt, heat in itertools.product(self.drafting, self.rtts, self.temperatures):
            for choice in self.choices(drafting):
                yield Cell(drafting, rtt, "model", heat), choice


@dataclass(frozen=True)
class Sweep:
    """What one call was asked to do."""

    grid: Grid
    pairs: tuple[tuple[str, str, str], ...]
    """Name, target and draft of each."""
    prompts: tuple[Path, ...] = ()
    num_samples: int = 4
    max_tokens: int = 128
    prompt_tokens: int = 96
    dtype: str = "bfloat16"
    seed: int = 0


def run(sweep: Sweep, out: Path, say: Callable[[str], None]) -> int:
    """Run the grid on every pair; the number of texts that differed from plain decoding's."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = (out / RUNS).open("a"), (out / PASSES).open("a")
    except OSError as error:
        raise BadSetup(f"cannot write to {out}: {error.strerror}; choose another --out") from None
    with files[0] as runs, files[1] as passes:
        return sum(_Pair(sweep, *pair, runs, passes, say).run() for pair in sweep.pairs)


class _Pair:
    """The grid on one pair of models."""

    def __init__(self, sweep: Sweep, name: str, target: str, draft: str, *ends: Any) -> None:
        self._sweep, self._name = sweep, name
        self._runs, self._passes, self._say = ends
        self._settings = Settings(target, draft, sweep.dtype, sessions=(1,))
        self._number = 0

    def run(self) -> int:
        """All configurations on each prompt before the next one; returns texts that differ."""
        sweep, differing = self._sweep, 0
        grid = list(sweep.grid.cells())
        with Crew(self._settings, {"engine", "model"}) as crew:
            for index, prompt in enumerate(self._prompts()):
                plain = {heat: self._plain(crew, index, prompt, heat)
                         for heat in sweep.grid.temperatures}  # fmt: skip
                for cell, choice in grid[index % len(grid) :] + grid[: index % len(grid)]:
                    self._say(f"{self._name}, prompt {index + 1}: {cell.key} {choice}")
                    base = plain[cell.temperature]
                    row = self._measure(crew, cell, choice, Unit(index, prompt, sweep.seed), base)
                    same = choice.get("acceptance", "exact") in SAME_TEXT
                    differing += same and row["token_ids"] != base["token_ids"]
        return differing

    def _prompts(self) -> list[Prompt]:
        sweep = self._sweep
        tokenizer = AutoTokenizer.from_pretrained(self._settings.target)
        found = workloads.load(sweep.prompts, tokenizer.encode, sweep.prompt_tokens)
        if len(found) < sweep.num_samples:
            raise BadSetup(f"there are only {len(found)} different prompts: lower --num-samples")
        return found[: sweep.num_samples]

    def _plain(self, crew: Crew, index: int, prompt: Prompt, heat: float) -> dict[str, Any]:
        cell, unit = Cell("plain", temperature=heat), Unit(index, prompt, self._sweep.seed)
        row = self._ask(crew, cell, unit, {}, 0.0)
        self._log(cell, unit, {}, row, row)
        return row

    def _measure(
        self, crew: Crew, cell: Cell, choice: Choice, unit: Unit, plain: dict[str, Any]
    ) -> dict[str, Any]:
        pass_s = plain["timings"]["predicted_ms"] / plain["timings"]["predicted_n"] / 1e3
        began = time.monotonic()
        row = self._ask(crew, cell, unit, choice, (cell.rtt_tv or 0.0) * pass_s / 2)
        self._log(cell, unit, choice, row, plain)
        for entry in crew.log.between(began, time.monotonic()):
            self._passes.write(json.dumps({"run": self._number} | entry) + "\n")
        return row

    def _ask(
        self, crew: Crew, cell: Cell, unit: Unit, choice: Choice, delay_s: float
    ) -> dict[str, Any]:
        batch = cells.batch(cell, [unit], self._sweep.max_tokens, choice, delay_s)
        with ExitStack() as stack:
            if second := cell.policy.partition("+")[2]:
                stack.enter_context(crew.second(second, choice, delay_s))
                batch["shared"] = SHARED
            row: dict[str, Any] = crew.ask(cell.helper, batch, WITHIN_S)["rows"][0]
        return row

    def _log(
        self, cell: Cell, unit: Unit, choice: Choice, row: dict[str, Any], plain: dict[str, Any]
    ) -> None:
        self._number += 1
        rate = row["timings"]["predicted_n"] / row["timings"]["predicted_ms"]
        base = plain["timings"]["predicted_n"] / plain["timings"]["predicted_ms"]
        line = {
            "run": self._number, "pair": self._name, "prompt": unit.prompt.name,
            **asdict(cell), "options": choice, "dtype": self._sweep.dtype, "seed": unit.seed,
            "tokens_per_s": 1e3 * rate, "ratio_plain": rate / base,
            "text_equal": row["token_ids"] == plain["token_ids"],
            "timings": row["timings"], "metrics": row["metrics"],
        }  # fmt: skip
        self._runs.write(json.dumps(line) + "\n")
        self._runs.flush()
