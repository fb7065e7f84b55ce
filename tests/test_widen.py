"""The cost pair says what the tiny pair says, and nothing in it can be skipped as zero."""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from typer.testing import CliRunner

from bench.pair import DRAFT, TARGET, corpus, widen
from bench.pair.widen import PRESETS, Preset, Shape, Widening
from bus.errors import BadSetup

SMALL = {
    "wider in everything": ("target", Shape(384, 704, 7, 6, 3)),
    "deeper only": ("target", Shape(256, 640, 11, 4, 2)),
    "more heads and units only": ("target", Shape(256, 768, 6, 8, 4)),
    "the draft": ("draft", Shape(192, 448, 3, 6, 3)),
    "the same": ("draft", Shape(128, 320, 2, 2, 1)),
}
READERS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
TOLERANCE = 1e-4
"""Of logits up to 17 in float32. Measured: at most 3e-5, in 0.2b; 1.2e-5 in 5m."""


@pytest.fixture(scope="module")
def tiny() -> dict[str, LlamaForCausalLM]:
    return {
        name: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for name, folder in widen.SOURCES.items()
    }


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    """Three held-out prompts and three rows of random ids, `[6, 64]`."""
    encode = AutoTokenizer.from_pretrained(TARGET).encode
    real = torch.tensor([ids for _, ids in corpus.held_out_prompts(encode, 3, 64)])
    generator = torch.Generator().manual_seed(3)
    return torch.cat([real, torch.randint(0, widen.VOCAB, (3, 64), generator=generator)])


@pytest.fixture
def small_presets(monkeypatch) -> None:
    monkeypatch.setitem(PRESETS, "big", Preset("target", Shape(384, 704, 7, 6, 3)))
    monkeypatch.setitem(PRESETS, "small", Preset("draft", Shape(192, 448, 3, 6, 3)))


@torch.inference_mode()
def logits(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids).logits


def check_the_same(model: LlamaForCausalLM, source: LlamaForCausalLM, ids: torch.Tensor) -> None:
    wanted, got = logits(source, ids), logits(model, ids)
    assert not model.training
    assert (got - wanted).abs().max() <= TOLERANCE
    assert torch.equal(got.argmax(-1), wanted.argmax(-1))


