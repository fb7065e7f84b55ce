"""`draftbus-verifier`: the only place that reads flags and signals."""

import logging
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

import strategies
from bus.delay import Line
from bus.errors import BadSetup
from bus.messages import Limits
from bus.sockets import VerifierSocket
from strategies.tree import MAX_TREE_NODES
from verifier_cuda.config import Config, Device, Dtype

if TYPE_CHECKING:
    from verifier_cuda.daemon import Daemon

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The CUDA side of draftbus: checks drafts and owns the text.",
)


@app.callback()
def _group() -> None:
    """Keeps `serve` a subcommand while there is only one."""


@app.command()
def serve(
    model: Annotated[str, typer.Option(help="Folder or hub id of the target.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = Config.host,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = Config.port,
    device: Annotated[Device, typer.Option(help="auto takes CUDA where it is.")] = Config.device,
    dtype: Annotated[
        Dtype, typer.Option(help="auto: bfloat16 on CUDA, else float32.")
    ] = Config.dtype,
    max_sessions: Annotated[
        int, typer.Option(min=1, max=1024, help="Cache slots.")
    ] = Config.max_sessions,
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and text.")
    ] = None,
    max_width: Annotated[
        int, typer.Option(min=1, max=64, help="Rows of a session in a pass.")
    ] = Config.max_width,
    lease: Annotated[
        float, typer.Option(min=0.5, help="Seconds of silence after which a drafter is gone.")
    ] = Config.lease_s,
    bitwise: Annotated[
        bool, typer.Option(help="Drafts must not change even the last bit of a logit.")
    ] = Config.bitwise,
    insecure: Annotated[bool, typer.Option(help="Listen beyond loopback without keys.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Run code that comes with the model.")
    ] = False,
    pass_log: Annotated[
        Path | None, typer.Option(help="Append one JSON line for each pass to this file.")
    ] = None,
    emulate_network: Annotated[
        bool, typer.Option(help="For benchmarks: hear drafters that emulate a slow network.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a target. Prints `ready tcp://HOST:PORT` when it accepts work."""
    _log_to_stderr(log_level)
    config = Config(
        model, host, port, device, dtype, max_sessions, max_model_len, max_width,
        lease_s=lease, bitwise=bitwise, insecure=insecure, trust_remote_code=trust_remote_code,
        pass_log=pass_log, emulate_network=emulate_network,
    )  # fmt: skip
    try:
        _serve(config)
    except BadSetup as error:
        print(f"draftbus-verifier: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _serve(config: Config) -> None:
    line = Line() if config.emulate_network else None
    # Bound before minutes of loading.
    socket = VerifierSocket(config.host, config.port, config.insecure, line=line)
    try:
        daemon = _assemble(config, socket)
        signal.signal(signal.SIGTERM, lambda *_: _stop(daemon, config.drain_s))
        signal.signal(signal.SIGINT, lambda *_: _stop(daemon, config.drain_s))
        print(f"ready {socket.address}", flush=True)
        daemon.run()
        structlog.get_logger().info("stopped", **daemon.totals())
    finally:
        socket.close()


def _stop(daemon: "Daemon", within_s: float) -> None:
    """The first signal drains; the next one ends the process at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    daemon.drain(within_s)


def _assemble(config: Config, socket: VerifierSocket) -> "Daemon":
    # Imported late: PyTorch takes seconds, and --help should not.
    from verifier_cuda.daemon import Daemon
    from verifier_cuda.model import load
    from verifier_cuda.passlog import PassLog
    from verifier_cuda.probe import is_bitwise, pass_costs
    from verifier_cuda.registry import Registry, Settings
    from verifier_cuda.scheduler import Scheduler

    model = load(config)
    limits = Limits(config.max_sessions, model.max_model_len, MAX_TREE_NODES,
                    round(config.lease_s * 1000))  # fmt: skip
    settings = Settings(config.model[-200:], secrets.randbits(64), model.vocabulary.digest,
                        model.vocabulary.size, model.stop_ids, limits,
                        tuple(strategies.names("acceptance")), *_kinds())  # fmt: skip
    registry = Registry(settings, strategies.make_acceptance)
    holds = is_bitwise(model)
    if config.bitwise and not holds:
        structlog.get_logger().warning(
            "on this device drafts can change the last bits of a logit, so that a near-tie may "
            "fall the other way", device=str(model.device),
        )  # fmt: skip
    structlog.get_logger().info(
        "loaded", model=config.model, device=str(model.device), dtype=str(model.network.dtype),
        max_sessions=config.max_sessions, max_model_len=model.max_model_len,
        cache_mib=round(model.cache.bytes / 2**20, 1), bitwise=holds,
    )  # fmt: skip
    scheduler = Scheduler(registry, config.max_width, costs=pass_costs(model),
                          ragged=model.ragged)  # fmt: skip
    log = PassLog(config.pass_log, scheduler.costs) if config.pass_log else None
    return Daemon(socket, registry, scheduler, model, log)


def _kinds() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The acceptance strategies that may change the text, and those that need random draws."""
    lossy, drawn = [], []
    for name in strategies.names("acceptance"):
        try:
            made = strategies.make_acceptance(name)
            lossy += [name] if made.lossy else []
            drawn += [name] if getattr(made, "draws", False) else []
        except Exception as error:  # foreign code: it may need a number, or be broken
            lossy.append(name)  # nobody knows, so nothing is promised
            structlog.get_logger().warning("a strategy fails", name=name, error=repr(error))
    return tuple(lossy), tuple(drawn)


def _log_to_stderr(level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise typer.BadParameter(f"{level!r} is none of debug, info, warning, error")
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
