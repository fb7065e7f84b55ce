"""Struct to MessagePack bytes and back: the only place that packs.

`msgpack` does the bytes under hard limits, `msgspec` checks the decoded value
against the Struct. No pickle, no extension types, no code that a peer can reach.
"""

from typing import Any, get_args

import msgpack
import msgspec

from bus.errors import Code, ProtocolError
from bus.messages import MAX_PAYLOAD, AnyMessage, Message
from bus.packed import Packed

_MAX_ITEMS = 64
"""Entries of any array on the wire; the long lists travel as byte strings."""
_UNPACK = {kind: kind.unpack for kind in get_args(Packed)}


def encode(message: Message) -> bytes:
    """The payload of `message`; at most MAX_PAYLOAD bytes."""
    payload: bytes = msgpack.packb(message, strict_types=True, default=_plain)
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(
            Code.TOO_LARGE,
            f"a {type(message).__name__} of {len(payload)} bytes is over the limit of "
            f"{MAX_PAYLOAD}: shorten the prompt",
        )
    return payload


def decode(payload: bytes) -> AnyMessage:
    """The message in `payload`.

    Raises ProtocolError for anything that is not exactly one valid message.
    """
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(Code.TOO_LARGE, f"{len(payload)} bytes are over {MAX_PAYLOAD}")
    try:
        value = msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            max_array_len=_MAX_ITEMS,
            max_map_len=0,
            max_ext_len=0,
            max_str_len=4096,
            max_bin_len=MAX_PAYLOAD,
        )
        message: AnyMessage = msgspec.convert(value, AnyMessage, dec_hook=_packed)
        return message
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        # msgspec.ValidationError and every msgpack error on bad bytes are ValueErrors.
        reason = str(error) or type(error).__name__
        raise ProtocolError(Code.BAD_MESSAGE, f"not a message: {reason[:300]}") from None


def _plain(value: Any) -> Any:
    """What msgpack cannot write itself: Structs as arrays, packed lists as bytes."""
    if isinstance(value, Packed):
        return value.pack()
    if isinstance(value, str):
        return str.__str__(value)  # an error code is a StrEnum
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = [getattr(value, name) for name in value.__struct_fields__]
        defaults = value.__struct_defaults__
        while len(fields) > len(value.__struct_fields__) - len(defaults) and (
            fields[-1] == defaults[len(fields) - len(value.__struct_fields__) - 1]
        ):
            fields.pop()  # the reader knows them
        return fields if tag is None else [tag, *fields]
    raise TypeError(f"{type(value).__name__} cannot travel")


def _packed(kind: type, value: Any) -> Any:
    """The packed list of `kind` in the bytes `value`."""
    if kind in _UNPACK and isinstance(value, bytes):
        return _UNPACK[kind](value)
    raise ValueError(f"expected bytes for {kind.__name__}, got {type(value).__name__}")
