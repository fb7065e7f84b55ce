"""`draftbus-bench`: the only place of the bench that reads flags."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from bus.errors import DraftbusError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure draftbus, honestly.",
)


@app.callback()
def _group() -> None:
    """Keeps `demo` a subcommand while there is only one."""


@app.command()
def demo(
    max_tokens: Annotated[int, typer.Option(min=1, max=1024)] = 96,
    temp: Annotated[float, typer.Option("--temp", "--temperature", min=0.0)] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    drafting: Annotated[str, typer.Option(help="Drafting strategy.")] = "tree",
) -> None:
    """Run both daemons on the embedded tiny pair and compare with plain decoding."""
    from bench.demo import Demo, run  # late: --help should not load PyTorch

    try:
        shown = Demo(max_tokens=max_tokens, temperature=temp, seed=seed, drafting=drafting)
        equal = run(shown, Console(highlight=False))
    except (DraftbusError, RuntimeError) as error:
        print(f"draftbus-bench: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    raise typer.Exit(0 if equal else 1)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
