"""The target: any `AutoModelForCausalLM`, run on trees of rows with fixed cache slots."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bus.errors import BadSetup
from bus.messages import MAX_TOKENS
from bus.vocabulary import Vocabulary
from verifier_cuda import attention, sampling
from verifier_cuda.cache import Places, SlotCache, SlotLayer
from verifier_cuda.config import Config
from verifier_cuda.layout import BLOCK
from verifier_cuda.linear import can_pack, pack
from verifier_cuda.scheduler import PREFILL_CHUNK, Block, Keep, chain

LENGTH_STEP = BLOCK
"""Attention looks at a multiple of this many places, so that few shapes occur."""
MIN_WIDTH = 4
"""Rows of the smallest pass: fewer save no time, and one alone is rounded differently."""


@dataclass(frozen=True)
class View:
    """What the target said about the rows of one block."""

    choices: Sequence[int]

    def choice(self, row: int) -> int:
        return self.choices[row]


class TargetModel:
    """A target with its cache. `forward` and `keep` are all that a pass needs."""

    def __init__(
        self,
        network: Any,
        vocabulary: Vocabulary,
        sessions: int,
        max_model_len: int,
        width: int,
        bitwise: bool = True,
    ) -> None:
        self.network = network
        self.vocabulary = vocabulary
        self.max_model_len = max_model_len
        text_config = network.config.get_text_config()
        # Branches lie in the block of their position; one place more is for padding rows.
        places = _up_to(max_model_len, BLOCK) + BLOCK
        self._scratch = places - 1
        self.max_width = width
        self._bitwise = bitwise
        self.cache = SlotCache(text_config.num_hidden_layers, sessions, places)
        self._check_layers()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.network.device
        return device

    @property
    def stop_ids(self) -> frozenset[int]:
        """The model's own end ids."""
        generation = getattr(self.network, "generation_config", None)
        ends = getattr(generation, "eos_token_id", None)
        if ends is None:
            ends = self.network.config.get_text_config().eos_token_id
        return frozenset(ends if isinstance(ends, list | tuple) else [] if ends is None else [ends])

    @torch.inference_mode()
    def forward(self, blocks: Sequence[Block]) -> list[View]:
        """Run one pass over all blocks; what the target says about the rows of each."""
        logits = self.logits(blocks)
        chosen: list[torch.Tensor] = []
        for number, block in enumerate(blocks):
            if block.sampling is not None:
                rows = logits[number, : len(block.tokens)]
                after = block.start + ancestry(block.parents).sum(1)
                chosen.append(sampling.choose(rows, block.sampling, after.tolist()))
        if not chosen and self.device.type == "cuda":
            torch.cuda.synchronize()  # so that the time of a prompt is not charged to a later pass
        flat = iter(torch.cat(chosen).tolist() if chosen else [])  # the pass's one host sync
        return [
            View([next(flat) for _ in block.tokens] if block.sampling is not None else [])
            for block in blocks
        ]

    @torch.inference_mode()
    def logits(self, blocks: Sequence[Block]) -> torch.Tensor:
        """Logits of one pass, `[blocks, width, vocab]`; rows beyond a block's own mean nothing.

        Each row sees the cached prefix and its ancestors. Keys and values are
        written to `block.places`. When no block wants logits, only those of the
        last row are computed.
        """
        width = self._bucket(max(len(block.tokens) for block in blocks))
        reach = max(max(block.places) + 1 for block in blocks)
        length = min(_up_to(reach, LENGTH_STEP), self._scratch + 1)
        shape = (len(blocks), width)
        ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        index = np.full(shape, self._scratch, np.int64)
        visible = np.zeros((*shape, length), bool)
        visible[:, :, 0] = True  # a padding row has to see something
        for number, block in enumerate(blocks):
            count, tree = len(block.tokens), ancestry(block.parents)
            ids[number, :count] = block.tokens
            positions[number, :count] = block.start + tree.sum(1) - 1
            index[number, :count] = block.places
            visible[number, :count, : block.start] = True
            visible[number, :count, block.places] = tree.T  # rows come last in this view
        numbers = [block.slot for block in blocks]
        slots = torch.tensor(numbers, device=self.device)
        self.cache.pass_places = Places(numbers, slots, self._to_device(index), length)
        wanted = any(block.sampling for block in blocks)
        logits: torch.Tensor = self.network(
            input_ids=self._to_device(ids),
            position_ids=self._to_device(positions),
            attention_mask=self._mask(visible),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=0 if wanted else 1,
        ).logits
        return logits[..., : self.vocabulary.size]

    @torch.inference_mode()
    def keep(self, keeps: Sequence[Keep]) -> None:
        """Move the accepted rows of a pass to where the text has them."""
        for kept in keeps:
            self.cache.keep(kept.slot, kept.start, kept.places)

    def _bucket(self, rows: int) -> int:
        """The width that `rows` are padded to.

        On a CPU their own: no row's result depends on it. On CUDA few widths, so
        that few shapes occur, and a single one if results must not depend on it.
        """
        if rows > max(self.max_width, MIN_WIDTH):
            return PREFILL_CHUNK if self.device.type == "cuda" else rows
        if self.device.type == "cpu":
            return max(MIN_WIDTH, rows)
        size = self.max_width if self._bitwise else MIN_WIDTH
        while size < rows:
            size *= 2
        return size

    def _mask(self, visible: np.ndarray) -> torch.Tensor:
        """Additive mask `[sessions, 1, width, length]`."""
        dtype = self.network.dtype
        mask = torch.zeros(visible.shape, dtype=dtype, device=self.device)
        mask.masked_fill_(self._to_device(~visible), torch.finfo(dtype).min)
        return mask.unsqueeze(1)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _check_layers(self) -> None:
        """Allocate all slots with one small pass, and refuse models that keep other state."""
        config = self.network.config.get_text_config()
        kinds = {
            kind for kind in getattr(config, "layer_types", None) or [] if kind != "full_attention"
        }
        window = getattr(config, "sliding_window", None)
        if window and getattr(config, "use_sliding_window", True) and window < self.max_model_len:
            kinds.add(f"sliding_attention over {window} tokens")
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") in ("dynamic", "longrope"):
            # Its angles depend on the longest row of a pass, so on other sessions.
            kinds.add(f"{rope['rope_type']} rotary embedding")
        if not kinds:
            self.forward([Block(0, 0, [0], [0], [0], None)])
            kinds = {"recurrent state" for layer in self.cache.layers
                     if not (isinstance(layer, SlotLayer) and layer.is_initialized)}  # fmt: skip
        if kinds:
            raise BadSetup(
                f"this target has layers of kind {', '.join(sorted(kinds))}, which cannot be "
                "rolled back: use a model with full attention in every layer"
            )


