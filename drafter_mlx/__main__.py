"""`draftbus-drafter`: the only place that reads flags."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer

import strategies
from bus.errors import BadSetup, DraftbusError, Unreachable
from bus.messages import Sampling
from bus.sockets import check_exposure, host_of
from drafter_mlx import flags
from drafter_mlx.config import Config, Drafts, Serving
from drafter_mlx.rows import Encoder, OutFile, Row, make_job, read_rows
from strategies.drafting import Options

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The MLX side of draftbus: guesses ahead and shows the verified text.",
)

Flag = flags.Flag


@app.command()
def complete(
    verifier: flags.Verifier,
    model: flags.Draft,
    prompt: Annotated[str | None, Flag(help="One prompt; its text is streamed.")] = None,
    prompts: Annotated[
        Path | None, Flag(help="JSON lines with prompt or prompt_ids, and any sampling field.")
    ] = None,
    out: Annotated[Path | None, Flag(help="Where the rows go; stdout if not given.")] = None,
    resume: Annotated[
        bool, Flag(help="Keep finished rows of --out and go on with the rest.")
    ] = False,
    max_tokens: Annotated[int, Flag(min=1)] = 128,
    temp: Annotated[
        float, Flag("--temp", "--temperature", min=0.0, help="0 takes the likeliest token.")
    ] = 0.0,
    top_p: Annotated[float, Flag(min=0.0, max=1.0)] = 1.0,
    top_k: Annotated[int, Flag(min=0, help="0 keeps all tokens.")] = 0,
    min_p: Annotated[float, Flag(min=0.0, max=1.0)] = 0.0,
    seed: Annotated[int, Flag(min=0, help="Same seed, same text.")] = 0,
    ignore_eos: Annotated[bool, Flag(help="Go on after the model's own end.")] = False,
    drafting: flags.Drafting = Drafts.drafting,
    acceptance: flags.Acceptance = Drafts.acceptance,
    num_draft_tokens: flags.NumDraftTokens = Options.num_draft_tokens,
    window: flags.Window = Options.window,
    branches: flags.Branches = Options.branches,
    step_nodes: flags.StepNodes = Options.step_nodes,
    calibration: flags.Calibration = None,
    concurrency: Annotated[int, Flag(min=1, help="Prompts worked on at a time.")] = 1,
    stream: Annotated[bool, Flag(help="Show the texts of --prompts while they are made.")] = False,
    dtype: flags.Precision = Config.dtype,
    deadline: flags.Deadline = Config.deadline_s,
    insecure: Annotated[
        bool, Flag(help="Talk to a verifier beyond loopback without keys.")
    ] = False,
    trust_remote_code: flags.TrustRemoteCode = False,
) -> None:
    """Complete prompts through a verifier. Exit code 2: the verifier cannot be reached."""
    config = Config(
        verifier, model, dtype, insecure, trust_remote_code, deadline, calibration=calibration
    )
    try:
        sampling = msgspec.convert(
            [max_tokens, temp, top_k, top_p, min_p, seed, (), ignore_eos], Sampling,
            dec_hook=lambda kind, value: kind(value),
        )  # fmt: skip
        drafts = Drafts(
            drafting, acceptance, Options(num_draft_tokens, window, branches, step_nodes)
        )
        check_exposure(host_of(verifier), insecure)
        strategies.load("drafting", drafting)
        target, rows = _target(prompts, out, resume), _source(prompt, prompts)
        if stream and concurrency > 1:
            raise BadSetup("--stream shows one text at a time: leave out --concurrency")
        alone = prompts is None
        task = _Task(rows, sampling, drafts, target, concurrency, alone or stream, alone)
        _complete(config, task)
    except KeyboardInterrupt:
        raise _die("interrupted; the rows written so far are kept", 130) from None
    except msgspec.ValidationError as error:
        raise _die(BadSetup(f"a sampling flag is out of range: {error}"), 1) from None
    except Unreachable as error:
        raise _die(error, 2) from None
    except DraftbusError as error:
        raise _die(error, 1) from None


@app.command()
def serve(
    verifier: flags.Verifier,
    model: flags.Draft,
    host: Annotated[str, Flag(help="Address to listen on.")] = Serving.host,
    port: Annotated[int, Flag(min=0, max=65535, help="0 picks a free one.")] = Serving.port,
    api_key: Annotated[
        str | None, Flag(envvar="DRAFTBUS_API_KEY", help="What clients have to send.")
    ] = None,
    served_model_name: Annotated[
        str | None, Flag(help="Name in requests and answers; the target's own if not given.")
    ] = None,
    chat_template: Annotated[
        Path | None, Flag(help="Jinja file to use instead of the model's own template.")
    ] = None,
    max_concurrent: Annotated[
        int, Flag(min=1, max=1024, help="Texts made at a time.")
    ] = Serving.max_concurrent,
    max_queue: Annotated[
        int, Flag(min=0, help="Texts that may wait; more are refused (429).")
    ] = Serving.max_queue,
    drafting: flags.Drafting = Drafts.drafting,
    acceptance: flags.Acceptance = Drafts.acceptance,
    num_draft_tokens: flags.NumDraftTokens = Options.num_draft_tokens,
    window: flags.Window = Options.window,
    branches: flags.Branches = Options.branches,
    step_nodes: flags.StepNodes = Options.step_nodes,
    calibration: flags.Calibration = None,
    dtype: flags.Precision = Config.dtype,
    deadline: flags.Deadline = Config.deadline_s,
    insecure: Annotated[
        bool, Flag(help="Talk to a verifier, or listen without a key, beyond loopback.")
    ] = False,
    trust_remote_code: flags.TrustRemoteCode = False,
) -> None:
    """Serve OpenAI's API. Prints `listening URL`, then `ready URL` when it can make texts."""
    from drafter_mlx.http.running import (
        serve as serve_http,
    )  # takes a moment, and --help should not

    config = Config(
        verifier, model, dtype, insecure, trust_remote_code, deadline, calibration=calibration
    )
    drafts = Drafts(drafting, acceptance, Options(num_draft_tokens, window, branches, step_nodes))
    try:
        check_exposure(host_of(verifier), insecure)
        strategies.load("drafting", drafting)
        template = None if chat_template is None else _template(chat_template)
        serving = Serving(
            host, port, api_key, served_model_name, template, max_concurrent, max_queue
        )
        serve_http(config, serving, drafts)
    except DraftbusError as error:
        raise _die(error, 1) from None


