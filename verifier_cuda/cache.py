"""The key-value cache: fixed slots, one per session, allocated once.

A `transformers` Cache whose layers write each row of a pass to a place that the
pass names, and hand attention the whole slot up to a common length. What a row
may see is the mask's business, so accepted rows need only be moved into place.
"""

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from verifier_cuda.batch import LEAST_ROWS, Batch, Part


def _added(visible: np.ndarray, rows: int, length: int) -> torch.Tensor:
    """What is added to scores: 0 where a row sees, else next to nothing; `[rows, length]`.

    Rows that are not there see the first place.
    """
    count, known = visible.shape
    mask = torch.full((max(rows, count), length), torch.finfo(torch.bfloat16).min)
    mask[:count, :known].masked_fill_(torch.from_numpy(visible), 0.0)
    mask[count:, 0] = 0.0
    return mask


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
        owner = self._owner
        self.keys[owner.row_slots, :, owner.row_places] = key_states.transpose(1, 2)
        self.values[owner.row_slots, :, owner.row_places] = value_states.transpose(1, 2)
        return self._read(self.keys), self._read(self.values)

    def _read(self, state: torch.Tensor) -> torch.Tensor:
        """What attention gets: the whole storage if ragged, else the slots of the pass."""
        owner = self._owner
        if owner.ragged:
            return state
        if len(owner.parts) == 1:  # a view, not a copy
            return state.narrow(0, owner.parts[0][0].slot, 1)[:, :, : owner.length]
        return state[owner.row_slots[:, 0], :, : owner.length]

    def move(self, slot: int, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the entries at `source` to `target`."""
        assert self.keys is not None and self.values is not None
        self.keys[slot, :, target] = self.keys[slot, :, source]
        self.values[slot, :, target] = self.values[slot, :, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._owner.length, 0

    def get_seq_length(self) -> int:
        return 0  # positions and mask are always given

    def get_max_length(self) -> int:
        return self._owner.places


class SlotCache(Cache):
    """All layers of the cache."""

    def __init__(self, layers: int, slots: int, places: int, ragged: bool = False) -> None:
        """`ragged`: attention reads the slots itself, by `parts`."""
        self.slots = slots
        self.places = places
        self.ragged = ragged
        self.length = 1
        """Places of a slot that attention looks at, the longest session's."""
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def begin(self, batch: Batch, device: torch.device, dtype: torch.dtype) -> None:
        """A pass over `batch` follows."""
        self.row_slots = torch.from_numpy(batch.slots).to(device)
        self.row_places = torch.from_numpy(batch.places).to(device)
        self.length = max(part.length for part in batch.parts)
        if self.ragged:
            # A mask of four dimensions is handed on as it is; this one is not read.
            self.mask = torch.zeros(1, 1, 1, 1, dtype=dtype)
            masks = [_added(part.visible, LEAST_ROWS, part.length) for part in batch.parts]
        else:
            lines = [_added(part.visible, batch.ids.shape[1], self.length) for part in batch.parts]
            self.mask = torch.stack(lines).unsqueeze(1).to(device, dtype)
            masks = lines
        self.parts: list[tuple[Part, torch.Tensor]] = list(zip(batch.parts, masks, strict=True))

    def keep(self, slot: int, start: int, places: tuple[int, ...]) -> None:
        """Move the entries at `places` to `start` and up, where the text has them."""
        moved = [(place, start + i) for i, place in enumerate(places) if place != start + i]
        if not moved:
            return  # a chain lies in place already
        device = self.row_slots.device
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
