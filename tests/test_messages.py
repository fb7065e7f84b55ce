"""The wire. All fuzzing states that `decode` returns a message or raises ProtocolError."""

import json
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from bus import codec
from bus import messages as m
from bus.errors import Code, ProtocolError
from bus.messages import MAX_PAYLOAD, MAX_SESSION
from bus.packed import (
    MAX_BIAS,
    MAX_ID,
    MAX_NODES,
    MAX_SUPPORT,
    MAX_TOKENS,
    MAX_TOP,
    Anchor,
    Anchors,
    Biases,
    Confidences,
    Ids,
    Logprob,
    Logprobs,
    Parents,
    Proposal,
    Proposals,
)  # fmt: skip

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("messages.json").read_text("utf-8"))
MAX_WORD = (1 << 64) - 1
SAMPLING = m.Sampling(300, 0.7, 40, 0.9, 0.05, MAX_WORD, Ids((2, 70000)), True)
EXAMPLES: dict[str, m.AnyMessage] = {
    "Hello": m.Hello(2, "draft", bytes(range(32)), 151669, "draftbus 0.1"),
    "Welcome": m.Welcome(1 << 63, "target", m.Limits(8, 4096, 512, 9000), ("exact",), Ids((2, 5))),
    "Welcome, drawn": m.Welcome(9, "target", m.Limits(1, 9, 9, 9), ("own",), drawn=("own",)),
    "Open": m.Open(7, Ids((1, 300, 70000)), Ids((9,)), SAMPLING, "greedy", True),
    "Open, adjusted": m.Open(
        7, Ids((1, 300)), Ids(),
        m.Sampling(repetition_penalty=1.2, presence_penalty=-0.5, frequency_penalty=2.0,
                   logit_bias=Biases(((70000, -100.0), (5, 0.1)))),
        logprobs=2,
    ),
    "Draft": m.Draft(7, 1000, 1 << 31, Ids((5, 6)), Confidences((1.0, 0.2)), Parents((0, 0))),
    "Draft, a chain": m.Draft(7, 4, 99, Ids((5, 600)), Confidences((0.8, 0.4))),
    "Draft, further anchors": m.Draft(
        7, 4, 99, Ids((5, 6, 8)), Confidences((0.8, 0.4, 0.0)), Parents((0, 65, 66)),
        Anchors((Anchor(0, 0xDEADBEEF), Anchor(255, 1))), 70_000,
    ),
    "Draft, drawn": m.Draft(
        7, 4, 99, Ids((5, 600)), Confidences((0.8, 0.4)), Parents((0, 0)),
        proposals=Proposals((Proposal(0, (600, 5, 70000), (1.0, 0.5, 0.0625)),)),
    ),
    "Commit": m.Commit(7, 1004, Ids((5, 6, 8)), 2, 9, "stop", m.Timings(30000, 200, 1 << 40), 1),
    "Commit, explained": m.Commit(
        7, 1004, Ids((5, 6)),
        logprobs=Logprobs((Logprob(-0.5), Logprob(-2.25, ((70000, -0.125), (6, -2.25))))),
    ),
    "Open, shared": m.Open(1 << 31, Ids((1, 300)), Ids(), m.Sampling(), shared=1 << 63, guest=True),
    "Commit, shared": m.Commit(7, 9, Ids((5,)), finish="stop", shares=(m.Share("draft", 9, 4),)),
    "Join": m.Join(1 << 63),
    "Close": m.Close(MAX_SESSION),
    "Ping": m.Ping(1 << 62),
    "Pong": m.Pong(123456789, 987654321),
    "Error": m.Error("unknown_session", "open the session again, déjà vu", 7),
}  # fmt: skip
ints = partial(st.integers, 0)
fuzzed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def wire(*fields: object) -> bytes:
    return bytes(msgpack.packb(fields))


def drawn(proposals: bytes) -> bytes:
    """A Draft of nothing with these bytes for proposals."""
    return wire(4, 1, 0, 0, b"", b"", b"", b"", 0, proposals)


