"""The draft: any mlx-lm model, asked for the likeliest next tokens after a path."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm import load as mlx_load

from bus.errors import BadSetup
from bus.messages import Sampling
from bus.vocabulary import Vocabulary
from drafter_mlx import sampling as keyed
from drafter_mlx.cache import Reading, check_trimmable
from drafter_mlx.config import Config
from drafter_mlx.session import Child

PREFILL_CHUNK = 512


class DraftModel:
    """A draft model and its tokenizer."""

    def __init__(self, network: Any, tokenizer: Any) -> None:
        self.network = network
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary.of(tokenizer.get_vocab())

    def reading(self) -> Reading:
        """An empty cache for a new session."""
        return Reading(self.network)

    def catch_up(self, reading: Reading, tokens: list[int]) -> bool:
        """Read one chunk of what `reading` lacks; False while a long prompt is not through.

        Between chunks the loop can answer the verifier.
        """
        shared = min(reading.shared(tokens), len(tokens) - 1)
        if len(tokens) - shared <= PREFILL_CHUNK:
            return True
        reading.rollback(to=shared)
        self._feed(reading, tokens[shared : shared + PREFILL_CHUNK])
        return False

    def children(
        self, reading: Reading, tokens: list[int], sampling: Sampling, count: int
    ) -> list[Child]:
        """The `count` likeliest choices of the target after `tokens`, best first.

        `reading` is rolled back to where it agrees with `tokens` and fed the rest.
        """
        shared = min(reading.shared(tokens), len(tokens) - 1)
        reading.rollback(to=shared)
        logits = self._feed(reading, tokens[shared:])
        scores = keyed.scores(logits[: self.vocabulary.size], sampling, len(tokens))
        count = min(count, scores.size)
        best = mx.argpartition(-scores, kth=count - 1)[:count]
        chances = mx.softmax(scores, precise=True)[best]
        ids, confidence, value = (np.array(x) for x in (best, chances, scores[best]))
        order = np.lexsort((ids, -value))
        found = [(int(ids[i]), float(confidence[i])) for i in order if np.isfinite(value[i])]
        return found or [(0, 0.0)]  # a broken draft guesses wrong, which harms nobody

    def _feed(self, reading: Reading, tokens: list[int]) -> mx.array:
        """Read `tokens`; the logits after the last of them, `[vocab]`."""
        logits = self.network(mx.array([tokens]), cache=reading.layers)[0, -1]
        mx.eval(logits)
        reading.tokens.extend(tokens)
        return logits


def load(config: Config) -> DraftModel:
    """The draft that `config` names; BadSetup with what to do when that fails."""
    try:
        network, tokenizer = mlx_load(
            config.model,
            tokenizer_config={"trust_remote_code": config.trust_remote_code},
            trust_remote_code=config.trust_remote_code,
        )[:2]
    except Exception as error:  # mlx-lm raises whatever its readers do
        reason = str(error).strip().split("\n")[0]
        raise BadSetup(
            f"cannot load the draft {config.model!r}: {reason}; give a folder with config.json, "
            "*.safetensors and a tokenizer, or a hub id such as mlx-community/Qwen3-0.6B-4bit"
        ) from None
    dtype = config.dtype
    if dtype == "auto" and mx.default_device().type == mx.DeviceType.cpu:
        dtype = "float32"
    if dtype != "auto":
        network.set_dtype(getattr(mx, dtype))
    check_trimmable(network)
    model = DraftModel(network, tokenizer)
    rows = network(mx.array([[0]])).shape[-1]
    if rows < model.vocabulary.size:
        raise BadSetup(
            f"the tokenizer of {config.model!r} has more ids than the model's {rows} rows: "
            "they do not belong together"
        )
    return model