def written(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("model*.safetensors"))
    return {name: weight for file in files for name, weight in load_file(file).items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", SMALL)
def test_a_widened_model_says_what_the_tiny_one_says(name, tiny, ids):
    source, shape = SMALL[name]
    model = widen.filled(Widening(shape, source), torch.float32)
    assert model.num_parameters() == widen.parameters(shape)
    check_the_same(model, tiny[source], ids)


@pytest.mark.parametrize("preset", ["5m", "0.2b"])
def test_the_presets_that_are_used_most_say_what_the_tiny_models_say(preset, tiny, ids):
    model = widen.network(preset, torch.float32)
    assert model.num_parameters() == widen.parameters(PRESETS[preset].shape)
    check_the_same(model, tiny[PRESETS[preset].source], ids)


def test_added_norm_weights_and_eps_make_up_for_the_width_exactly():
    """What the logits show only faintly: eps is small against what the tiny models hold."""
    for source, shape in SMALL.values():
        raw = json.loads((widen.SOURCES[source] / "config.json").read_text())
        widening = Widening(shape, source)
        share = raw["hidden_size"] / shape.hidden_size
        assert widening.config["rms_norm_eps"] == pytest.approx(raw["rms_norm_eps"] * share)
        stream = torch.randn(16, raw["hidden_size"]) * 1e-3  # as small as sqrt(eps)
        padded = torch.zeros(16, shape.hidden_size)
        padded[:, : raw["hidden_size"]] = stream
        weight = load_file(widen.SOURCES[source] / "model.safetensors")["model.norm.weight"].float()
        wanted = torch.rms_norm(stream, [len(weight)], weight, raw["rms_norm_eps"])
        got = torch.rms_norm(padded, [shape.hidden_size], widening.tensor("model.norm.weight"),
                             widening.config["rms_norm_eps"])  # fmt: skip
        torch.testing.assert_close(got[:, : len(weight)], wanted, rtol=1e-5, atol=1e-6)


def test_four_times_the_width_is_exact_in_bfloat16_too(tiny, ids):
    """Then the norms are halved, so that nothing is rounded when the weights are stored."""
    model = widen.filled(Widening(Shape(512, 384, 3, 4, 2), "draft"), torch.bfloat16)
    check_the_same(model.float(), tiny["draft"], ids)


def test_what_may_be_random_is_and_what_must_be_zero_is():
    widening = Widening(SMALL["wider in everything"][1], "target")
    source = load_file(TARGET / "model.safetensors")
    whole = {0: "0", 1: "1", 2: "2", 4: "3", 5: "4", 6: "5"}  # layer 3 is added
    seen = Counter()
    for name, size in widening.shapes.items():
        weight, kind = widening.tensor(name), name.split(".")[-2]
        if kind in READERS:
            seen["reads"] += 1
            assert (weight == 0).sum() <= (size.numel() >> 14), name
            assert weight[-64:].std() == pytest.approx(0.02, rel=0.05), name
            assert abs(weight[-64:].mean()) < 0.001, name
        elif weight.ndim == 1:
            assert (weight != 0).all(), name
        elif name.startswith("model.layers.3."):
            seen["added"] += 1
            assert not weight.any(), name
        else:
            seen["writes"] += 1
            kept = source[re.sub(r"\d+", lambda layer: whole[int(layer[0])], name)]
            rows, columns = kept.shape
            assert torch.equal(weight[:rows, :columns], kept.float()), name
            assert weight.count_nonzero() == kept.count_nonzero() and weight.shape > kept.shape
    assert seen == {"reads": 5 * 7, "added": 2, "writes": 2 * 6 + 1}


def test_added_layers_stand_evenly_among_the_old_ones():
    for layers in (6, 7, 9, 11, 16, 23, 36, 64):
        widening = Widening(Shape(256, 640, layers, 4, 2), "target")
        writing = [
            int(name.split(".")[2]) for name in widening.shapes
            if name.endswith("down_proj.weight") and widening._kept(name) is not None
        ]  # fmt: skip
        gaps = {after - before for before, after in pairwise(writing)}
        assert len(writing) == 6
        assert max(gaps) - min(gaps) <= 1 and abs(writing[0] - (layers - 1 - writing[-1])) <= 1


def test_no_two_tensors_share_their_random_numbers_and_a_seed_changes_them_all():
    shape = SMALL["the draft"][1]
    one, other = Widening(shape, "draft"), Widening(shape, "draft", seed=1)
    names = [name for name in one.shapes if name.endswith(("k_proj.weight", "v_proj.weight"))]
    added = [widening.tensor(name)[-1, -1].item() for widening in (one, other) for name in names]
    assert len(set(added)) == len(added) == 12


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_counted_without_making_them(preset):
    shape = PRESETS[preset].shape
    assert widen.named(preset).blank().num_parameters() == widen.parameters(shape)
    scale = {"b": 1e9, "m": 1e6}[preset[-1]]
    assert widen.parameters(shape) == pytest.approx(float(preset[:-1]) * scale, rel=0.06)
    page = (Path(widen.__file__).parent / "README.md").read_text()
    assert f"`{preset}`" in page and f"{widen.parameters(shape):,}" in page


def test_shards_change_nothing_and_the_files_are_what_is_made_in_memory(tmp_path, ids):
    shape = SMALL["wider in everything"][1]
    widening = Widening(shape, "target")
    widen.write(widening, tmp_path / "one", "bfloat16")
    widen.write(Widening(shape, "target"), tmp_path / "many", "bfloat16", shard_mb=2)
    assert [file.name for file in (tmp_path / "one").glob("model*")] == ["model.safetensors"]
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == len([*tmp_path.glob("many/*.safetensors")])
    assert index["metadata"]["total_size"] == 2 * widen.parameters(shape)
    assert max(file.stat().st_size for file in tmp_path.glob("many/*.safetensors")) < 2.4e6
    assert equal(written(tmp_path / "one"), written(tmp_path / "many"))
    backwards = {name: widening.tensor(name).bfloat16() for name in reversed(widening.shapes)}
    assert equal(written(tmp_path / "one"), backwards)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "many", dtype=torch.bfloat16)
    memory = widen.filled(widening, torch.bfloat16)
    assert equal(loaded.state_dict(), memory.state_dict())
    assert torch.equal(logits(loaded.eval(), ids), logits(memory, ids))


