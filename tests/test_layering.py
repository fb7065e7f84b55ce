"""Imports go one way, each library stays in its place, and modules stay small."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "bus": {"bus"},
    "strategies": {"bus", "strategies"},
    "drafter_mlx": {"bus", "strategies", "drafter_mlx"},
    "verifier_cuda": {"bus", "strategies", "verifier_cuda"},
    "bench": {"bus", "strategies", "drafter_mlx", "verifier_cuda", "bench"},
}
HOME = {
    "zmq": ("bus/",),
    "mlx": ("drafter_mlx/", "bench/baselines.py"),
    "mlx_lm": ("drafter_mlx/", "bench/baselines.py"),
    "starlette": ("drafter_mlx/http/",),
    "sse_starlette": ("drafter_mlx/http/",),
    "uvicorn": ("drafter_mlx/http/",),
    "prometheus_client": ("drafter_mlx/http/",),
    "torch": ("verifier_cuda/", "bench/pair/", "bench/plain.py", "bench/baselines.py"),
}
PURE = (
    "strategies/", "verifier_cuda/planner.py", "verifier_cuda/session.py",
    "verifier_cuda/registry.py", "verifier_cuda/scheduler.py", "drafter_mlx/session.py",
    "drafter_mlx/conversation.py", "drafter_mlx/stats.py", "drafter_mlx/http/text.py",
    "drafter_mlx/http/fields.py", "drafter_mlx/http/problems.py", "drafter_mlx/http/answers.py",
    "drafter_mlx/http/openapi.py",
)  # fmt: skip
IMPURE_MODULES = {"time", "random", "socket", "zmq", "torch", "mlx", "secrets", "threading", "os"}
MAX_LINES = 300


def imported(source: str) -> set[str]:
    """Top-level names of all modules that a source imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add((node.module or "").split(".")[0])
    return names


def violations(path: str, source: str) -> list[str]:
    """What a module at `path` imports against the rules."""
    package, names = path.split("/")[0], imported(source)
    found = [f"{path}: {name}" for name in names & set(MAY_IMPORT) - MAY_IMPORT[package]]
    for name, homes in HOME.items():
        if name in names and not path.startswith(homes):
            found.append(f"{path}: {name} outside {homes}")
    if path.startswith(PURE):
        found += [f"{path}: {name} in a pure module" for name in names & IMPURE_MODULES]
    return found


def modules() -> list[tuple[str, str]]:
    return [
        (path.relative_to(ROOT).as_posix(), path.read_text())
        for package in MAY_IMPORT
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def test_imports_go_one_way_and_libraries_stay_in_their_place():
    assert len(modules()) > 30
    assert [found for path, source in modules() for found in violations(path, source)] == []


def test_planted_violations_are_found():
    for path, line in (
        ("bus/codec.py", "import strategies"),
        ("strategies/tree.py", "from verifier_cuda.session import Session"),
        ("verifier_cuda/daemon.py", "from drafter_mlx import session"),
        ("drafter_mlx/session.py", "import bench.demo"),
        ("strategies/noise.py", "import torch"),
        ("drafter_mlx/daemon.py", "import zmq"),
        ("verifier_cuda/model.py", "import mlx.core as mx"),
        ("drafter_mlx/conversation.py", "def f():\n    import time"),
    ):
        source = (ROOT / path).read_text()
        assert violations(path, source) == []
        assert violations(path, f"{source}\n{line}\n") != [], (path, line)


def test_no_module_is_longer_than_a_reader_bears():
    tests = [(path.name, path.read_text()) for path in Path(__file__).parent.glob("*.py")]
    long = {path: n for path, source in modules() + tests if (n := source.count("\n")) > MAX_LINES}
    assert long == {}
