"""What two tokenizers must share before one may draft for the other."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Vocabulary:
    """The identity of a tokenizer on the wire."""

    digest: bytes
    """SHA-256 over the token to id map; independent of any padding of the model."""
    size: int
    """One more than the largest id."""

    @classmethod
    def of(cls, ids: Mapping[str, int]) -> "Vocabulary":
        """The identity of a token to id map, as `tokenizer.get_vocab()` returns it."""
        state = hashlib.sha256()
        for token, number in sorted(ids.items(), key=lambda item: (item[1], item[0])):
            name = token.encode("utf-8", "surrogatepass")
            state.update(f"{number} {len(name)} ".encode() + name)
        return cls(state.digest(), max(ids.values(), default=-1) + 1)
