"""Long lists of a message, each packed into one byte string."""

import struct
from collections.abc import Iterable
from typing import NamedTuple, Self

MAX_TOKENS = 1 << 17
"""Token ids in one field, which fit MAX_PAYLOAD however large they are."""
MAX_ID = (1 << 32) - 1
MAX_NODES = 64
"""Nodes in one Draft."""
MAX_SUPPORT = 64
"""Tokens in one Proposal."""
MAX_BIASES = 300
MAX_BIAS = 100.0
MAX_TOP = 20
"""Likeliest tokens whose logprobs are told beside that of the committed one."""


class Ids(tuple[int, ...]):
    """Token ids; travel as LEB128, seven bits a byte, low ones first: two or three bytes each."""

    __slots__ = ()

    def pack(self) -> bytes:
        data = bytearray()
        for token in self:
            while token > 0x7F:
                data.append(token & 0x7F | 0x80)
                token >>= 7
            data.append(token)
        return bytes(data)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        ids: list[int] = []
        token = shift = 0
        for byte in data:
            token |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if token > MAX_ID or (byte == 0 and shift > 7):
                    raise ValueError("an id is too large, or written longer than it is")
                ids.append(token)
                token = shift = 0
            elif shift > 28:
                raise ValueError("an id is too large")
        if shift or len(ids) > MAX_TOKENS:
            raise ValueError(f"{len(data)} bytes are not a list of at most {MAX_TOKENS} token ids")
        return cls(ids)


def _take_ids(data: bytes, start: int, count: int) -> tuple[Ids, int]:
    """The `count` ids from byte `start` on, and where they end."""
    end = start
    for _ in range(count):
        while end < len(data) and data[end] > 0x7F:
            end += 1
        end += 1
    if end > len(data):
        raise ValueError("a list of ids is cut off")
    return Ids.unpack(data[start:end]), end


class Confidences(tuple[float, ...]):
    """Chances in [0, 1]; travel as one byte each, in steps of 1/255."""

    __slots__ = ()

    def pack(self) -> bytes:
        return bytes(round(255 * value) for value in self)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        if len(data) > MAX_NODES:
            raise ValueError(f"{len(data)} bytes are not a list of at most {MAX_NODES} confidences")
        return cls(byte / 255 for byte in data)


class Parents(tuple[int, ...]):
    """For each node of a Draft: 0 for the anchor, i for the message's i-th node.

    MAX_NODES + j stands for the j-th further anchor. Travels as one byte each.
    Empty means a chain: every node under the one before.
    """

    __slots__ = ()

    def pack(self) -> bytes:
        return bytes(self)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        if len(data) > MAX_NODES or any(
            index < parent <= MAX_NODES for index, parent in enumerate(data)
        ):
            raise ValueError("a parent does not come before its child")
        return cls(data)


class Anchor(NamedTuple):
    """A further prefix that nodes of a Draft continue."""

    offset: int
    """Tokens in it beyond the Draft's position."""
    digest: int


class Anchors(tuple[Anchor, ...]):
    """Further anchors; travel as one byte of offset and a little-endian u32 each."""

    __slots__ = ()

    def pack(self) -> bytes:
        return b"".join(struct.pack("<BI", *anchor) for anchor in self)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        if len(data) % 5 or len(data) > 5 * MAX_NODES:
            raise ValueError(f"{len(data)} bytes are not a list of at most {MAX_NODES} anchors")
        return cls(Anchor(*pair) for pair in struct.iter_unpack("<BI", data))


class Proposal(NamedTuple):
    """What the guesses below one node were drawn from, in turn and without replacement."""

    place: int
    """The node, as `Parents` counts."""
    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    """Of each token, over 0; not normalised."""