names, counts = st.text(max_size=200), ints(1 << 31)
micros, sessions, words = ints(1 << 62), ints(MAX_SESSION), ints(MAX_WORD)
prefixes = ints((1 << 32) - 1)
ids = st.lists(ints(MAX_ID) | ints(1 << 22), max_size=40).map(Ids)
chances = st.lists(ints(255).map(lambda step: step / 255), max_size=MAX_NODES).map(Confidences)
anchors = st.lists(st.builds(Anchor, ints(255), prefixes), max_size=MAX_NODES).map(Anchors)
parents = st.lists(ints(MAX_NODES) | ints(255), max_size=MAX_NODES).map(
    lambda picks: Parents(
        pick if pick > MAX_NODES else pick % (index + 1) for index, pick in enumerate(picks)
    )
)
penalties = st.floats(-2, 2)
biases = st.dictionaries(ints(MAX_ID), st.floats(-MAX_BIAS, MAX_BIAS), max_size=9).map(
    lambda found: Biases(found.items())
)
samplings = st.builds(
    m.Sampling, st.integers(1, MAX_TOKENS), st.floats(0, 100), ints(MAX_TOKENS),
    st.floats(0, 1, exclude_min=True), st.floats(0, 1), words, ids, st.booleans(),
    st.floats(0.01, 100), penalties, penalties, biases,
)  # fmt: skip
limits = st.builds(m.Limits, counts, counts, counts, counts)
timings = st.builds(m.Timings, micros, micros, micros, counts)
several = st.lists(names, max_size=8).map(tuple)
weights = st.floats(0, 65504, width=16, exclude_min=True)
supports = st.dictionaries(ints(MAX_ID), weights, min_size=1, max_size=MAX_SUPPORT)
proposals = st.lists(
    st.tuples(ints(255), supports).map(lambda p: Proposal(p[0], tuple(p[1]), tuple(p[1].values()))),
    max_size=3,
).map(Proposals)
shares = st.lists(st.builds(m.Share, names, counts, counts), max_size=16).map(tuple)
negative = st.floats(-(2.0**100), 0, width=32)
tops = st.dictionaries(ints(MAX_ID), negative, max_size=MAX_TOP).map(lambda d: (*d.items(),))
logprobs = st.lists(st.builds(Logprob, negative, tops), max_size=4).map(Logprobs)
finishes = st.sampled_from((None, "stop", "length"))
any_message = st.one_of(
    st.builds(m.Hello, counts, names, st.binary(min_size=32, max_size=32), counts, names),
    st.builds(m.Welcome, words, names, limits, several, ids, several, several),
    st.builds(m.Open, sessions, ids, ids, samplings, names, st.booleans(),
              st.none() | ints(MAX_TOP), words, st.booleans()),
    st.builds(m.Draft, sessions, counts, prefixes, ids, chances, parents, anchors, micros,
              proposals),
    st.builds(m.Commit, sessions, counts, ids, counts, counts, finishes, timings, counts,
              logprobs, shares),
    st.builds(m.Error, names, st.text(max_size=1000), st.none() | sessions),
    st.builds(m.Close, sessions), st.builds(m.Ping, micros), st.builds(m.Pong, micros, micros),
    st.builds(m.Join, words),
)  # fmt: skip
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), MAX_WORD), st.floats(), st.text(max_size=8),
    st.binary(max_size=9), st.builds(msgpack.ExtType, ints(127), st.binary(max_size=4)),
)  # fmt: skip
maps = st.dictionaries(st.text(max_size=2) | ints(9), leaves, max_size=2)
values = st.recursive(leaves | maps, lambda inner: st.lists(inner, max_size=8), max_leaves=12)
edits = st.tuples(ints(400), ints(2), st.binary(max_size=4))
tagged = st.tuples(st.integers(0, 10), st.lists(values, max_size=8)).map(lambda t: [t[0], *t[1]])


def read(payload: bytes) -> m.AnyMessage | Code:
    """The message, or the code of the ProtocolError; nothing else may come out."""
    try:
        message = codec.decode(payload)
    except ProtocolError as error:
        return error.code
    assert isinstance(message, m.AnyMessage)
    return message


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bytes_of_a_message_are_those_of_protocol_2(name: str) -> None:
    assert codec.encode(EXAMPLES[name]).hex() == GOLDEN[name]
    assert codec.decode(bytes.fromhex(GOLDEN[name])) == EXAMPLES[name]


def test_every_message_type_has_a_golden_vector() -> None:
    assert {type(EXAMPLES[name]) for name in GOLDEN} == set(get_args(m.AnyMessage))


