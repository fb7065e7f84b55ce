"""Which targets are taken, and what is said of the others."""

import pytest
import torch
from test_target_model import SMALL, chain, rows
from transformers import AutoModelForCausalLM, MambaConfig, MistralConfig, Qwen3Config

from bench.pair import TARGET
from bus.errors import BadSetup
from bus.vocabulary import Vocabulary
from verifier_cuda import model as target_model
from verifier_cuda.config import Config
from verifier_cuda.model import TargetModel, load

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(
    ("config_type", "extra", "named"),
    [
        (MistralConfig, {"sliding_window": 16}, "sliding_attention over 16 tokens"),
        (Qwen3Config, {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8,
                       "use_sliding_window": True}, "sliding_attention"),
        (MambaConfig, {"state_size": 4}, "linear_attention"),
    ],
)  # fmt: skip
def test_targets_that_cannot_be_rolled_back_are_refused_with_the_layers_named(
    config_type, extra, named
):
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config_type(**{**SMALL, **extra})).eval()
    with pytest.raises(BadSetup, match=named):
        TargetModel(network, Vocabulary(b"", 97), 1, 256, 16)


def test_a_wrong_model_path_is_one_line_that_says_what_to_give():
    with pytest.raises(
        BadSetup, match=r"cannot load the target '/nowhere/model'.*hub id"
    ) as caught:
        load(Config("/nowhere/model"))
    assert "\n" not in str(caught.value)


def test_a_length_over_the_models_own_is_refused():
    with pytest.raises(
        BadSetup, match="--max-model-len 4096 is over the model's own limit of 2048"
    ):
        load(Config(str(TARGET), max_model_len=4096))


def test_a_length_that_no_message_can_carry_is_refused(monkeypatch):
    monkeypatch.setattr(target_model, "MAX_TOKENS", 100)
    with pytest.raises(BadSetup, match="--max-model-len 101 is over the 100 ids"):
        load(Config(str(TARGET), max_model_len=101))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_all_dtypes_decode(dtype):
    model = load(Config(str(TARGET), device="cpu", dtype=dtype, max_sessions=1, max_model_len=128))
    view = model.forward([rows(0, 0, [1, 2, 3], chain(3))])[0]
    assert all(0 <= view.choice(row) < model.vocabulary.size for row in range(3))


@needs_cuda
def test_cuda_says_what_the_cpu_says_in_float32():
    block = rows(0, 0, list(range(1, 30)), chain(29))
    cpu, cuda = (
        load(Config(str(TARGET), device=device, dtype="float32", max_sessions=1)).logits([block])
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(cpu[0], cuda[0].cpu(), atol=1e-2, rtol=0)
