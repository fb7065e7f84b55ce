"""The cost pair: `python -m bench.pair.widen --preset 0.2b OUT`.

A tiny model, widened and deepened until it costs what a big one costs, still
says what it said: its numbers stand in the leading corner of every bigger
tensor, and nothing that was added is ever written to the residual stream.

- The residual stream is padded with coordinates that stay zero: the embedding
  gives them nothing, and no layer writes to them. The mean square over D
  coordinates is then d/D of the one over d, so RMSNorm divides by a number that
  is sqrt(d/D) too small. Its weights and its eps are scaled to make up for that.
- Added heads, units and layers read and compute, with random weights, and what
  they would write is multiplied by zero: their columns of `o_proj` and
  `down_proj`, and for added coordinates the rows.

Every tensor is drawn from a seed of its own, so the result depends neither on
the order nor on the shards, and a model of any size is made in little memory.
"""

import hashlib
import json
import re
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from bench.pair import DRAFT, TARGET
from bus.errors import BadSetup

SOURCES = {"target": TARGET, "draft": DRAFT}
VOCAB = 3072
HEAD_DIM = 64
STD = 0.02
MB = 10**6
SHARD_MB = 2000
WRITERS = ("embed_tokens.weight", "o_proj.weight", "down_proj.weight")
"""The tensors that write to the residual stream: what is added to them is zero."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama, named as in its config; heads have HEAD_DIM coordinates."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int

    @property
    def group(self) -> float:
        """Query heads per key-value head."""
        return self.num_attention_heads / self.num_key_value_heads


@dataclass(frozen=True)
class Preset:
    """A shape, and which tiny model is widened to it."""

    source: str
    shape: Shape


PRESETS = {
    "0.2b": Preset("target", Shape(1024, 2816, 16, 16, 8)),
    "1b": Preset("target", Shape(2048, 8192, 16, 32, 16)),
    "8b": Preset("target", Shape(4096, 14336, 36, 64, 32)),
    "32b": Preset("target", Shape(5120, 27648, 64, 80, 40)),
    "5m": Preset("draft", Shape(512, 640, 2, 8, 4)),
    "15m": Preset("draft", Shape(512, 1664, 4, 8, 4)),
    "0.6b": Preset("draft", Shape(1024, 4864, 28, 32, 16)),
}


def parameters(shape: Shape) -> int:
    """How many weights a Llama of `shape` has, the tied embedding counted once."""
    heads = shape.num_attention_heads + shape.num_key_value_heads
    attention = 2 * heads * HEAD_DIM * shape.hidden_size
    mlp = 3 * shape.intermediate_size * shape.hidden_size
    layer = attention + mlp + 2 * shape.hidden_size
    return (VOCAB + 1) * shape.hidden_size + shape.num_hidden_layers * layer


def listing() -> str:
    """All presets in one line, each with its source and its parameters in millions."""
    return ", ".join(
        f"{name} ({preset.source}, {parameters(preset.shape) / 1e6:,.0f} M)"
        for name, preset in PRESETS.items()
    )


class Widening:
    """A tiny model in the corner of a bigger one; its tensors are made one at a time.

    Raises BadSetup when `source` does not fit into `shape`.
    """

    def __init__(self, shape: Shape, source: str, seed: int = 0, name: str = "custom") -> None:
        self.folder = SOURCES[source]
        raw = json.loads((self.folder / "config.json").read_text())
        inner = Shape(**{field: raw[field] for field in asdict(shape)})
        _check_fit(inner, shape)
        self._seed = seed
        self._source = load_file(self.folder / "model.safetensors")
        self._shrink = inner.hidden_size / shape.hidden_size
        old, new = inner.num_hidden_layers, shape.num_hidden_layers
        self._origin = {(2 * layer + 1) * new // (2 * old): layer for layer in range(old)}
        note = {"what": "cost model: says what its source says, costs what its size costs",
                "source": source, "preset": name, "seed": seed}  # fmt: skip
        self.config: dict[str, Any] = {
            **raw, **asdict(shape), "rms_norm_eps": raw["rms_norm_eps"] * self._shrink,
            "draftbus": note,
        }  # fmt: skip
        self.shapes = {key: weight.shape for key, weight in self.blank().named_parameters()}
        """The shape of every tensor by its name, in the model's order."""

    def blank(self) -> LlamaForCausalLM:
        """The widened model without any weights, on the meta device."""
        with torch.device("meta"):
            return LlamaForCausalLM(LlamaConfig.from_dict(self.config))

    def tensor(self, name: str, device: str | torch.device = "cpu") -> torch.Tensor:
        """One tensor in float32. What is random in it differs between kinds of device."""
        new = torch.empty(self.shapes[name], device=device)
        if new.ndim == 1:
            new.fill_(1.0)
        elif name.endswith(WRITERS):
            new.zero_()
        else:
            digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
            generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:8]))
            new.normal_(0.0, STD, generator=generator)
        kept = self._kept(name)
        if kept is not None:
            scale = self._shrink**0.5 if kept.ndim == 1 else 1.0
            new[tuple(slice(size) for size in kept.shape)] = kept.to(device, torch.float32) * scale
        return new

    def _kept(self, name: str) -> torch.Tensor | None:
        """What the source has for the corner of `name`; None in an added layer."""
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        if match is None:
            return self._source[name]
        layer = self._origin.get(int(match[1]))
        return None if layer is None else self._source[f"model.layers.{layer}.{match[2]}"]