def test_a_four_token_draft_fits_in_40_bytes() -> None:
    ids, chances = Ids((151_668,) * 4), Confidences((0.999,) * 4)
    for parents in (Parents(), Parents((0, 0, 1, 1))):
        draft = m.Draft(99, 8000, MAX_ID, ids, chances, parents)
        assert len(codec.encode(draft)) <= 40


@pytest.mark.parametrize(
    ("token", "data"),
    [(0, "00"), (127, "7f"), (128, "8001"), (16383, "ff7f"), (16384, "808001"),
     ((1 << 28) - 1, "ffffff7f"), (1 << 28, "8080808001"), (MAX_ID, "ffffffff0f")],
)  # fmt: skip
def test_an_id_travels_as_leb128(token: int, data: str) -> None:
    assert Ids((token, 1)).pack().hex() == data + "01"
    assert Ids.unpack(bytes.fromhex(data + "01")) == (token, 1)


def test_a_confidence_travels_in_the_nearest_of_256_steps() -> None:
    rounded = Confidences((0.0, 0.0019, 0.002, 0.5, 0.9981, 1.0)).pack()
    assert [*rounded] == [0, 0, 1, 128, 255, 255]
    assert Confidences.unpack(b"\0\x33\xff") == (0.0, 0.2, 1.0)


@fuzzed
@given(any_message)
@example(m.Error("the longest text", "\U0001f600" * 1000))
def test_what_was_encoded_is_decoded_unchanged(message: m.AnyMessage) -> None:
    decoded = codec.decode(codec.encode(message))
    assert decoded == message
    assert [*map(type, asdict(decoded).values())] == [*map(type, asdict(message).values())]


@settings(fuzzed, max_examples=300)
@given(st.binary(max_size=300) | (values | tagged).map(msgpack.packb))
def test_any_bytes_are_a_message_or_a_protocol_error(payload: bytes) -> None:
    read(payload)


@fuzzed
@given(st.sampled_from(sorted(GOLDEN)), st.lists(edits, min_size=1, max_size=6))
def test_damaged_bytes_are_a_message_or_a_protocol_error(name: str, changes: list[Any]) -> None:
    payload = bytearray.fromhex(GOLDEN[name])
    for place, removed, inserted in changes:
        start = place % (len(payload) + 1)
        payload[start : start + removed] = inserted
    read(bytes(payload))


def said(data: str) -> bytes:
    return wire(5, 1, 1, bytes.fromhex(data))


def anchored(more: object, parents: bytes = b"") -> bytes:
    return wire(4, 1, 1, 1, b"\5", b"\5", parents, more)


