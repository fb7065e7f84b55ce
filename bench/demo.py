"""`demo`: both daemons as processes on the embedded pair, against plain decoding."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from bench import feed, processes
from bench.pair import DRAFT, TARGET, corpus
from bench.plain import Plain
from bench.processes import Cores
from bus.errors import DraftbusError
from drafter_mlx.display import number, per_token

LOAD_WITHIN_S = 600.0


@dataclass(frozen=True)
class Demo:
    """What to show."""

    target: Path = TARGET
    draft: Path = DRAFT
    dtype: str = "float32"
    """Of the target."""
    title: str = "the embedded tiny pair"
    prompts: int = 3
    max_tokens: int = 96
    temperature: float = 0.0
    seed: int = 0
    drafting: str = "tree"


def on_cost_pair(folder: Path) -> Demo:
    """The demo's models at a cost that is worth drafting for; made in `folder` if need be."""
    from bench.pair import widen

    target, draft = widen.pair(folder)
    title = "the tiny pair, widened to cost what 0.2 B and 5 M parameters cost"
    return Demo(target, draft, "bfloat16", title)


def run(demo: Demo, console: Console) -> bool:
    """Show the pipeline at work; True when every text equals plain decoding's."""
    tokenizer = AutoTokenizer.from_pretrained(demo.target)
    named = corpus.held_out_prompts(tokenizer.encode, demo.prompts)
    prompts = [ids for _, ids in named]
    for index, (path, _) in enumerate(named, 1):
        console.print(f"prompt {index}: the beginning of the standard library's {path}")
    cores = Cores.usable()
    rows = _drafted(demo, prompts, cores)
    baseline = _plain(demo, prompts, cores.verifier)
    everywhere = _plain(demo, prompts, cores.every)
    equal = [row["token_ids"] == p.tokens for row, p in zip(rows, baseline, strict=True)]
    console.print(_table(demo, rows, baseline, equal), soft_wrap=True)
    console.print(_verdict(rows, baseline))
    console.print(
        f"plain decoding is our engine on the verifier's cores; with all {os.cpu_count()} cores of "
        f"this machine it makes {number(_rate(everywhere))} tokens/s"
    )
    if not all(equal):
        console.print("[red]the texts differ: this is a bug, please report it[/red]")
    return all(equal)


def _drafted(demo: Demo, prompts: list[list[int]], cores: Cores) -> list[dict[str, Any]]:
    """The rows of a real drafter at a real verifier; its coloured text goes to the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "prompts.jsonl", Path(folder) / "out.jsonl"
        source.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in prompts))
        flags = [
            "--prompts", str(source), "--out", str(out), "--stream",
            "--max-tokens", str(demo.max_tokens), "--temp", str(demo.temperature),
            "--seed", str(demo.seed), "--drafting", demo.drafting,
        ]  # fmt: skip
        threads = len(cores.verifier) if cores.verifier else max(1, (os.cpu_count() or 2) - 1)
        with processes.verifier(
            demo.target, ["--dtype", demo.dtype], threads=threads, cores=cores.verifier
        ) as verifier:
            command = processes.complete_command(verifier.address, demo.draft, flags)
            place = feed.Place(cores.drafter, 1, processes.openblas())
            with processes.on_cores(cores.drafter):
                done = subprocess.run(command, env=place.environment(), check=False)
        if done.returncode:
            raise DraftbusError(f"the drafter ended with code {done.returncode}; see above")
        return [json.loads(line) for line in out.read_text().splitlines()]


def _plain(demo: Demo, prompts: list[list[int]], cores: tuple[int, ...] | None) -> list[Plain]:
    """Plain decoding in a process of its own on `cores`, after a warm-up."""
    row = {"temperature": demo.temperature, "seed": demo.seed, "ignore_eos": False}
    long, short = ({**row, "max_tokens": count} for count in (demo.max_tokens, 4))
    models = ["--model", str(demo.target), "--draft", str(demo.draft), "--dtype", demo.dtype]
    place = feed.Place(cores, len(cores) if cores else os.cpu_count() or 1)
    helper = feed.Helper("bench.baselines", ["engine", *models], place)
    try:
        helper.ready()
        helper.ask({"rows": [{"prompt_ids": prompts[0], **short}]}, LOAD_WITHIN_S)
        batch = {"rows": [{"prompt_ids": ids, **long} for ids in prompts]}
        answer = helper.ask(batch, LOAD_WITHIN_S)
    finally:
        helper.close()
    return [Plain(row["token_ids"], row["timings"]["predicted_ms"] / 1e3) for row in answer["rows"]]


def _table(
    demo: Demo, rows: list[dict[str, Any]], baseline: list[Plain], equal: list[bool]
) -> Table:
    table = Table(title=f"{demo.title}; both daemons as processes over tcp loopback")
    for name in ("", *(f"prompt {index}" for index in range(1, len(rows) + 1))):
        table.add_column(name, justify="right")
    columns = [_column(row, p, same) for row, p, same in zip(rows, baseline, equal, strict=True)]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _column(row: dict[str, Any], baseline: Plain, same: bool) -> dict[str, str]:
    timings, metrics = row["timings"], row["metrics"]
    spec, own = metrics["speculative_decoding"], metrics["draftbus"]
    seconds = timings["predicted_ms"] / 1e3
    return {
        "tokens/s, plain": number(len(baseline.tokens) / baseline.seconds),
        "tokens/s, drafted": number(timings["predicted_per_second"]),
        "acceptance α": number(own["alpha"], 2),
        "mean accepted length": number(spec["mean_acceptance_length"], 2),
        "rollbacks": str(own["rollbacks"]),
        "hedge hits": str(own["hedge_hits"]),
        "empty passes": f"{own['empty_passes']} of {spec['num_spec_steps']}",
        "payload bytes per token": number(per_token(own["wire_bytes"], timings["predicted_n"])),
        "verifier busy": _share(own["verifier_busy_s"], seconds + timings["prompt_ms"] / 1e3),
        "drafter busy": _share(own["drafter_busy_s"], seconds + timings["prompt_ms"] / 1e3),
        "text equals plain": "yes" if same else "NO",
    }


def _share(part_s: float, whole_s: float) -> str:
    return f"{100 * part_s / whole_s:.0f} %" if whole_s else "-"


def _rate(texts: list[Plain]) -> float:
    """Tokens a second over all texts."""
    return sum(len(p.tokens) for p in texts) / sum(p.seconds for p in texts)


def _verdict(rows: list[dict[str, Any]], baseline: list[Plain]) -> str:
    """Whether drafting paid, over all prompts."""
    plain_s = 1 / _rate(baseline)
    timings = [row["timings"] for row in rows]
    drafted_s = (
        sum(t["predicted_ms"] for t in timings) / sum(t["predicted_n"] for t in timings) / 1e3
    )
    ratio = plain_s / drafted_s
    if ratio > 1:
        return f"drafting paid: {ratio:.2f} × plain decoding"
    return (
        f"drafting did not pay here ({ratio:.2f} × plain decoding): a token of this target takes "
        f"{plain_s * 1e3:.1f} ms, which leaves little time to draft in. The demo shows that the "
        "parts work; speed needs a target that is slow against its draft."
    )
