"""The target: any `AutoModelForCausalLM`, run on trees of rows with fixed cache slots."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bus.errors import BadSetup
from bus.packed import MAX_TOKENS
from bus.vocabulary import Vocabulary
from verifier_cuda import attention, sampling
from verifier_cuda.batch import LEAST_ROWS, Batch, padded, ragged
from verifier_cuda.cache import SlotCache, SlotLayer
from verifier_cuda.config import Config
from verifier_cuda.layout import BLOCK
from verifier_cuda.linear import can_pack, pack
from verifier_cuda.scheduler import PREFILL_CHUNK, Block, Keep
from verifier_cuda.view import View


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
        self.ragged = text_config._attn_implementation == attention.NAME
        """Whether a pass has no row too many, so that sessions of any width share one well."""
        self.cache = SlotCache(text_config.num_hidden_layers, sessions, places, self.ragged)
        if self.ragged:
            attention.connect(network, self.cache)
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
        batch, logits = self._run(blocks)
        adjusted = [
            sampling.adjusted(rows, block.adjustment)
            for rows, block in zip(logits, blocks, strict=True)
        ]
        chosen: list[torch.Tensor] = []
        positions: list[list[int]] = []
        for rows, part, block in zip(adjusted, batch.parts, blocks, strict=True):
            count = part.count if block.sampling is not None else 0
            own = batch.positions[part.line, part.first : part.first + count]
            positions.append((own + 1).tolist())
            if block.sampling is not None:
                chosen.append(sampling.choose(rows, block.sampling, positions[-1]))
        if not chosen and self.device.type == "cuda":
            torch.cuda.synchronize()  # so that the time of a prompt is not charged to a later pass
        flat = iter(torch.cat(chosen).tolist() if chosen else [])  # the pass's one host sync
        return [
            View([next(flat) for _ in after], rows, block.sampling, after, raw)
            for rows, block, after, raw in zip(adjusted, blocks, positions, logits, strict=True)
        ]

    @torch.inference_mode()
    def logits(self, blocks: Sequence[Block]) -> list[torch.Tensor]:
        """Logits of one pass, `[rows, vocab]` for each block; none for pieces of a prompt.

        Each row sees the cached prefix and its ancestors. Keys and values are
        written to `block.places`.
        """
        return self._run(blocks)[1]

    def _run(self, blocks: Sequence[Block]) -> tuple[Batch, list[torch.Tensor]]:
        if self.ragged:
            batch = ragged(blocks, LEAST_ROWS, self._scratch)
        else:
            width = self._bucket(max(len(block.tokens) for block in blocks))
            batch = padded(blocks, width, self._scratch)
        self.cache.begin(batch, self.device, self.network.dtype)
        wanted = self._wanted(blocks, batch)
        logits: torch.Tensor = self.network(
            input_ids=self._to_device(batch.ids),
            position_ids=self._to_device(batch.positions),
            attention_mask=self.cache.mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=wanted,
        ).logits[..., : self.vocabulary.size]
        found, done = [], 0
        for part, block in zip(batch.parts, blocks, strict=True):
            count = part.count if block.sampling else 0
            start = done if self.ragged else 0
            found.append(logits[part.line, start : start + count])
            done += count
        return batch, found

    def _wanted(self, blocks: Sequence[Block], batch: Batch) -> int | torch.Tensor:
        """The rows that get logits: all of a padded pass or none, in a ragged one as asked."""
        asked = [block.sampling is not None for block in blocks]
        if not self.ragged or all(asked) or not any(asked):
            return 0 if any(asked) else 1
        rows = [
            part.first + row
            for want, part in zip(asked, batch.parts, strict=True)
            for row in range(part.count)
            if want
        ]
        rows += [0] * (LEAST_ROWS - len(rows))  # fewer are rounded differently
        return self._to_device(np.array(rows))

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
        if rows > max(self.max_width, LEAST_ROWS):
            return PREFILL_CHUNK if self.device.type == "cuda" else rows
        if self.device.type == "cpu":
            return max(LEAST_ROWS, rows)
        size = self.max_width if self._bitwise else LEAST_ROWS
        while size < rows:
            size *= 2
        return size

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
                       max(config.max_width, LEAST_ROWS), config.bitwise)  # fmt: skip


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
