"""A bell that any thread may ring while another one polls."""

import socket
from contextlib import suppress


class Waker:
    """Rung by `wake`; until `heard` says so, its file descriptor is readable."""

    def __init__(self) -> None:
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)

    def fileno(self) -> int:
        """What to poll."""
        return self._ear.fileno()

    def wake(self) -> None:
        """Ring. Thread-safe, never blocks, and does nothing once closed."""
        with suppress(OSError):  # full: it is ringing already
            self._bell.send(b"\0")

    def heard(self) -> bool:
        """True when it was rung since the last call."""
        with suppress(BlockingIOError):
            return bool(self._ear.recv(4096))
        return False

    def close(self) -> None:
        self._ear.close()
        self._bell.close()