BAD = {
    "nothing": b"", "trailing bytes": wire(7, 1) + b"\0", "deep nesting": b"\x91" * 100_000 + b"\1",
    "a map": msgpack.packb({"sent_us": 1}), "no map": b"\x80", "a map in it": wire(7, 1, {"a": 1}),
    "an ext type": msgpack.packb(msgpack.ExtType(7, b"\1")), "an empty ext type": b"\xc7\x00\x07",
    "a timestamp": wire(7, 1, msgpack.Timestamp(1)), "a nest": b"\x92\7" + b"\x91" * 200 + b"\1",
    "no tag": wire(), "an unknown tag": wire(99, 1), "a tag that is no number": wire("Ping", 1),
    "a missing field": wire(8, 1), "a float for an int": wire(7, 1.0), "a bool": wire(7, True),
    "text for bytes": wire(3, 1, "", b"", []), "bytes for text": wire(9, b"code", "text"),
    "a list of ids": wire(5, 1, 1, [5, 6]), "text that is not UTF-8": b"\x93\x09\xa1a\xa1\xff",
    "half an id": said("0580"), "an id of 33 bits": said("ffffffff10"), "padded": said("058000"),
    "a padded 0": said("8000"), "an endless id": said("808080808001"), "half": said("ffffffff"),
    "a parent after its child": wire(4, 1, 1, 1, bytes(2), bytes(2), b"\0\2"),
    "half an anchor": anchored(bytes(7)), "a list of anchors": anchored([[0, 1]]),
    "too many anchors": anchored(bytes(5 * MAX_NODES + 5)), "no anchors": anchored(None),
    "a node that is not there": anchored(bytes(5), bytes([MAX_NODES])),
    "a prefix too large": wire(4, 1, 1, 1 << 32, b"", b""),
    "its own parent": wire(4, 1, 1, 1, b"", b"", b"\1"), "no list": wire(4, 1, 1, 1, b"", None),
    "too many token ids": wire(5, 1, 1, bytes(MAX_TOKENS + 1)),
    "too many confidences": wire(4, 1, 1, 1, bytes(4), bytes(MAX_NODES + 1)),
    "too many parents": wire(4, 1, 1, 1, bytes(4), bytes(2), bytes(MAX_NODES + 1)),
    "too many fields": wire(7, *range(64)), "a short digest": wire(1, 1, "m", bytes(31), 5),
    "too long a name": wire(9, "a" * 201, ""), "too long a text": wire(9, "", "a" * 1001),
    "a session too large": wire(6, MAX_SESSION + 1), "a negative session": wire(6, -1),
    "a position too large": wire(5, 1, (1 << 31) + 1, b""), "no tokens": wire(3, 1, b"", b"", [0]),
    "a proposal cut off": drawn(bytes((0, 1, 5, 0))), "no weight": drawn(bytes((0, 1, 5, 0, 0))),
    "a negative weight": drawn(bytes((0, 1, 5, 0, 0xBC))), "no support": drawn(bytes((0, 0))),
    "an infinite weight": drawn(bytes((0, 1, 5, 0, 0x7C))), "a place alone": drawn(bytes((0,))),
    "a token twice": drawn(bytes((0, 2, 5, 5, 0, 60, 0, 60))),
    "too many proposals": drawn(bytes((0, 1, 5, 0, 60)) * 66),
    "too many logprobs asked": wire(3, 1, b"", b"", [1], "exact", False, 21),
    "no repetition penalty": wire(3, 1, b"", b"", [1, 0.0, 0, 1.0, 0.0, 0, b"", False, 0.0]),
    "a presence penalty": wire(3, 1, b"", b"", [1, 0.0, 0, 1.0, 0.0, 0, b"", False, 1.0, 2.1]),
    "a NaN temperature": wire(3, 1, b"", b"", [1, float("nan")]),
    "top_p of 0": wire(3, 1, b"", b"", [1, 1.0, 0, 0.0]), "a finish": wire(5, 1, 1, b"", 0, 0, "?"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_breaks_a_rule_is_a_bad_message(name: str) -> None:
    assert read(BAD[name]) == Code.BAD_MESSAGE


def test_a_payload_over_the_limit_is_too_large_both_ways() -> None:
    assert read(bytes(MAX_PAYLOAD + 1)) == Code.TOO_LARGE
    with pytest.raises(ProtocolError) as caught:
        codec.encode(m.Open(1, Ids([MAX_ID]) * MAX_TOKENS, Ids([MAX_ID]) * MAX_TOKENS, SAMPLING))
    assert caught.value.code == Code.TOO_LARGE
    most = m.Open(1, Ids([MAX_ID] * MAX_TOKENS), Ids(range(MAX_TOKENS)), SAMPLING)
    assert read(codec.encode(most)) == most


def spelled_out(message: m.AnyMessage) -> list[Any]:
    """All fields of a message, also those that do not travel because they are at the default."""
    fields = [getattr(message, name) for name in message.__struct_fields__]
    tag = message.__struct_config__.tag
    return msgpack.unpackb(msgpack.packb([tag, *fields], strict_types=True, default=codec._plain))


@pytest.mark.parametrize("name", EXAMPLES)
def test_fields_of_a_later_release_are_ignored(name: str) -> None:
    fields = spelled_out(EXAMPLES[name])
    assert read(msgpack.packb([*fields, 1, "later", [b"x"], None])) == EXAMPLES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_default_that_is_spelled_out_is_read_and_does_not_travel(name: str) -> None:
    fields = spelled_out(EXAMPLES[name])
    assert read(msgpack.packb(fields)) == EXAMPLES[name]
    assert len(msgpack.unpackb(codec.encode(EXAMPLES[name]))) <= len(fields)


def test_a_seed_beyond_64_bits_is_refused_before_it_can_travel() -> None:
    assert m.Sampling(seed=(1 << 64) - 1).seed == (1 << 64) - 1
    with pytest.raises(ValueError, match=r"seed: Expected `int` < 2\*\*64"):
        m.Sampling(seed=1 << 64)
