"""What the command `simulate` does: compare strategies, draw a map, foretell a result."""

import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import strategies
from bench import gain, limits, replay
from bench.oracle import Drawn
from bench.outcome import limits_table, outcome_table
from bench.simulate import World, run
from bus.errors import BadSetup
from verifier_cuda.registry import MAX_PEERS

COMPARED = ("tree", "pipelined", "fixed")


def acceptance(alpha: str, spread: float, overconfident: float) -> Drawn:
    """Guesses as `--alpha` has them; BadSetup when they cannot be."""
    try:
        chances = tuple(float(part) for part in alpha.split(","))
    except ValueError:
        chances = ()
    if not chances or min(chances) < 0 or sum(chances) > 1:
        raise BadSetup(f"--alpha {alpha!r} is no list of chances such as 0.7,0.1,0.05")
    return Drawn(chances, spread, overconfident)


def compare(world: World, drafting: list[str] | None, k: int | None, console: Console) -> bool:
    """Run each strategy and show it beside the limits; True when all texts are right."""
    if world.drafters > MAX_PEERS * world.verifiers:
        raise BadSetup(f"a verifier takes {MAX_PEERS} drafters: raise --verifiers")
    setting, outcomes = world.setting, {}
    for name in drafting or COMPARED:
        strategies.load("drafting", name)
        if name == "fixed":
            length = k or limits.best(limits.synchronous, setting)[0]
            outcomes[f"fixed, k = {length}"] = run(world.with_k(length))
        else:
            outcomes[name] = run(replace(world, drafting=name))
    console.print(outcome_table(outcomes, setting), soft_wrap=True)
    console.print()
    console.print(limits_table(setting), soft_wrap=True)
    equal = all(outcome.equal for outcome in outcomes.values())
    if not equal:
        console.print("[red]a text differs from plain decoding's: this is a bug[/red]")
    return equal


def draw_map(world: World, picture: Path, console: Console) -> bool:
    """Survey the grid and save it."""
    if picture.suffix != ".png":
        raise BadSetup(f"--map takes a .png file, not {picture}")
    if not picture.absolute().parent.is_dir():
        raise BadSetup(f"cannot write {picture}: there is no such folder")
    try:
        import matplotlib
    except ImportError:
        raise BadSetup("--map needs matplotlib: pip install 'draftbus[bench]'") from None
    del matplotlib
    cells = gain.survey(world, console.print)
    table = gain.write(cells, picture, world)
    lost = sum(cell.gain_fixed <= 1 for cell in cells), sum(cell.gain_plain <= 1 for cell in cells)
    console.print(
        f"{picture} and {table}: of {len(cells)} cells, {lost[0]} without a gain over the best k "
        f"and {lost[1]} without one over plain decoding"
    )
    return True


def replay_file(path: Path, seed: int, console: Console) -> bool:
    """Show what was measured beside what is simulated for it."""
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadSetup(f"cannot read {path}: {error}") from None
    if not isinstance(result, dict):
        raise BadSetup(f"{path} is no result of `draftbus-bench throughput`")
    console.print(replay.table(*replay.replay(result, seed)), soft_wrap=True)
    return True
