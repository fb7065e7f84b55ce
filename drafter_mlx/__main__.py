"""`draftbus-drafter`: the only place that reads flags."""

import math
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer

import strategies
from bus.errors import BadSetup, DraftbusError, Unreachable
from bus.messages import Sampling
from bus.packed import MAX_TOP, Biases
from bus.sockets import check_exposure, host_of
from drafter_mlx import flags, task
from drafter_mlx.config import Config, Drafts, Serving
from drafter_mlx.request import shared_word
from drafter_mlx.task import Task
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
    repetition_penalty: Annotated[
        float,
        Flag(
            "--repetition-penalty",
            "--repeat-penalty",
            min=0.01,
            max=100.0,
            help="Divides the logits of tokens in prompt or text; 1 is none.",
        ),
    ] = 1.0,
    presence_penalty: Annotated[
        float, Flag(min=-2.0, max=2.0, help="Taken from the logits of tokens in the text.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, Flag(min=-2.0, max=2.0, help="The same, as often as the token is there.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None, Flag(metavar="ID=VALUE", help="Added to a logit; repeatable.")
    ] = None,
    logprobs: Annotated[
        int | None,
        Flag(min=0, max=MAX_TOP, help="Tell the text's logprobs, and of so many likeliest tokens."),
    ] = None,
    drafting: flags.Drafting = Drafts.drafting,
    acceptance: flags.Acceptance = Drafts.acceptance,
    num_draft_tokens: flags.NumDraftTokens = Options.num_draft_tokens,
    window: flags.Window = Options.window,
    branches: flags.Branches = Options.branches,
    step_nodes: flags.StepNodes = Options.step_nodes,
    calibration: flags.Calibration = None,
    share: Annotated[
        str | None,
        Flag(envvar="DRAFTBUS_SECRET", help="Secret by which drafters that `assist` may help."),
    ] = None,
    concurrency: Annotated[int, Flag(min=1, help="Prompts worked on at a time.")] = 1,
    stream: Annotated[bool, Flag(help="Show the texts of --prompts while they are made.")] = False,
    dtype: flags.Precision = Config.dtype,
    deadline: flags.Deadline = Config.deadline_s,
    insecure: flags.Insecure = False,
    trust_remote_code: flags.TrustRemoteCode = False,
) -> None:
    """Complete prompts through a verifier. Exit code 2: the verifier cannot be reached."""
    config = Config(
        verifier, model, dtype, insecure, trust_remote_code, deadline, calibration=calibration
    )
    try:
        sampling = msgspec.convert(
            [max_tokens, temp, top_k, top_p, min_p, seed, (), ignore_eos, repetition_penalty,
             presence_penalty, frequency_penalty, _biases(logit_bias or [])], Sampling,
            dec_hook=lambda kind, value: kind(value),
        )  # fmt: skip
        drafts = Drafts(
            drafting, acceptance, Options(num_draft_tokens, window, branches, step_nodes),
            shared_word(share) if share else 0,
        )  # fmt: skip
        check_exposure(host_of(verifier), insecure)
        strategies.load("drafting", drafting)
        target, rows = task.target(prompts, out, resume), task.source(prompt, prompts)
        if stream and concurrency > 1:
            raise BadSetup("--stream shows one text at a time: leave out --concurrency")
        alone = prompts is None
        asked = Task(rows, sampling, drafts, target, concurrency, alone or stream, alone, logprobs)
        if not task.run(config, asked):
            raise typer.Exit(1)
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
    from drafter_mlx.http import running  # takes a moment, and --help should not

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
        running.serve(config, serving, drafts)
    except DraftbusError as error:
        raise _die(error, 1) from None


def _template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetup(f"cannot read --chat-template {path}: {error}") from None


@app.command()
def assist(
    verifier: flags.Verifier,
    model: flags.Draft,
    secret: Annotated[
        str, Flag(envvar="DRAFTBUS_SECRET", help="What the other drafters gave as --share.")
    ],
    drafting: flags.Drafting = Drafts.drafting,
    num_draft_tokens: flags.NumDraftTokens = Options.num_draft_tokens,
    window: flags.Window = Options.window,
    branches: flags.Branches = Options.branches,
    step_nodes: flags.StepNodes = Options.step_nodes,
    calibration: flags.Calibration = None,
    dtype: flags.Precision = Config.dtype,
    insecure: flags.Insecure = False,
    trust_remote_code: flags.TrustRemoteCode = False,
) -> None:
    """Help other drafters with their texts, until interrupted. Waits for a missing verifier."""
    config = Config(verifier, model, dtype, insecure, trust_remote_code, math.inf, calibration)
    try:
        options = Options(num_draft_tokens, window, branches, step_nodes)
        drafts, word = Drafts(drafting, options=options), shared_word(secret)
        check_exposure(host_of(verifier), insecure)
        strategies.load("drafting", drafting)
        _assist(config, drafts, word)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    except DraftbusError as error:
        raise _die(error, 1) from None


def _assist(config: Config, drafts: Drafts, shared: int) -> None:
    from drafter_mlx.assist import Assistant
    from drafter_mlx.daemon import Daemon
    from drafter_mlx.model import load

    stopped = threading.Event()
    daemon = Daemon(config, load(config))
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        print(f"ready {config.verifier}", flush=True)
        Assistant(daemon, drafts, shared).run(stopped.is_set)
        if daemon.talk.failure is not None:
            raise daemon.talk.failure
    finally:
        daemon.close()


def _biases(flags: list[str]) -> Biases:
    try:
        pairs = (flag.partition("=") for flag in flags)
        return Biases((int(token), float(value)) for token, _, value in pairs)
    except ValueError as error:
        raise BadSetup(f"--logit-bias: {error}; write it as ID=VALUE") from None


def _die(reason: object, code: int) -> typer.Exit:
    print(f"draftbus-drafter: {reason}", file=sys.stderr)
    return typer.Exit(code)


def main() -> None:
    """The console script."""
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    app()


if __name__ == "__main__":
    main()
