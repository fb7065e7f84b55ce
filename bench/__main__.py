"""`draftbus-bench`: the only place of the bench that reads flags."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bus.errors import DraftbusError

Flag = typer.Option

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure draftbus, honestly.",
)


@contextmanager
def _told() -> Iterator[None]:
    """What a user can mend is told in a line, and an interrupt ends without a word."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (DraftbusError, RuntimeError) as error:
        print(f"draftbus-bench: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def demo(
    max_tokens: Annotated[int, Flag(min=1, max=1024)] = 96,
    temp: Annotated[float, Flag("--temp", "--temperature", min=0.0)] = 0.0,
    seed: Annotated[int, Flag(min=0)] = 0,
    drafting: Annotated[str, Flag(help="Drafting strategy.")] = "tree",
    tiny: Annotated[bool, Flag("--tiny", help="The bare tiny pair; it gains little.")] = False,
) -> None:
    """Run both daemons on a pair that is made on the spot and compare with plain decoding."""
    from bench.demo import Demo, on_cost_pair, run  # late: --help should not load PyTorch
    from bench.throughput_cli import cache_folder

    with _told():
        shown = replace(
            Demo() if tiny else on_cost_pair(cache_folder()),
            max_tokens=max_tokens, temperature=temp, seed=seed, drafting=drafting,
        )  # fmt: skip
        equal = run(shown, Console(highlight=False))
    raise typer.Exit(0 if equal else 1)


@app.command()
def simulate(
    drafting: Annotated[list[str] | None, Flag(help="Strategies to compare; repeat it.")] = None,
    k: Annotated[
        int | None, Flag("--num-draft-tokens", "-k", min=1, max=64, help="Default: the best k.")
    ] = None,
    window: Annotated[int, Flag("--window", "--spec-draft-n-max", min=1, max=64)] = 16,
    branches: Annotated[int, Flag(min=1, max=16, help="Children of a node in `tree`.")] = 3,
    width: Annotated[int, Flag(min=1, max=256, help="Most rows of a text in a pass.")] = 16,
    alpha: Annotated[
        str, Flag(help="Chance of each rank to be right: first choice, runner-up, ...")
    ] = "0.7,0.1,0.05",
    spread: Annotated[float, Flag(min=0, max=1, help="How far α varies by place.")] = 0.5,
    overconfident: Annotated[float, Flag(min=0.1, help="x tells c^(1/x) of chance c.")] = 1.0,
    tv: Annotated[float, Flag(min=0.001, help="Pass, ms.")] = 30.0,
    flat: Annotated[int, Flag(min=1, help="Rows up to which a pass costs no more.")] = 8,
    tv_row: Annotated[float, Flag(min=0, help="Each row beyond, ms.")] = 1.0,
    td: Annotated[float, Flag(min=0.001, help="Draft step, ms.")] = 3.0,
    td_row: Annotated[float, Flag(min=0, help="Each node of a step beyond one, ms.")] = 0.2,
    rtt: Annotated[float, Flag(min=0, help="Round trip, ms.")] = 10.0,
    jitter: Annotated[float, Flag(min=0, help="Added to each way at random, up to, ms.")] = 0.0,
    loss: Annotated[float, Flag(min=0, max=1, help="Chance that a Draft is lost.")] = 0.0,
    loss_rest: Annotated[float, Flag(min=0, max=0.9, help="... any other message.")] = 0.0,
    drafters: Annotated[int, Flag(min=1)] = 1,
    verifiers: Annotated[int, Flag(min=1)] = 1,
    sessions: Annotated[int, Flag(min=1, help="Texts of each drafter at a time.")] = 1,
    prompt_tokens: Annotated[int, Flag(min=1)] = 16,
    max_tokens: Annotated[int, Flag(min=1)] = 512,
    seed: Annotated[int, Flag(min=0)] = 0,
    count_bytes: Annotated[bool, Flag("--bytes", help="Count payload bytes; slower.")] = False,
    map_file: Annotated[
        Path | None, Flag("--map", help="Draw the gain over α and RTT: FILE.png, and FILE.csv.")
    ] = None,
    from_file: Annotated[
        Path | None, Flag("--from", help="Foretell the rows of a measured RESULT.json.")
    ] = None,
) -> None:
    """Run the real halves and strategies on a virtual clock, beside the limits of speed."""
    from bench import simulate_cli
    from bench.limits import Curve
    from bench.simulate import World
    from strategies.drafting import Options

    with _told():
        world = World(
            simulate_cli.acceptance(alpha, spread, overconfident),
            Curve.flat(tv / 1e3, flat, tv_row / 1e3), Curve.flat(td / 1e3, 1, td_row / 1e3),
            tv / 1e3, 0.0, rtt / 1e3, jitter / 1e3, loss, loss_rest, drafters, verifiers,
            sessions, prompt_tokens, max_tokens, "tree",
            Options(k or 4, max(window, k or 1), branches), width, count_bytes, seed,
        )  # fmt: skip
        console = Console(highlight=False)
        if from_file is not None:
            equal = simulate_cli.replay_file(from_file, seed, console)
        elif map_file is not None:
            equal = simulate_cli.draw_map(world, map_file, console)
        else:
            equal = simulate_cli.compare(world, drafting, k, console)
    raise typer.Exit(0 if equal else 1)