def ancestry(parents: Sequence[int]) -> np.ndarray:
    """Which rows each row sees among its own block, `[rows, rows]`: itself and its ancestors."""
    seen = np.eye(len(parents), dtype=bool)
    if list(parents) == chain(len(parents)):
        return np.tril(np.ones_like(seen))
    for row in range(1, len(parents)):
        seen[row] |= seen[parents[row]]
    return seen


def load(config: Config) -> TargetModel:
    """The target that `config` names; BadSetup with what to do when that fails."""
    device, dtype = _placement(config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            config.model, trust_remote_code=config.trust_remote_code
        )
        network = AutoModelForCausalLM.from_pretrained(
            config.model, dtype=dtype, use_safetensors=True, attn_implementation="sdpa",
            trust_remote_code=config.trust_remote_code,
        ).to(device).eval()  # fmt: skip
        if can_pack(network):
            pack(network)
            network.set_attn_implementation(attention.NAME)
        return _fitted(config, network, Vocabulary.of(tokenizer.get_vocab()))
    except BadSetup:
        raise
    except torch.OutOfMemoryError:
        raise BadSetup(
            f"{config.model!r} and its cache do not fit the device: lower --max-sessions or "
            "--max-model-len, or take a smaller --dtype"
        ) from None
    except Exception as error:  # transformers raises whatever its readers do
        reason = str(error).strip().split("\n")[0]
        raise BadSetup(
            f"cannot load the target {config.model!r}: {reason}; give a folder with config.json, "
            "*.safetensors and a tokenizer, or a hub id such as Qwen/Qwen3-32B"
        ) from None


def _fitted(config: Config, network: Any, vocabulary: Vocabulary) -> TargetModel:
    """A loaded network with the cache that the limits ask for."""
    text_config = network.config.get_text_config()
    own_limit = getattr(text_config, "max_position_embeddings", None) or 8192
    length = config.max_model_len or min(own_limit, 8192)
    if length > own_limit:
        raise BadSetup(f"--max-model-len {length} is over the model's own limit of {own_limit}")
    if length > MAX_TOKENS:
        raise BadSetup(f"--max-model-len {length} is over the {MAX_TOKENS} ids a message can carry")
    if vocabulary.size > text_config.vocab_size:
        raise BadSetup(
            f"the tokenizer of {config.model!r} has ids up to {vocabulary.size - 1} and the model "
            f"only {text_config.vocab_size} rows: they do not belong together"
        )
    return TargetModel(network, vocabulary, config.max_sessions, length,
                       max(config.max_width, MIN_WIDTH), config.bitwise)  # fmt: skip


def _placement(config: Config) -> tuple[torch.device, torch.dtype]:
    cuda = torch.cuda.is_available()
    if config.device == "cuda" and not cuda:
        raise BadSetup(
            "--device cuda: PyTorch sees no CUDA device; install a CUDA build, or --device cpu"
        )
    device = torch.device("cuda" if cuda and config.device != "cpu" else "cpu")
    if config.dtype == "auto":
        return device, torch.bfloat16 if device.type == "cuda" else torch.float32
    return device, getattr(torch, config.dtype)


def _up_to(value: int, step: int) -> int:
    return -(-value // step) * step
