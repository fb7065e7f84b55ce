"""DEALER and ROUTER with the options that matter, and nothing else.

Both sockets hand out decoded messages and count bytes. A peer that sends
garbage yields a ProtocolError beside its name, so the daemon can answer it.
Addresses other than loopback need `insecure=True`: there are no keys yet, and
`_secure` is where they go.
"""

import ipaddress
import re
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import zmq

from bus import codec
from bus.delay import Line
from bus.errors import BadSetup, Code, ProtocolError
from bus.messages import MAX_PAYLOAD, AnyMessage, Message
from bus.waker import Waker

HIGH_WATER_MARK = 256
"""Messages that wait in one direction before a sender is told to hold back."""
MAX_DRAIN = 512
"""Messages taken in one drain, so that a flood cannot keep the loop from its model."""

_HEARTBEATS = {
    zmq.HEARTBEAT_IVL: 300,
    zmq.HEARTBEAT_TIMEOUT: 3000,
    zmq.HEARTBEAT_TTL: 3000,
    zmq.HANDSHAKE_IVL: 3000,
    zmq.MAXMSGSIZE: MAX_PAYLOAD,
    zmq.SNDHWM: HIGH_WATER_MARK,
    zmq.RCVHWM: HIGH_WATER_MARK,
    zmq.LINGER: 0,
}


class Delivery(Enum):
    """What became of a message handed to a socket."""

    SENT = auto()
    FULL = auto()
    """The peer reads too slowly: keep the message and try again."""
    GONE = auto()
    """The peer has left."""


@dataclass(frozen=True)
class Received:
    """One arrival at the verifier: a message, or what was wrong with it."""

    peer: bytes
    content: AnyMessage | ProtocolError


def tcp_address(host: str, port: int) -> str:
    """`tcp://host:port`, with brackets around an IPv6 host."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def host_of(address: str) -> str:
    """The host of a `tcp://host:port` address; BadSetup when it is none."""
    match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})", address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise BadSetup(f"{address!r} is not an address; write it as tcp://HOST:PORT")
    return match[1].strip("[]")


def is_loopback(host: str) -> bool:
    """True for an address that only this machine can reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, insecure: bool) -> None:
    """Refuse a host other than loopback unless the user asked for it."""
    if not is_loopback(host) and not insecure:
        raise BadSetup(
            f"{host} is not a loopback address, and prompts would travel in the clear: use an SSH "
            "tunnel to 127.0.0.1, or add --insecure if you trust the network"
        )


