"""What one call of `complete` was asked to do, and the doing of it."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from bus.errors import BadSetup
from bus.messages import Sampling
from drafter_mlx.config import Config, Drafts
from drafter_mlx.rows import Encoder, OutFile, Row, make_job, read_rows


def source(prompt: str | None, prompts: Path | None) -> list[Row]:
    """The rows that `--prompt` or `--prompts` asks for; BadSetup for both and for neither."""
    if prompts is None and prompt is not None:
        return [{"prompt": prompt}]
    if prompts is None or prompt is not None:
        raise BadSetup("give either --prompt TEXT or --prompts FILE.jsonl")
    return read_rows(prompts)


def target(prompts: Path | None, out: Path | None, resume: bool) -> OutFile | None:
    """The file of `--out`, if there is one. It is not touched yet."""
    if out is not None and prompts is not None and out.resolve() == prompts.resolve():
        raise BadSetup("--out would replace --prompts: choose another file")
    if resume and out is None:
        raise BadSetup("--resume needs the --out file of the earlier run")
    return OutFile(out, resume) if out is not None else None


@dataclass(frozen=True)
class Task:
    """What one call of `complete` was asked to do."""

    rows: list[Row]
    sampling: Sampling
    drafts: Drafts
    out: OutFile | None
    at_once: int
    streamed: bool
    table: bool
    """Show statistics under the text."""
    logprobs: int | None
    """How many likeliest tokens a row tells of, if it does not say; None for no logprobs."""


def run(config: Config, task: Task) -> bool:
    """Do it; True when every row has its text. DraftbusError when the verifier is given up."""
    # Imported late: MLX and transformers take seconds, and --help should not.
    from drafter_mlx.complete import Completion, Nobody
    from drafter_mlx.daemon import Daemon
    from drafter_mlx.display import Stream
    from drafter_mlx.model import load

    model = load(config)
    out, encoder = task.out, Encoder(model.tokenizer.encode, model.vocabulary.size)
    jobs = [
        make_job(number, row, task.sampling, task.drafts, encoder, task.logprobs)
        for number, row in enumerate(task.rows)
    ]
    if out is not None:
        jobs = out.begin(jobs)
    stream = Stream(model.tokenizer.detokenizer) if task.streamed else None
    to_stdout = out is None and stream is None
    daemon = Daemon(config, model)
    failed = False
    try:
        completion = Completion(daemon, model.tokenizer.decode, task.at_once)
        for job, row in completion.run(jobs, stream or Nobody()):
            if out is not None:
                out.put(job.number, row)
            if stream is not None:
                stream.finish(row, with_table=task.table)
            if to_stdout:
                print(json.dumps(row), flush=True)
            if "error" in row and daemon.talk.failure is None:
                failed = True
                print(f"draftbus-drafter: prompt {job.number + 1}: {row['error']}", file=sys.stderr)
        if daemon.talk.failure is not None:
            raise daemon.talk.failure
    finally:
        daemon.close()
    return not failed