class Proposals(tuple[Proposal, ...]):
    """Proposals one after another: a byte of place, a byte of length, ids, and an f16 each."""

    __slots__ = ()

    def pack(self) -> bytes:
        return b"".join(
            bytes((place, len(tokens)))
            + Ids(tokens).pack()
            + struct.pack(f"<{len(weights)}e", *weights)
            for place, tokens, weights in self
        )

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        found: list[Proposal] = []
        start = 0
        while start < len(data):
            if len(found) > MAX_NODES or start + 2 > len(data):
                raise ValueError(f"{len(data)} bytes are no list of proposals")
            place, count = data[start], data[start + 1]
            tokens, end = _take_ids(data, start + 2, count)
            start = end + 2 * count
            if start > len(data):
                raise ValueError("a proposal is cut off")
            weights = struct.unpack(f"<{count}e", data[end:start])
            sound = all(0 < weight < float("inf") for weight in weights)
            if not (0 < count <= MAX_SUPPORT and sound and len(set(tokens)) == count):
                raise ValueError("a proposal has weights over 0 for different tokens")
            found.append(Proposal(place, tuple(tokens), weights))
        return cls(found)


class Bias(NamedTuple):
    """What is added to the logit of one token."""

    token: int
    value: float


class Biases(tuple[Bias, ...]):
    """Logit biases; travel as an id and a little-endian f32 each.

    Rounded to 32 bits where they are made, so that all sides add the same number.
    ValueError for more than MAX_BIASES, a token twice, or a value beyond MAX_BIAS.
    """

    __slots__ = ()

    def __new__(cls, biases: Iterable[tuple[int, float]] = ()) -> Self:
        found = [*biases]
        if len(found) > MAX_BIASES or len({token for token, _ in found}) < len(found):
            raise ValueError(f"at most {MAX_BIASES} biases for different tokens can be given")
        if not all(0 <= token <= MAX_ID for token, _ in found):
            raise ValueError("a bias is for a token id below 2**32")
        if not all(-MAX_BIAS <= value <= MAX_BIAS for _, value in found):
            raise ValueError(f"a bias lies in -{MAX_BIAS:g} to {MAX_BIAS:g}")
        values = struct.unpack(f"<{len(found)}f", _floats(value for _, value in found))
        tokens = (token for token, _ in found)
        return super().__new__(cls, map(Bias, tokens, values))

    def pack(self) -> bytes:
        return b"".join(Ids((token,)).pack() + _floats((value,)) for token, value in self)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        found: list[Bias] = []
        start = 0
        while start < len(data):
            (token,), end = _take_ids(data, start, 1)
            start = end + 4
            if start > len(data):
                raise ValueError("a bias is cut off")
            found.append(Bias(token, *struct.unpack("<f", data[end:start])))
        return cls(found)


class Logprob(NamedTuple):
    """Natural logarithms of chances at one place of a text, at most 0 and finite."""

    value: float
    """That of the committed token."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with theirs, best first."""


class Logprobs(tuple[Logprob, ...]):
    """Logprobs one after another: an f32, a byte of length, ids, and an f32 each."""

    __slots__ = ()

    def pack(self) -> bytes:
        return b"".join(
            struct.pack("<fB", value, len(top))
            + Ids(token for token, _ in top).pack()
            + _floats(other for _, other in top)
            for value, top in self
        )

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        found: list[Logprob] = []
        start = 0
        while start < len(data):
            if start + 5 > len(data):
                raise ValueError("a logprob is cut off")
            value, count = struct.unpack_from("<fB", data, start)
            tokens, end = _take_ids(data, start + 5, count)
            start = end + 4 * count
            if start > len(data):
                raise ValueError("a logprob is cut off")
            values = struct.unpack(f"<{count}f", data[end:start])
            sound = all(-float("inf") < each <= 0 for each in (value, *values))
            if not (sound and count <= MAX_TOP and len(set(tokens)) == count):
                raise ValueError("logprobs are finite, at most 0, and for different tokens")
            found.append(Logprob(value, tuple(zip(tokens, values, strict=True))))
        return cls(found)

    @staticmethod
    def most(top: int, size: int) -> int:
        """How many tokens with so many likeliest ones each fit `size` bytes, their ids included."""
        return size // (10 + 9 * top)


def _floats(values: Iterable[float]) -> bytes:
    found = (*values,)
    return struct.pack(f"<{len(found)}f", *found)


Packed = Ids | Confidences | Parents | Anchors | Proposals | Biases | Logprobs
