"""What the draft model has read: a prompt cache that is rolled back by absolute position."""

from typing import Any

from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    RotatingKVCache,
    make_prompt_cache,
    trim_prompt_cache,
)

from bus.errors import BadSetup


class Reading:
    """The tokens a draft model has read for one session, and the cache they left."""

    def __init__(self, network: Any) -> None:
        self.layers = make_prompt_cache(network)
        self.tokens: list[int] = []

    def rollback(self, to: int) -> None:
        """Forget everything from position `to` on."""
        extra = len(self.tokens) - to
        if extra > 0:
            trimmed = trim_prompt_cache(self.layers, extra)
            assert trimmed == extra, "the cache was checked to be trimmable"
            del self.tokens[to:]

    def shared(self, tokens: list[int]) -> int:
        """Length of the common prefix with `tokens`."""
        length = min(len(self.tokens), len(tokens))
        if self.tokens[:length] == tokens[:length]:
            return length
        return next(i for i in range(length) if self.tokens[i] != tokens[i])


def check_trimmable(network: Any) -> None:
    """Refuse models whose state cannot be rolled back, naming the layers."""
    kinds = sorted({name for layer in make_prompt_cache(network) for name in _untrimmable(layer)})
    if kinds:
        raise BadSetup(
            f"this draft model keeps state in {', '.join(kinds)}, which cannot be rolled back: "
            "use a draft with full attention in every layer, such as Llama or Qwen3"
        )


def _untrimmable(layer: Any) -> list[str]:
    if isinstance(layer, CacheList):
        return [name for part in layer.caches for name in _untrimmable(part)]
    # A rotating cache says that it can be trimmed until it has rotated.
    forgets = isinstance(layer, RotatingKVCache | ChunkedKVCache)
    return [type(layer).__name__] if forgets or not layer.is_trimmable() else []