def named(preset: str, seed: int = 0, source: str | None = None) -> Widening:
    """The widening that a preset names, from its own source unless another is given."""
    if preset not in PRESETS:
        raise BadSetup(f"there is no preset {preset!r}; take one of {listing()}")
    found = PRESETS[preset]
    return Widening(found.shape, source or found.source, seed, preset)


def filled(
    widening: Widening, dtype: torch.dtype, device: str | torch.device = "cpu"
) -> LlamaForCausalLM:
    """The widened model in memory, ready to run, without touching the disk."""
    model = widening.blank().to(dtype).to_empty(device=device)
    # Neither the tie nor the rotary angles outlive the meta device.
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(device)
    for name, weight in model.requires_grad_(False).named_parameters():
        weight.copy_(widening.tensor(name, device))
    return model.eval()


def network(
    preset: str, dtype: torch.dtype = torch.bfloat16, device: str | torch.device = "cpu"
) -> LlamaForCausalLM:
    """The model that a preset names, with seed 0, made where it will run."""
    return filled(named(preset), dtype, device)


def write(widening: Widening, folder: Path, dtype: str, shard_mb: int = SHARD_MB) -> None:
    """Write model and tokenizer to `folder`, which appears whole or not at all.

    No more is in memory than two shards of `shard_mb` (10⁶ bytes) and one tensor in
    float32. A tensor that is bigger than a shard gets a file of its own. A process
    that is killed leaves a hidden folder beside, and no model. Raises BadSetup when
    something is in the way or the disk is too small.
    """
    width = getattr(torch, dtype).itemsize
    sizes = {name: shape.numel() * width for name, shape in widening.shapes.items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadSetup(f"{folder} is not empty: remove it, or choose another folder")
    free = shutil.disk_usage(folder.parent).free
    if free < 1.02 * sum(sizes.values()):
        raise BadSetup(f"{folder} needs {sum(sizes.values()) / 1e9:.1f} GB and {free / 1e9:.1f} "
                       "GB are free: make room, or choose a smaller preset")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        whole = Path(scratch) / folder.name
        whole.mkdir()
        _write_shards(widening, whole, dtype, _shards(sizes, shard_mb * MB))
        for file in widening.folder.glob("*.json"):
            shutil.copyfile(file, whole / file.name)
        (whole / "config.json").write_text(_config_text(widening, dtype))
        whole.rename(folder)


def pair(folder: Path, target: str = "0.2b", draft: str = "5m") -> tuple[Path, Path]:
    """Target and draft in bfloat16 below `folder`; written unless they are there already.

    Returns their two folders. Raises BadSetup when one of them holds another model.
    """
    paths = []
    for role, preset in (("target", target), ("draft", draft)):
        widening, path = named(preset, source=role), folder / f"{role}-{preset}"
        config = path / "config.json"
        if not config.exists():
            write(widening, path, "bfloat16")
        elif config.read_text() != _config_text(widening, "bfloat16"):
            raise BadSetup(f"{path} holds another model than preset {preset}: remove it")
        paths.append(path)
    return paths[0], paths[1]


def _check_fit(inner: Shape, outer: Shape) -> None:
    """BadSetup unless the source fits, and its heads keep their key-value heads."""
    for field, size in asdict(inner).items():
        if asdict(outer)[field] < size:
            raise BadSetup(f"{field} is {asdict(outer)[field]} and the source has {size} already: "
                           "choose a bigger preset, or another --source")  # fmt: skip
    if inner.group != outer.group:
        raise BadSetup(
            f"the source has {inner.group:g} heads per key-value head and the shape "
            f"{outer.group:g}: these must be equal, or its heads would read other keys"
        )


def _config_text(widening: Widening, dtype: str) -> str:
    return json.dumps({**widening.config, "dtype": dtype}, indent=2, sort_keys=True) + "\n"


def _shards(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Names in order, in groups of at most `limit` bytes."""
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not groups or size > room:
            groups.append([])
            room = limit
        groups[-1].append(name)
        room -= size
    return groups


def _write_shards(widening: Widening, folder: Path, dtype: str, groups: list[list[str]]) -> None:
    """One file per group, and the index where there are several."""
    place: dict[str, str] = {}
    total = 0
    for number, names in enumerate(groups, 1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        file = file if len(groups) > 1 else "model.safetensors"
        shard = {name: widening.tensor(name).to(getattr(torch, dtype)) for name in names}
        save_file(shard, folder / file, metadata={"format": "pt"})
        place |= dict.fromkeys(names, file)
        total += sum(weight.nbytes for weight in shard.values())
    if len(groups) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": place}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def main(
    out: Annotated[Path, typer.Argument(help="Folder that gets the model.")],
    preset: Annotated[str, typer.Option(help=f"One of {listing()}.")],
    source: Annotated[
        Literal["target", "draft"] | None, typer.Option(help="Tiny model; the preset implies it.")
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Of the weights in the files.")
    ] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 0,
    max_shard_size: Annotated[int, typer.Option(min=1, help="MB per file.")] = SHARD_MB,
) -> None:
    """Widen a tiny model to the size of a preset; it still says the same. Write it to OUT."""
    try:
        write(named(preset, seed, source), out, dtype, max_shard_size)
    except (BadSetup, OSError) as error:
        print(f"widen: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
