"""The key-value cache: fixed slots, one per session, allocated once.

A `transformers` Cache whose layers write each row of a pass to a place that the
pass names, and hand attention the whole slot up to a common length. What a row
may see is the mask's business, so accepted rows need only be moved into place.
"""

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class Places:
    """Where the rows of the running pass are written. One object for all layers."""

    numbers: list[int]
    """The slot of each session in the pass."""
    slots: torch.Tensor
    """The same on the device, `[sessions]`."""
    index: torch.Tensor
    """`[sessions, width]`, the place of each row in its slot."""
    length: int
    """Places of a slot that attention looks at."""


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, `[slots, kv heads, places, head dim]`."""

    def __init__(self, owner: "SlotCache") -> None:
        super().__init__()
        self._owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        owner = self._owner
        for name, state in (("keys", key_states), ("values", value_states)):
            shape = (owner.slots, state.shape[1], owner.places, state.shape[3])
            setattr(self, name, torch.zeros(shape, dtype=state.dtype, device=state.device))
        self.is_initialized = True

    def update(  # type: ignore[override]
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the rows of a pass, `[sessions, kv heads, width, head dim]`; return the slots."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        to = self._owner.pass_places
        self.keys[to.slots[:, None], :, to.index] = key_states.transpose(1, 2)
        self.values[to.slots[:, None], :, to.index] = value_states.transpose(1, 2)
        return self._read(self.keys), self._read(self.values)

    def _read(self, state: torch.Tensor) -> torch.Tensor:
        to = self._owner.pass_places
        if len(to.numbers) == 1:  # a view, not a copy
            return state.narrow(0, to.numbers[0], 1)[:, :, : to.length]
        return state[to.slots, :, : to.length]

    def move(self, slot: int, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the entries at `source` to `target`."""
        assert self.keys is not None and self.values is not None
        self.keys[slot, :, target] = self.keys[slot, :, source]
        self.values[slot, :, target] = self.values[slot, :, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._owner.pass_places.length, 0

    def get_seq_length(self) -> int:
        return 0  # positions and mask are always given

    def get_max_length(self) -> int:
        return self._owner.places


class SlotCache(Cache):
    """All layers of the cache."""

    def __init__(self, layers: int, slots: int, places: int) -> None:
        self.slots = slots
        self.places = places
        self.pass_places = Places([0], torch.zeros(1, dtype=torch.long), torch.zeros(1, 1), 1)
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def keep(self, slot: int, start: int, places: tuple[int, ...]) -> None:
        """Move the entries at `places` to `start` and up, where the text has them."""
        moved = [(place, start + i) for i, place in enumerate(places) if place != start + i]
        if not moved:
            return  # a chain lies in place already
        device = self.pass_places.slots.device
        source, target = torch.tensor(moved, device=device).unbind(1)
        for layer in self.layers:
            assert isinstance(layer, SlotLayer)
            layer.move(slot, source, target)

    @property
    def bytes(self) -> int:
        """Memory held by keys and values."""
        return sum(
            state.numel() * state.element_size()
            for layer in self.layers
            for state in (layer.keys, layer.values)
            if state is not None
        )
