"""Where drafting in a tree pays: a map over α and RTT, as picture and as table."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import limits
from bench.oracle import Drawn
from bench.simulate import World, best_fixed, run

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
RTTS = (0.0, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0)
"""In units of t_v(1)."""
TEXTS = 4
TOKENS = 300


@dataclass(frozen=True)
class Cell:
    """One place of the map; rates in tokens per second of one text."""

    alpha: float
    rtt_tv: float
    plain: float
    fixed_k: int
    """The best draft length here."""
    fixed: float
    """`fixed` at that length: the faster of our verifier, which does not wait where that does
    not pay, and the textbook's, which waits for each draft."""
    tree: float
    gain_fixed: float
    gain_plain: float


def survey(world: World, tell: Callable[[str], None]) -> list[Cell]:
    """Simulate every cell. What the runners-up catch of the misses is as in `world`."""
    assert isinstance(world.acceptance, Drawn), "a map needs an α that can be changed"
    cells = []
    for alpha in ALPHAS:
        cells += [_cell(world, alpha, rtt) for rtt in RTTS]
        tell(f"α = {alpha:g} done")
    return cells


def _cell(world: World, alpha: float, rtt_tv: float) -> Cell:
    known = world.acceptance
    others = [(1 - alpha) * share for share in _caught(known)]
    world = replace(
        world,
        acceptance=replace(known, alpha=(alpha, *others)),
        rtt_s=rtt_tv * world.pass_s.at(1),
        drafters=TEXTS, verifiers=TEXTS, sessions=1, max_tokens=TOKENS,
    )  # fmt: skip
    plain = limits.plain(world.setting)
    found = [best_fixed(replace(world, lockstep=lockstep)) for lockstep in (False, True)]
    k, fixed = max(found, key=lambda each: each[1].session_tokens_per_s)
    tree = run(replace(world, drafting="tree")).session_tokens_per_s
    rate = fixed.session_tokens_per_s
    return Cell(alpha, rtt_tv, plain, k, rate, tree, tree / rate, tree / plain)


def _caught(known: Drawn) -> list[float]:
    """The share of the first choice's misses that each runner-up catches."""
    missed = 1 - known.alpha[0]
    return [value / missed if missed else 0.0 for value in known.alpha[1:]]


def write(cells: Sequence[Cell], picture: Path, world: World) -> Path:
    """Save the map and, beside it, the table; returns the table's path."""
    table = picture.with_suffix(".csv")
    with table.open("w", newline="") as file:
        rows = [{name: f"{value:.4g}" for name, value in asdict(cell).items()} for cell in cells]
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _draw(cells, picture, _caption(world))
    return table


def _caption(world: World) -> str:
    known, curve = world.acceptance, world.pass_s
    assert isinstance(known, Drawn)
    t_v, t_d = curve.at(1) * 1e3, world.draft_s.at(1) * 1e3
    caught = sum(_caught(known)[: world.options.branches - 1])
    return (
        f"Simulated: t_v = {t_v:g} ms at 1 row, {curve.at(8) * 1e3:g} at 8, "
        f"{curve.at(16) * 1e3:g} at 16; t_d = {t_d:g} ms for 1 node, "
        f"{world.draft_s.at(8) * 1e3:g} for 8; runners-up catch {caught:.0%} of the misses.\n"
        "Hatched: no gain. Each cell is the quotient of two rates; k is searched in each."
    )


def _draw(cells: Sequence[Cell], picture: Path, caption: str) -> None:
    import matplotlib  # late: only a map needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained")
    titles = ("tree over fixed drafts at their best length (k)", "tree over plain decoding")
    for axis, title, name in zip(axes, titles, ("gain_fixed", "gain_plain"), strict=True):
        _panel(axis, cells, name)
        axis.set_title(title)
    figure.supxlabel(caption, fontsize=8)
    figure.savefig(picture, dpi=100)
    Image.open(picture).convert("RGB").quantize(64).save(picture, optimize=True)
    pyplot.close(figure)


def _panel(axis: Any, cells: Sequence[Cell], name: str) -> None:
    from matplotlib import colors, patches

    alphas, rtts = (sorted({getattr(cell, n) for cell in cells}) for n in ("alpha", "rtt_tv"))
    gains = np.full((len(rtts), len(alphas)), np.nan)
    for cell in cells:
        x, y, gain = alphas.index(cell.alpha), rtts.index(cell.rtt_tv), getattr(cell, name)
        gains[y, x] = gain
        text = f"{gain:.2f}" + (f"\n({cell.fixed_k})" if name == "gain_fixed" else "")
        axis.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=8, zorder=3)
        if gain <= 1:
            lost = patches.Rectangle(
                (x, y), 1, 1, fill=False, hatch="///", ec="0.6", lw=0, zorder=2
            )
            axis.add_patch(lost)
    reach = 1.5 * max(1.05, np.nanmax(gains), 1 / np.nanmin(gains))  # pale, so that text is read
    norm = colors.LogNorm(1 / reach, reach)  # white is no difference
    axis.pcolormesh(gains, norm=norm, cmap="RdBu", edgecolors="white", linewidth=1)
    axis.set_xticks(np.arange(len(alphas)) + 0.5, [f"{value:g}" for value in alphas])
    axis.set_yticks(np.arange(len(rtts)) + 0.5, [f"{value:g}" for value in rtts])
    axis.set_xlabel("α: chance that the draft's first choice is right")
    axis.set_ylabel("RTT / t_v")
