"""`demo`: both daemons as processes on the tiny pair, against plain decoding."""

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

from bench import plain, processes
from bench.pair import DRAFT, TARGET, corpus
from bus.errors import DraftbusError
from bus.messages import Sampling
from drafter_mlx.display import number, per_token


@dataclass(frozen=True)
class Demo:
    """What to show."""

    target: Path = TARGET
    draft: Path = DRAFT
    prompts: int = 3
    max_tokens: int = 96
    temperature: float = 0.0
    seed: int = 0
    drafting: str = "tree"


def run(demo: Demo, console: Console) -> bool:
    """Show the pipeline at work; True when every text equals plain decoding's."""
    tokenizer = AutoTokenizer.from_pretrained(demo.target)
    named = corpus.held_out_prompts(tokenizer.encode, demo.prompts)
    prompts = [ids for _, ids in named]
    for index, (path, _) in enumerate(named, 1):
        console.print(f"prompt {index}: the beginning of the standard library's {path}")
    rows = _drafted(demo, prompts)
    sampling = Sampling(demo.max_tokens, demo.temperature, seed=demo.seed)
    baseline = plain.with_engine(demo.target, prompts, sampling)
    kind = "our engine without drafts"
    if demo.temperature == 0:
        other = plain.with_transformers(demo.target, prompts, demo.max_tokens)
        if [p.tokens for p in other] != [p.tokens for p in baseline]:
            console.print("[red]our engine and transformers.generate differ[/red]")
            return False
        if sum(p.seconds for p in other) < sum(p.seconds for p in baseline):
            baseline, kind = other, "transformers.generate"
    equal = [row["token_ids"] == p.tokens for row, p in zip(rows, baseline, strict=True)]
    console.print(_table(rows, baseline, equal), soft_wrap=True)
    console.print(f"plain: {kind}; both sides share this machine's {os.cpu_count()} cores")
    console.print(_verdict(rows, baseline))
    if not all(equal):
        console.print("[red]the texts differ: this is a bug, please report it[/red]")
    return all(equal)


def _drafted(demo: Demo, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """The rows of a real drafter at a real verifier; its coloured text goes to the terminal."""
    threads = max(1, (os.cpu_count() or 2) - 1)
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "prompts.jsonl", Path(folder) / "out.jsonl"
        source.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in prompts))
        flags = [
            "--prompts", str(source), "--out", str(out), "--stream",
            "--max-tokens", str(demo.max_tokens), "--temp", str(demo.temperature),
            "--seed", str(demo.seed), "--drafting", demo.drafting,
        ]  # fmt: skip
        with processes.verifier(demo.target, threads=threads) as verifier:
            command = processes.complete_command(verifier.address, demo.draft, flags)
            done = subprocess.run(command, env=processes.environment(1), check=False)
        if done.returncode:
            raise DraftbusError(f"the drafter ended with code {done.returncode}; see above")
        return [json.loads(line) for line in out.read_text().splitlines()]


def _table(rows: list[dict[str, Any]], baseline: list[plain.Plain], equal: list[bool]) -> Table:
    table = Table(title="the embedded tiny pair, both daemons as processes over tcp loopback")
    for name in ("", *(f"prompt {index}" for index in range(1, len(rows) + 1))):
        table.add_column(name, justify="right")
    columns = [_column(row, p, same) for row, p, same in zip(rows, baseline, equal, strict=True)]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _column(row: dict[str, Any], baseline: plain.Plain, same: bool) -> dict[str, str]:
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


def _verdict(rows: list[dict[str, Any]], baseline: list[plain.Plain]) -> str:
    """Whether drafting paid, over all prompts."""
    plain_s = sum(p.seconds for p in baseline) / sum(len(p.tokens) for p in baseline)
    timings = [row["timings"] for row in rows]
    drafted_s = (
        sum(t["predicted_ms"] for t in timings) / sum(t["predicted_n"] for t in timings) / 1e3
    )
    ratio = plain_s / drafted_s
    if ratio > 1:
        return f"drafting paid: {ratio:.2f} × plain decoding"
    return (
        f"drafting did not pay here ({ratio:.2f} × plain decoding): a token of this small target "
        f"takes {plain_s * 1e3:.1f} ms, which leaves little time to draft in. The demo shows that "
        "the parts work; speed needs a target that is slow against its draft."
    )
