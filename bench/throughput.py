"""`throughput`: every policy on every prompt in turn, against plain decoding in the same run.

Order: load, measure the plain pass, tune on one half of the prompts, then for each
prompt of the other half run all policies before the next one, starting with
another policy each time. So whatever the machine does meanwhile hits all alike.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from transformers import AutoTokenizer

from bench import cells as plan
from bench import estimates, feed, machine, results, samples, tuning, workloads
from bench.cells import Cell, Choice, Settings, Unit
from bench.crew import Crew
from bench.recording import Record
from bench.results import Result, Row
from bench.samples import Sample, Text
from bus.errors import BadSetup

PLAIN = "plain"
SYNCHRONOUS = ("synchronous", "fixed")
"""Policies that draft, push and wait; the faster one is what others are held against."""
WARM_UP_TOKENS = 32
STEP_S = 0.5
"""A draft step that takes longer is taken for one that hangs."""
GRACE_S = 120.0
"""A batch may take ten times what is expected, and this."""
BATCH_S = 0.3
"""About what a batch costs beside its tokens: prompt, greeting."""
Say = Callable[[str], None]
Round = list[tuple[Cell, tuple[Unit, ...]]]


@dataclass
class Workload:
    """Prompts to tune on and to report on, as units."""

    tuning: list[Unit]
    reporting: list[Unit]


def workload(settings: Settings) -> Workload:
    """The units of a run; BadSetup when there are too few prompts."""
    tokenizer = AutoTokenizer.from_pretrained(settings.target)
    found = workloads.load(settings.prompts, tokenizer.encode, settings.prompt_tokens)
    halves = workloads.split(found, settings.split_seed)
    need = max([settings.num_prompts * settings.seeds, *settings.sessions])
    if len(halves.reporting) < need or len(halves.tuning) < max(settings.sessions):
        raise BadSetup(
            f"{need} prompts to report on are needed and the same number to tune on; there are "
            f"{len(found)} different ones: lower --num-prompts, --seeds or --sessions, or give "
            "more --prompts"
        )
    units = [
        [Unit(i, prompt, min(i // settings.num_prompts, settings.seeds - 1))
         for i, prompt in enumerate(half)]
        for half in (halves.tuning, halves.reporting)
    ]  # fmt: skip
    return Workload(*units)


def rounds(cells: Sequence[Cell], units: Sequence[Unit]) -> list[Round]:
    """What runs in which order: round i has every cell's i-th group, rotated."""
    groups = {cell: cell.groups(units) for cell in cells}
    count = max(len(each) for each in groups.values())
    found = []
    for number in range(count):
        tasks = [(cell, each[number]) for cell, each in groups.items() if number < len(each)]
        shift = number * len(tasks) // count
        found.append(tasks[shift:] + tasks[:shift])
    return found


