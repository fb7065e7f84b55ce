"""Figures of results: PNG files, drawn without a display."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

SIZE = (7.0, 4.2)
DPI = 110
Rows = list[dict[str, Any]]


def throughput(result: dict[str, Any], folder: Path) -> list[Path]:
    """The figures of a `throughput` result, as its JSON has it; the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for row in result["rows"] if row["temperature"] == 0 and row["sessions"] == 1]
    near = [row for row in rows if row["rtt_tv"] is not None and row["ratio_plain"]]
    drawn = [_save(folder / "ratio-by-rtt.png", lambda axes: _by_rtt(axes, near))]
    times = result["measured"]
    if times.get("tv_s") and times.get("td_s"):
        drawn.append(_save(folder / "times-by-width.png", lambda axes: _times(axes, times)))
    judged = [row for row in near if row.get("alpha_by_depth") and row["drafter"] == "model"]
    if judged:
        drawn.append(_save(folder / "alpha-by-depth.png", lambda axes: _depths(axes, judged)))
    return drawn


def sweep(rows: Rows, title: str, path: Path) -> Path:
    """Tokens a second over plain decoding, a bar for each configuration, the best on top."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = sorted(rows, key=lambda row: row["ratio_plain"])[-30:]

    def draw(axes: Axes) -> None:
        axes.barh([row["name"] for row in shown], [row["ratio_plain"] for row in shown])
        axes.axvline(1.0, color="black", linewidth=1)
        axes.set_xlabel("× plain decoding")
        axes.set_title(title)

    return _save(path, draw, (SIZE[0], 1.2 + 0.28 * len(shown)))


def _save(path: Path, draw: Any, size: tuple[float, float] = SIZE) -> Path:
    figure, axes = plt.subplots(figsize=size)
    draw(axes)
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return path


def _by_rtt(axes: Axes, rows: Rows) -> None:
    for name in dict.fromkeys((row["policy"], row["drafter"]) for row in rows):
        own = sorted((r for r in rows if (r["policy"], r["drafter"]) == name),
                     key=lambda row: row["rtt_tv"])  # fmt: skip
        middle = [row["ratio_plain"] for row in own]
        bounds = [row["ratio_plain_interval"] or [row["ratio_plain"]] * 2 for row in own]
        below = [max(0.0, m - low) for m, (low, _) in zip(middle, bounds, strict=True)]
        above = [max(0.0, high - m) for m, (_, high) in zip(middle, bounds, strict=True)]
        label = name[0] if name[1] == "model" else f"{name[0]}, {name[1]} drafter"
        style = "-o" if name[1] == "model" else ":s"
        axes.errorbar([row["rtt_tv"] for row in own], middle, yerr=[below, above], fmt=style,
                      capsize=3, label=label)  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_xlabel("round trip, in plain passes")
    axes.set_ylabel("× plain decoding (median, 95 %)")
    axes.legend(fontsize=8)


def _times(axes: Axes, times: dict[str, Any]) -> None:
    for key, label in (("tv_s", "verifier's pass, by rows"), ("td_s", "draft step, by nodes")):
        points = sorted((int(width), 1e3 * seconds) for width, seconds in times[key].items())
        axes.plot(*zip(*points, strict=True), "-o", label=label)
    axes.set_xlabel("width")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend()


def _depths(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        if row["rtt_tv"] == 0:
            alphas = [value for value in row["alpha_by_depth"] if value is not None]
            axes.plot(range(1, len(alphas) + 1), alphas, "-o", label=row["policy"])
    axes.set_xlabel("depth of a draft below the tip")
    axes.set_ylabel("chance that it is accepted, given its parent was")
    axes.set_ylim(0, 1)
    axes.legend()