class _Socket:
    """Options, byte counts and polling that both sides share."""

    def __init__(
        self, kind: int, context: zmq.Context[Any] | None, line: Line | None = None
    ) -> None:
        self._line = line
        self._envelope = 1 if kind == zmq.ROUTER else 0  # ROUTER puts the peer's name in front
        self._socket: zmq.Socket[bytes] = (context or zmq.Context.instance()).socket(kind)
        for option, value in _HEARTBEATS.items():
            self._socket.setsockopt(option, value)
        self.bytes_sent = 0
        self.bytes_received = 0

    def _secure(self) -> None:
        """Where CURVE keys will be set, before bind or connect."""

    def wait(self, timeout_s: float) -> bool:
        """True when something can be read within `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        while not self._readable():
            now = time.monotonic()
            next_at = self._line.next_at() if self._line else None
            left = min(until, until if next_at is None else next_at) - now
            if now >= until or self._woken():
                return False
            # Polling counts in milliseconds; the rest is slept in small bites.
            if left < 1e-3 or not self._poll(int(left * 1000)):
                time.sleep(min(max(0.0, left), 1e-4))
        return True

    def _poll(self, timeout_ms: int) -> bool:
        return bool(self._socket.poll(timeout_ms))

    def _woken(self) -> bool:
        return False

    def _readable(self) -> bool:
        if self._line is None:
            return bool(self._socket.poll(0))
        self._pull(self._line)
        next_at = self._line.next_at()
        return next_at is not None and next_at <= time.monotonic()

    def _frames(self) -> list[list[bytes]]:
        if self._line is not None:
            self._pull(self._line)
            return self._line.due(time.monotonic())
        return self._taken()

    def _taken(self) -> list[list[bytes]]:
        taken: list[list[bytes]] = []
        while len(taken) < MAX_DRAIN:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            payload = frames[self._envelope : None if self._line is None else -1]
            self.bytes_received += sum(map(len, payload))
            taken.append(frames)
        return taken

    def _pull(self, line: Line) -> None:
        for frames in self._taken():
            line.hold(frames[0] if self._envelope else b"", frames)

    def _stamped(self, peer: bytes, frames: list[bytes]) -> list[bytes]:
        if self._line is None:
            return frames
        return [*frames, self._line.stamp(peer, time.monotonic())]

    def close(self) -> None:
        self._socket.close()


class DrafterSocket(_Socket):
    """The drafter's end: one DEALER, connected to one verifier."""

    def __init__(
        self,
        address: str,
        insecure: bool = False,
        context: zmq.Context[Any] | None = None,
        line: Line | None = None,
    ) -> None:
        """`line` emulates a slow network, to a verifier that does so too."""
        host = host_of(address)
        check_exposure(host, insecure)
        if line is not None:
            check_exposure(host, insecure=False)
        super().__init__(zmq.DEALER, context, line)
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        # Nothing is queued for a verifier that is not there: stale drafts help nobody.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._secure()
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self._socket.close()
            raise BadSetup(f"cannot connect to {address}: {error.strerror}; check it") from None
        self._waker = Waker()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._waker.fileno(), zmq.POLLIN)

    def wake(self) -> None:
        """End a `wait`, the present one or the next. Any thread may call this."""
        self._waker.wake()

    def _poll(self, timeout_ms: int) -> bool:
        return bool(self._poller.poll(timeout_ms))

    def _woken(self) -> bool:
        return self._waker.heard()

    def close(self) -> None:
        super().close()
        self._waker.close()

    def send(self, message: Message) -> Delivery:
        """Hand over `message`, or say that there is no room (or no verifier)."""
        payload = codec.encode(message)
        try:
            self._socket.send_multipart(self._stamped(b"", [payload]), zmq.NOBLOCK)
        except zmq.Again:
            return Delivery.FULL
        self.bytes_sent += len(payload)
        return Delivery.SENT

    def drain(self) -> list[AnyMessage]:
        """Everything that has arrived. Messages the codec refuses are left out."""
        messages: list[AnyMessage] = []
        for frames in self._frames():
            try:
                messages.append(codec.decode(frames[-1]))
            except ProtocolError:
                continue  # as good as lost, and loss is repaired by resuming
        return messages


class VerifierSocket(_Socket):
    """The verifier's end: one ROUTER. Peers are named by automatic routing ids."""

    def __init__(
        self,
        host: str,
        port: int,
        insecure: bool = False,
        context: zmq.Context[Any] | None = None,
        line: Line | None = None,
    ) -> None:
        """With a `line`, only drafters that emulate a slow network too are heard."""
        check_exposure(host, insecure and line is None)
        if not 0 <= port < 65536:
            raise BadSetup(f"there is no port {port}; choose one below 65536")
        super().__init__(zmq.ROUTER, context, line)
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._secure()
        place = tcp_address(host, port)
        try:
            self._socket.bind(place if port else place[:-1] + "*")
        except zmq.ZMQError as error:
            self._socket.close()
            hint = "choose another --port" if error.errno == zmq.EADDRINUSE else "check --host"
            raise BadSetup(f"cannot listen on {place}: {error.strerror}; {hint}") from None
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, peer: bytes, message: Message) -> Delivery:
        """Hand over `message` to `peer` without ever blocking."""
        payload = codec.encode(message)
        try:
            self._socket.send_multipart(self._stamped(peer, [peer, payload]), zmq.NOBLOCK)
        except zmq.Again:
            return Delivery.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Delivery.GONE
        self.bytes_sent += len(payload)
        return Delivery.SENT

    def drain(self) -> list[Received]:
        """Everything that has arrived, with what was wrong where something was."""
        arrivals: list[Received] = []
        for peer, *frames in self._frames():
            try:
                if len(frames) != 1:
                    raise ProtocolError(
                        Code.BAD_MESSAGE, f"a message is one frame, not {len(frames)}"
                    )
                arrivals.append(Received(peer, codec.decode(frames[0])))
            except ProtocolError as error:
                arrivals.append(Received(peer, error))
        return arrivals
