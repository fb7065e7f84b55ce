"""What a result says about the machine and the models it was measured with."""

import json
import os
import platform
import struct
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

from bench.cells import IMPOSTORS, Settings
from bench.crew import Crew
from bench.pair import DRAFT, TARGET

MLX_CPU_LIMIT = 10**9
"""Parameters of a target that mlx-lm is not tried with on a CPU."""
LIBRARIES = ("torch", "transformers", "mlx", "mlx-lm", "pyzmq", "numpy")


def hardware(crew: Crew) -> dict[str, Any]:
    """The machine, its libraries, and which process computes where."""
    drafter = next((crew.about[name] for name in ("model", *IMPOSTORS) if name in crew.about), {})
    pages = getattr(os, "sysconf", lambda _: 0)("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "memory_gib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**30, 1) if pages else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "verifier device": crew.about.get("engine", {}).get("device"),
        "drafter BLAS": drafter.get("blas"),
        "cores": os.cpu_count(),
        "verifier cores": list(crew.cores.verifier) if crew.cores.verifier else "not pinned",
        "drafter cores": list(crew.cores.drafter) if crew.cores.drafter else "not pinned",
    }


def models(settings: Settings, crew: Crew) -> dict[str, Any]:
    """Names without the machine's folders, sizes and dtypes."""
    target, draft = Path(settings.target), Path(settings.draft)
    return {
        "target": _name(target, settings.target),
        "draft": _name(draft, settings.draft),
        "target_parameters": parameters(target),
        "draft_parameters": parameters(draft),
        "target_dtype": crew.about.get("engine", {}).get("dtype", settings.dtype),
        "draft_dtype": crew.about.get("model", {}).get("dtype"),
        "cost_pair": _note(target),
        "baselines": {
            name: about
            for name, about in crew.about.items()
            if name not in ("model", *IMPOSTORS)
        },
    }  # fmt: skip


def parameters(folder: Path) -> int | None:
    """Weights in a folder's safetensors files, by their headers; None for anything else."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")) if folder.is_dir() else ():
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        total += sum(prod(part["shape"]) for name, part in header.items() if name[0] != "_")
    return total or None


def mlx_is_hopeless(target: Path) -> bool:
    """True where MLX would have to run a big target on a CPU."""
    return platform.system() != "Darwin" and (parameters(target) or MLX_CPU_LIMIT) >= MLX_CPU_LIMIT


def _name(folder: Path, given: str) -> str:
    if folder in (TARGET, DRAFT):
        return f"tiny {folder.name}"
    return folder.name if folder.exists() else given


def _note(folder: Path) -> Any:
    """What `bench.pair.widen` wrote about a model that says what a tiny one says."""
    try:
        return json.loads((folder / "config.json").read_text()).get("draftbus")
    except (OSError, ValueError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