@app.command()
def throughput(
    pair: Annotated[str, Flag(help="tiny, or a cost pair TARGET/DRAFT; it is made.")] = "0.2b/5m",
    target: Annotated[str | None, Flag(help="Folder or hub id, instead of the pair's.")] = None,
    draft: Annotated[str | None, Flag(help="Folder or hub id, instead of the pair's.")] = None,
    dtype: Annotated[str, Flag(help="Of the target: auto, float32, bfloat16.")] = "bfloat16",
    prompts: Annotated[
        list[Path] | None,
        Flag(help="JSON lines (.gz too) with prompt, question, turns or prompt_ids; repeat it."),
    ] = None,
    prompt_tokens: Annotated[int, Flag(min=2, help="Prompts are cut to this.")] = 96,
    num_prompts: Annotated[int, Flag(min=1, help="To report on, for each seed.")] = 12,
    max_tokens: Annotated[int, Flag(min=8)] = 128,
    seeds: Annotated[int, Flag(min=1, help="Each has prompts of its own.")] = 2,
    split_seed: Annotated[int, Flag(min=0, help="Draws the half that is tuned on.")] = 0,
    rtts: Annotated[str, Flag(help="Emulated round trips, in plain passes.")] = "0,0.2,1,2,5",
    temperatures: Annotated[str, Flag(help="0 is always measured for plain decoding.")] = "0,0.8",
    sessions: Annotated[str, Flag(help="Texts at once.")] = "1,4,8,16",
    only: Annotated[str | None, Flag(help="Policies to compare, with commas.")] = None,
    quick: Annotated[
        bool, Flag(help="Four prompts of 64 tokens, one seed, RTT 0 and 1, short searches.")
    ] = False,
    tuned: Annotated[
        Path | None, Flag(help="A RESULT.json whose settings are taken instead of searching.")
    ] = None,
    json: Annotated[Path | None, Flag(help="Where the result goes, while it grows.")] = None,
    plots: Annotated[Path | None, Flag(help="Folder for the figures.")] = None,
) -> None:
    """Compare every policy with plain decoding, in one interleaved run on pinned cores."""
    from bench import throughput_cli as cli
    from bench.cells import NAMES, Settings

    with _told():
        where = cli.models(pair, target, draft)
        settings = Settings(
            *where, dtype, tuple(prompts or ()), prompt_tokens, num_prompts, max_tokens, seeds,
            split_seed, cli.numbers("--rtts", rtts), cli.numbers("--temperatures", temperatures),
            cli.counts("--sessions", sessions), tuple(only.split(",")) if only else NAMES, quick,
            tuned,
        )  # fmt: skip
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
        whole = cli.run(cli.fitted(settings), cli.Output(json, plots), console)
    raise typer.Exit(0 if whole else 1)


@app.command()
def sweep(
    out: Annotated[Path, Flag(help="Folder for runs.jsonl and passes.jsonl; they are added to.")],
    drafting: Annotated[
        str, Flag(help="With commas; synchronous, too; A+B is A with a second drafter by B.")
    ] = "fixed,pipelined,tree",
    acceptance: Annotated[str, Flag(help="With commas.")] = "exact",
    lockstep: Annotated[
        bool, Flag(help="The verifier waits for a draft before each pass.")
    ] = False,
    num_draft_tokens: Annotated[str, Flag(help="Draft lengths.")] = "2,4,8",
    window: Annotated[str, Flag(help="How far to draft ahead.")] = "16",
    branches: Annotated[
        str, Flag("--branches", "--num-candidates", help="Candidates at each position.")
    ] = "2,3",
    step_nodes: Annotated[str, Flag(help="Nodes of a draft step.")] = "4",
    temperatures: Annotated[str, Flag()] = "0",
    rtts: Annotated[str, Flag(help="Emulated round trips, in plain passes.")] = "0",
    pair: Annotated[
        list[str] | None, Flag(help="tiny, or a cost pair TARGET/DRAFT; repeat it.")
    ] = None,
    prompts: Annotated[list[Path] | None, Flag(help="As for throughput; repeat it.")] = None,
    num_samples: Annotated[int, Flag(min=1, help="Prompts.")] = 4,
    max_tokens: Annotated[int, Flag(min=8)] = 128,
    prompt_tokens: Annotated[int, Flag(min=2)] = 96,
    dtype: Annotated[str, Flag(help="Of the target.")] = "bfloat16",
    seed: Annotated[int, Flag(min=0)] = 0,
) -> None:
    """Measure a grid of strategies and settings, and log every run and every pass."""
    from bench import sweep_cli as cli
    from bench.sweep import Sweep

    counts = {"num_draft_tokens": num_draft_tokens, "window": window, "branches": branches,
              "step_nodes": step_nodes}  # fmt: skip
    with _told():
        grid = cli.grid(drafting, counts, temperatures, rtts, acceptance, lockstep)
        asked = Sweep(grid, cli.pairs(pair or ["0.2b/5m"]), tuple(prompts or ()), num_samples,
                      max_tokens, prompt_tokens, dtype, seed)  # fmt: skip
        equal = cli.run(asked, out, Console(highlight=False))
    raise typer.Exit(0 if equal else 1)


@app.command()
def report(
    logs: Annotated[list[Path], typer.Argument(help="Folders that `sweep` wrote.")],
    plots: Annotated[Path | None, Flag(help="Folder for the figures.")] = None,
) -> None:
    """Turn the logs of sweeps into a table, the best configuration of each pair, and plots."""
    from bench import sweep_cli

    with _told():
        sweep_cli.show(logs, plots, Console(highlight=False))


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