def _template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetup(f"cannot read --chat-template {path}: {error}") from None


def _source(prompt: str | None, prompts: Path | None) -> list[Row]:
    if prompts is None and prompt is not None:
        return [{"prompt": prompt}]
    if prompts is None or prompt is not None:
        raise BadSetup("give either --prompt TEXT or --prompts FILE.jsonl")
    return read_rows(prompts)


def _target(prompts: Path | None, out: Path | None, resume: bool) -> OutFile | None:
    if out is not None and prompts is not None and out.resolve() == prompts.resolve():
        raise BadSetup("--out would replace --prompts: choose another file")
    if resume and out is None:
        raise BadSetup("--resume needs the --out file of the earlier run")
    return OutFile(out, resume) if out is not None else None


@dataclass(frozen=True)
class _Task:
    """What one call of `complete` was asked to do."""

    rows: list[Row]
    sampling: Sampling
    drafts: Drafts
    out: OutFile | None
    at_once: int
    streamed: bool
    table: bool
    """Show statistics under the text."""


def _complete(config: Config, task: _Task) -> None:
    # Imported late: MLX and transformers take seconds, and --help should not.
    from drafter_mlx.complete import Completion, Nobody
    from drafter_mlx.daemon import Daemon
    from drafter_mlx.display import Stream
    from drafter_mlx.model import load

    model = load(config)
    out, encoder = task.out, Encoder(model.tokenizer.encode, model.vocabulary.size)
    jobs = [
        make_job(number, row, task.sampling, task.drafts, encoder)
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
    if failed:
        raise typer.Exit(1)


def _die(reason: object, code: int) -> typer.Exit:
    print(f"draftbus-drafter: {reason}", file=sys.stderr)
    return typer.Exit(code)


def main() -> None:
    """The console script."""
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    app()


if __name__ == "__main__":
    main()
