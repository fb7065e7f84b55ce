"""Which cache slots are free, and what they still hold. Pure.

A text that goes on where an earlier one of the same peer ended, as a chat's next
turn does, gets that one's slot and reads only what is new.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.tree import common_length


@dataclass(frozen=True)
class _Held:
    """Tokens whose keys and values a free slot still has."""

    owner: bytes
    tokens: tuple[int, ...]


class Slots:
    """The slots of one cache."""

    def __init__(self, count: int) -> None:
        self._free: dict[int, _Held | None] = dict.fromkeys(range(count))  # oldest first

    @property
    def free(self) -> list[int]:
        """The slots that no session has."""
        return list(self._free)

    def take(self, owner: bytes, tokens: Sequence[int]) -> tuple[int, int] | None:
        """A slot for a text that begins with `tokens`, and how many of them it holds already.

        None when there is none. What another owner left is never used. A slot of which
        less than half would be of use is left to whoever goes on with it, as long as
        there is an empty one; else the one given back longest ago is overwritten.
        """
        if not self._free:
            return None
        shared = {slot: self._shared(held, owner, tokens) for slot, held in self._free.items()}

        def worth(slot: int) -> tuple[int, bool]:
            held = self._free[slot]
            useful = held is not None and 2 * shared[slot] >= len(held.tokens)
            return shared[slot] if useful else 0, held is None

        best = max(self._free, key=worth)
        del self._free[best]
        return best, shared[best]

    def give(self, slot: int, owner: bytes, tokens: Sequence[int]) -> None:
        """A session is over; `tokens` are those whose keys and values stay in the slot."""
        self._free[slot] = _Held(owner, tuple(tokens))

    def forget(self, owner: bytes) -> None:
        """The owner has left; what is free now remembers nothing of it."""
        for slot, held in self._free.items():
            if held is not None and held.owner == owner:
                self._free[slot] = None

    @staticmethod
    def _shared(held: _Held | None, owner: bytes, tokens: Sequence[int]) -> int:
        if held is None or held.owner != owner:
            return 0
        return common_length(held.tokens, tokens)