@dataclass
class Run:
    """A run under way: what was measured so far."""

    settings: Settings
    crew: Crew
    cells: list[Cell]
    work: Workload
    say: Say
    load_before: float = 0.0
    """The machine's load average before the run."""
    pass_s: float = 0.05
    """A plain pass: the unit of RTTs. A guess until it is measured."""
    choices: dict[Cell, Choice] = field(default_factory=dict)
    taken: dict[Cell, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[Cell, str] = field(default_factory=dict)
    acceptance: dict[str, list[Record]] = field(default_factory=dict)
    """By temperature: how good the draft's guesses are along plain decoding's texts."""

    def measure(self, cell: Cell, units: Sequence[Unit], tokens: int, choice: Choice) -> Sample:
        """Run one batch; feed.Broken when it does not come through."""
        delay_s = (cell.rtt_tv or 0.0) * self.pass_s / 2
        batch = plan.batch(cell, units, tokens, choice, delay_s)
        expected_s = tokens * cell.sessions * (self.pass_s + 2 * delay_s)
        began = time.monotonic()
        answer = self.crew.ask(cell.helper, batch, GRACE_S + 10 * expected_s)
        return samples.taken(cell, units, answer, began, time.monotonic())

    def time_plain(self) -> None:
        """Measure the plain pass on two tuning prompts, after one to warm up."""
        done = [
            self.measure(Cell(PLAIN), [unit], WARM_UP_TOKENS, {}) for unit in self.work.tuning[:3]
        ]
        self.pass_s = sum(s.seconds for s in done[1:]) / sum(s.tokens for s in done[1:])

    def tune(self) -> None:
        """Find each cell's best choice, and warm all of them up."""
        quick = self.settings.quick
        found = self._found_before()
        for number, cell in enumerate(self.cells, 1):
            self.say(f"tuning {number} of {len(self.cells)}: {cell.key}")
            asked = tuning.searched_as(cell, self.settings)
            known = [found[asked]] if asked in found else tuning.candidates(cell, quick)
            how = tuning.effort(self.settings, cell.sessions)
            try:
                best = tuning.search(cell, known, self.work.tuning, how, self._trial)
                self.choices[cell] = found[asked] = best
            except feed.Broken as error:
                self.errors[cell] = str(error)

    def _found_before(self) -> dict[Cell, Choice]:
        """The choices of the result that the settings name, by the cell they were searched for."""
        if self.settings.tuned is None:
            return {}
        rows = results.read(self.settings.tuned).rows
        return {
            Cell(row.policy, row.rtt_tv, row.drafter, row.temperature, row.sessions): row.options
            for row in rows
            if row.options
        }

    def expected_s(self) -> tuple[float, float]:
        """A rough guess at how long tuning and measuring take, in seconds."""
        quick, tune_s, run_s = self.settings.quick, 0.0, 0.0
        searched = set(self._found_before())
        for cell in self.cells:
            asked = tuning.searched_as(cell, self.settings)
            known = [{}] if asked in searched else tuning.candidates(cell, quick)
            searched.add(asked)
            how = tuning.effort(self.settings, cell.sessions)
            token_s = cell.passes_per_token() * self.pass_s
            tune_s += tuning.trials(known, how) * (how.tokens * token_s + BATCH_S)
            batches = cell.prompts / cell.sessions
            run_s += batches * (self.settings.max_tokens * token_s + BATCH_S)
        return tune_s, run_s

    def _trial(
        self, cell: Cell, units: Sequence[Unit], tokens: int, choice: Choice
    ) -> tuple[int, float]:
        sample = self.measure(cell, units, tokens, choice)
        return sample.tokens, sample.seconds

    def run_round(self, tasks: Round) -> None:
        """One batch of each cell that has not failed."""
        for cell, units in tasks:
            if cell in self.errors:
                continue
            try:
                choice = self.choices[cell]
                sample = self.measure(cell, units, self.settings.max_tokens, choice)
                self.taken[cell].append(sample)
            except feed.Broken as error:
                self.errors[cell] = str(error)
                self.say(f"{cell.key} failed: {error}\n")

    def record(self) -> None:
        """Ask the draft what it would have guessed along the texts; for the simulator."""
        if not any(cell.drafter == "model" for cell in self.cells):
            return
        for cell in self.cells:
            if cell.policy == PLAIN and cell.drafter == "none" and self.taken[cell]:
                pairs = [zip(sample.units, sample.texts, strict=True)
                         for sample in self.taken[cell]]  # fmt: skip
                texts = {unit: text for pair in pairs for unit, text in pair}
                chosen = [unit for unit in self.work.reporting if unit.number in texts]
                batch = plan.batch(cell, chosen, self.settings.max_tokens, {}, 0.0)
                for row, unit in zip(batch["rows"], chosen, strict=True):
                    row["text"] = texts[unit.number]
                try:
                    within_s = GRACE_S + len(chosen) * self.settings.max_tokens * STEP_S
                    answer = self.crew.ask("model", batch | {"record": True}, within_s)
                    self.acceptance[f"{cell.temperature:g}"] = answer["records"]
                except feed.Broken as error:
                    self.say(f"the draft's guesses were not recorded: {error}\n")

    # Results ---------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """A row for each cell, with what is known so far."""
        return [self._row(cell) for cell in self.cells]

    def _row(self, cell: Cell) -> Row:
        done, choice = self.taken[cell], self.choices.get(cell, {})
        known = samples.drafting(done) | samples.passes(done, self.crew.log)
        differing, compared = samples.differing(done, self._plain_texts(cell))
        plain = self._against(cell, self._plain_cell(cell))
        fixed = self._against(cell, self._fixed_cell(cell))
        return Row(
            policy=cell.policy, k=tuning.first_number(choice), options=choice,
            rtt_tv=cell.rtt_tv, drafter=cell.drafter, temperature=cell.temperature,
            sessions=cell.sessions, prompts=sum(len(sample.units) for sample in done),
            tokens_per_s=samples.overall(done) or None,
            tokens_per_s_by_prompt=[sample.rate for sample in done],
            ratio_plain=estimates.middle(plain), ratio_plain_interval=estimates.interval(plain),
            ratio_best_fixed=estimates.middle(fixed),
            ratio_best_fixed_interval=estimates.interval(fixed),
            texts_equal=not differing if compared else None,
            texts_compared=compared, texts_differing=differing,
            error=self.errors.get(cell), **known,
        )  # fmt: skip

    def _against(self, cell: Cell, other: Cell | None) -> list[float]:
        if other is None:
            return []
        return estimates.paired_ratios(
            samples.rates(self.taken[cell]), samples.rates(self.taken[other])
        )

    def _plain_cell(self, cell: Cell) -> Cell | None:
        return next((other for other in self._alike(cell) if other.policy == PLAIN), None)

    def _fixed_cell(self, cell: Cell) -> Cell | None:
        """The faster of the synchronous policies at the same RTT."""
        rivals = [
            other
            for other in self._alike(cell)
            if other.policy in SYNCHRONOUS and other.rtt_tv == cell.rtt_tv and self.taken[other]
        ]
        return max(rivals, key=lambda other: samples.overall(self.taken[other]), default=None)

    def _alike(self, cell: Cell) -> list[Cell]:
        same = (cell.temperature, cell.sessions)
        return [other for other in self.cells if (other.temperature, other.sessions) == same]

    def _plain_texts(self, cell: Cell) -> dict[int, Text]:
        """Plain decoding's texts by unit: alone where it ran alone, else beside others."""
        texts: dict[int, Text] = {}
        for other in self.cells:
            if other.policy == PLAIN and other.temperature == cell.temperature and other != cell:
                for sample in self.taken[other]:
                    for unit, text in zip(sample.units, sample.texts, strict=True):
                        texts.setdefault(unit, text)
        return texts

    def measured(self) -> dict[str, Any]:
        """Times in seconds that the ratios hang on."""
        drafter, log = self.crew.about.get("model", {}), self.crew.log
        log.catch_up()
        return {
            "plain_pass_s": self.pass_s,
            "tv_s": log.pass_times or {"1": self.pass_s},
            "td_s": drafter.get("step_s"),
            "rtt_s": drafter.get("rtt_s"),
            "emulated_rtt_s": {f"{rtt:g}": rtt * self.pass_s for rtt in self.settings.rtts},
            "overhead_s": log.overhead_s(),
            "acceptance": self.acceptance,
        }

    def result(self, command: str, complete: bool) -> Result:
        """All that is known so far."""
        settings = asdict(self.settings)
        settings["prompts"] = [path.name for path in self.settings.prompts] or "held-out stdlib"
        del settings["target"], settings["draft"], settings["tuned"]
        date = datetime.now(UTC).isoformat(timespec="seconds")
        return Result(
            machine.hardware(self.crew) | {"load_before": round(self.load_before, 2)},
            machine.models(self.settings, self.crew),
            {"command": command, "date": date, **settings}, self.measured(), self.rows(), complete,
        )  # fmt: skip