def test_mlx_reads_the_shards_and_says_what_torch_says(tmp_path, ids):
    mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]' on Linux")
    from mlx_lm import load

    widen.write(widen.named("5m"), tmp_path / "5m", "bfloat16", shard_mb=4)
    assert len([*tmp_path.glob("5m/*.safetensors")]) == 3
    model, tokenizer = load(str(tmp_path / "5m"))[:2]
    model.set_dtype(mx.float32)
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "5m", dtype=torch.float32).eval()
    got, wanted = np.array(model(mx.array(ids.numpy()))), logits(network, ids).numpy()
    assert np.abs(got - wanted).max() <= TOLERANCE, "measured: 1.4e-5"
    assert (got.argmax(-1) == wanted.argmax(-1)).all()
    assert tokenizer.encode("def f():") == AutoTokenizer.from_pretrained(DRAFT).encode("def f():")


def test_a_pair_is_made_once_and_says_what_it_is(tmp_path, small_presets, monkeypatch):
    target, draft = widen.pair(tmp_path / "new", "big", "small")
    for folder, source, preset in ((target, "target", "big"), (draft, "draft", "small")):
        config = json.loads((folder / "config.json").read_text())
        note = config["draftbus"]
        assert "cost model" in note["what"] and config["dtype"] == "bfloat16"
        assert (note["source"], note["preset"], note["seed"]) == (source, preset, 0)
        assert {file.name for file in folder.iterdir()} == {file.name for file in DRAFT.iterdir()}
    before = (draft / "model.safetensors").stat().st_mtime_ns
    assert widen.pair(tmp_path / "new", "big", "small") == (target, draft)
    assert (draft / "model.safetensors").stat().st_mtime_ns == before
    monkeypatch.setitem(PRESETS, "small", Preset("draft", Shape(192, 448, 4, 6, 3)))
    with pytest.raises(BadSetup, match="draft-small holds another model than preset small: remove"):
        widen.pair(tmp_path / "new", "big", "small")


@pytest.mark.parametrize("step", ["save_file", "_config_text"])
def test_an_interrupted_write_is_never_taken_for_a_model(step, tmp_path, small_presets):
    folder, real, there = tmp_path / "pair", getattr(widen, step), []

    def interrupted(*arguments: object, **options: object) -> object:
        there.append([file.name for file in folder.iterdir() if file.name[0] != "."])
        if len(there) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(widen, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            widen.pair(folder, "big", "small")
    assert there == [[], ["target-big"]], "a model appears when all of it is there"
    assert [file.name for file in folder.iterdir()] == ["target-big"], "nothing else is left"
    _, draft = widen.pair(folder, "big", "small")
    assert equal(written(draft), {name: widen.named("small").tensor(name).bfloat16()
                                  for name in widen.named("small").shapes})  # fmt: skip


def command(*arguments: object):
    """Run the command in this process; the result has exit_code and stderr."""
    app = typer.Typer()
    app.command()(widen.main)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_writes_what_its_flags_say(tmp_path, small_presets):
    done = command("--preset", "small", "--source", "draft", "--dtype", "float32", "--seed", "7",
                   "--max-shard-size", "1", tmp_path / "out")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    widening = widen.named("small", seed=7)
    wanted = {name: widening.tensor(name) for name in widening.shapes}
    assert equal(written(tmp_path / "out"), wanted)
    assert len([*tmp_path.glob("out/*.safetensors")]) > 1
    again = command("--preset", "small", tmp_path / "out")
    assert again.exit_code == 1 and "out is not empty: remove it, or choose" in again.stderr


def test_bad_input_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    done = command("--preset", "7b", tmp_path / "out")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert "no preset '7b'; take one of 0.2b (target, 192 M), 1b (target, 1,013 M)" in done.stderr
    with pytest.raises(BadSetup, match="no preset '7b'"):
        widen.network("7b")
    done = command("--preset", "5m", "--source", "target", tmp_path / "out")
    assert "num_hidden_layers is 2 and the source has 6 already: choose a bigger" in done.stderr
    with pytest.raises(BadSetup, match="has 2 heads per key-value head and the shape 4: these"):
        Widening(Shape(256, 640, 6, 8, 2), "target")
    usage = widen.shutil.disk_usage(tmp_path)._replace(free=10**7)
    monkeypatch.setattr(widen.shutil, "disk_usage", lambda folder: usage)
    done = command("--preset", "32b", tmp_path / "out")
    assert "out needs 64.5 GB and 0.0 GB are free: make room, or choose a" in done.stderr
    assert [*tmp_path.iterdir()] == []
