"""A slow network, emulated between processes of one machine.

The sender stamps each message, in a second frame, with the time at which it may
be read; the receiver holds it back until then. So a receiver that is busy while
a message is on its way loses nothing by it, as with a real network, and nobody
in between costs time. Both ends read the same monotonic clock, hence loopback only.
"""

import heapq
import random
import struct

_STAMP = struct.Struct("<ddd")  # readable at, one-way delay, jitter; in seconds


class Line:
    """The delays of one socket. What a peer stamps on its messages holds for the answers too."""

    def __init__(self, delay_s: float = 0.0, jitter_s: float = 0.0, seed: int = 0) -> None:
        """`delay_s` is one way; up to `jitter_s` is added at random. Order is kept, as TCP does."""
        self._own = (delay_s, jitter_s)
        self._of_peer: dict[bytes, tuple[float, float]] = {}
        self._last: dict[bytes, float] = {}
        self._held: list[tuple[float, int, list[bytes]]] = []
        self._serial = 0
        self._random = random.Random(seed)

    def stamp(self, peer: bytes, now: float) -> bytes:
        """The second frame of a message that is sent `now`."""
        delay_s, jitter_s = self._of_peer.get(peer, self._own)
        readable = now + delay_s + jitter_s * self._random.random()
        self._last[peer] = readable = max(readable, self._last.get(peer, 0.0))
        return _STAMP.pack(readable, delay_s, jitter_s)

    def hold(self, peer: bytes, frames: list[bytes]) -> None:
        """Take in what arrived; the stamp is its last frame."""
        if len(frames[-1]) != _STAMP.size:
            return  # a peer that does not play along is not heard
        readable, delay_s, jitter_s = _STAMP.unpack(frames[-1])
        self._of_peer[peer] = (delay_s, jitter_s)
        self._serial += 1
        heapq.heappush(self._held, (readable, self._serial, frames[:-1]))

    def due(self, now: float) -> list[list[bytes]]:
        """Frames whose time has come."""
        ready: list[list[bytes]] = []
        while self._held and self._held[0][0] <= now:
            ready.append(heapq.heappop(self._held)[2])
        return ready

    def next_at(self) -> float | None:
        """When the next held message may be read."""
        return self._held[0][0] if self._held else None
