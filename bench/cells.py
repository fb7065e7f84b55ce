"""What is compared: one `Cell` for each row of the result, and the batch that measures it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.feed import Batch
from bench.workloads import Prompt
from bus.errors import BadSetup

Choice = dict[str, Any]
"""What was found by tuning, or nothing."""

SYNCHRONOUS = "synchronous"
"""`fixed` with a verifier that waits for each draft: the textbook's loop."""
BUS = (SYNCHRONOUS, "fixed", "pipelined", "tree")
IMPOSTORS = ("dead", "random", "adversarial")
ALONE = ("plain", "plain-all-cores", "transformers", "assisted", "assisted-default", "mlx-lm")
NAMES = (*ALONE, *BUS, *IMPOSTORS)
"""What `--only` may name; an impostor stands for its rows."""
HELPERS = {
    "plain": "engine", "plain-all-cores": "engine-all-cores", "transformers": "transformers",
    "assisted": "transformers", "assisted-default": "transformers", "mlx-lm": "mlx-lm",
}  # fmt: skip
"""Which helper process runs a policy that does without the bus."""
_GUESSES = {
    "synchronous": (0.6, 0.35), "fixed": (0.6, 0.3), "pipelined": (0.55, 0.1), "tree": (0.5, 0.1),
    "mlx-lm": (2.0, 0),
}  # fmt: skip
"""Plain passes per token, and how many more for an RTT of one pass."""
FAR = 2.0
"""RTTs beyond it are measured on the prompts of one seed."""
NEAR = (0.0, 1.0)
"""RTTs that are measured on the prompts of all seeds, and with impostors and temperatures."""
SESSION_GROUPS = 3
"""Most groups of prompts for a cell with several sessions at once."""


@dataclass(frozen=True)
class Settings:
    """One run. RTTs are in units of a plain pass, lengths in tokens."""

    target: str
    draft: str
    dtype: str = "bfloat16"
    prompts: tuple[Path, ...] = ()
    prompt_tokens: int = 96
    num_prompts: int = 12
    max_tokens: int = 128
    seeds: int = 2
    split_seed: int = 0
    rtts: tuple[float, ...] = (0.0, 0.2, 1.0, 2.0, 5.0)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    sessions: tuple[int, ...] = (1, 4, 8, 16)
    only: tuple[str, ...] = NAMES
    quick: bool = False
    tuned: Path | None = None
    """A result whose settings are taken instead of searching again."""

    def __post_init__(self) -> None:
        """BadSetup for a name that is none."""
        if unknown := set(self.only) - set(NAMES):
            raise BadSetup(f"there is no policy {sorted(unknown)[0]!r}; take {', '.join(NAMES)}")


@dataclass(frozen=True)
class Unit:
    """A prompt to report on, with the seed of its sampling."""

    number: int
    prompt: Prompt
    seed: int


@dataclass(frozen=True)
class Cell:
    """One row of the result."""

    policy: str
    rtt_tv: float | None = None
    """Round trip in plain passes; None without a network."""
    drafter: str = "none"
    """`model`, an impostor, or `none`."""
    temperature: float = 0.0
    sessions: int = 1
    prompts: int = 1
    """How many it is measured on."""

    @property
    def name(self) -> str:
        """What `--only` calls it."""
        return self.drafter if self.drafter in IMPOSTORS and self.policy != "plain" else self.policy

    @property
    def helper(self) -> str:
        """The helper process that runs it."""
        return self.drafter if self.drafter != "none" else HELPERS[self.policy]

    @property
    def key(self) -> str:
        """Tells it from all other cells, for people too."""
        network = "" if self.rtt_tv is None else f" rtt {self.rtt_tv:g}"
        return f"{self.policy}{network} {self.drafter} T {self.temperature:g} × {self.sessions}"

    def passes_per_token(self) -> float:
        """A rough guess at what it takes, in plain passes, to say how long a run will be."""
        if self.drafter in IMPOSTORS:
            alone, per_rtt = 1.0, 0.0
        else:
            alone, per_rtt = _GUESSES.get(self.policy, (1.0, 0.0))
        return (alone + per_rtt * (self.rtt_tv or 0.0)) * max(1.0, self.sessions / 3)

    def groups(self, units: Sequence[Unit]) -> list[tuple[Unit, ...]]:
        """The units it runs together, in order."""
        starts = range(0, self.prompts, self.sessions)
        return [tuple(units[start : start + self.sessions]) for start in starts]


def cells(settings: Settings) -> list[Cell]:
    """All that a run compares. `plain` is never left out: everything is divided by it."""
    all_prompts, one_seed = settings.num_prompts * settings.seeds, settings.num_prompts
    few = max(1, one_seed // 2)
    near = [rtt for rtt in settings.rtts if rtt in NEAR]
    found = [Cell(name, prompts=few if name == "mlx-lm" else one_seed) for name in ALONE[1:]]
    for rtt in settings.rtts:
        count = all_prompts if rtt <= FAR else one_seed
        found += [Cell(name, rtt, "model", prompts=count) for name in BUS]
    found += [Cell("tree", rtt, name, prompts=few) for rtt in near for name in IMPOSTORS]
    for heat in settings.temperatures:
        if heat > 0:
            found.append(Cell("plain", temperature=heat, prompts=one_seed))
            found += [Cell(name, rtt, "model", heat, prompts=one_seed)
                      for rtt in near for name in BUS]  # fmt: skip
    for count in settings.sessions:
        if count > 1:
            wide = count * max(1, min(SESSION_GROUPS, all_prompts // count))
            found.append(Cell("plain", 0.0, "dead", sessions=count, prompts=wide))
            found += [Cell(name, 0.0, "model", 0.0, count, wide) for name in ("fixed", "tree")]
    chosen = [
        cell
        for cell in found
        if (cell.name in settings.only or cell.policy == "plain")
        and cell.temperature in settings.temperatures
        and cell.sessions in settings.sessions
    ]
    return [Cell("plain", prompts=all_prompts), *chosen]


def drafting(policy: str) -> str:
    """The strategy that a policy drafts with; for plain decoding beside others, any.

    `A+B` is A, with a second drafter that drafts by B.
    """
    return "fixed" if policy in (SYNCHRONOUS, "plain") else policy.split("+")[0]


def batch(
    cell: Cell, units: Sequence[Unit], max_tokens: int, choice: Choice, delay_s: float
) -> Batch:
    """What the cell's helper is asked to run; `delay_s` is one way, in seconds."""
    row: Choice = {"max_tokens": max_tokens, "temperature": cell.temperature, "ignore_eos": True}
    if cell.helper not in HELPERS.values():
        row |= {"drafting": drafting(cell.policy), **choice}
        row.setdefault("lockstep", cell.policy == SYNCHRONOUS)
    return {
        "rows": [{"prompt_ids": unit.prompt.ids, "seed": unit.seed, **row} for unit in units],
        "at_once": cell.sessions,
        "delay_s": delay_s,
        "jitter_s": 0.0,
        "policy": cell.key,
        "options": choice,
    }
