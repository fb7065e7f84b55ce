"""Biases and logprobs: what is refused, and what their numbers are rounded to."""

import struct

import numpy as np
import pytest

from bus import codec
from bus.messages import MAX_PAYLOAD, Commit
from bus.packed import MAX_BIASES, MAX_ID, MAX_TOP, Bias, Biases, Ids, Logprob, Logprobs

ONE = struct.pack("<f", -1.0)


def bias(token: int, value: float) -> bytes:
    return Ids((token,)).pack() + struct.pack("<f", value)


BAD_BIASES = {
    "twice": bias(5, 1.0) + bias(5, 2.0), "too large": bias(5, 100.1), "half": bias(5, 1.0)[:3],
    "too small": bias(5, -101.0), "NaN": bias(5, float("nan")), "infinite": bias(5, float("inf")),
    "too many": b"".join(bias(token, 1.0) for token in range(MAX_BIASES + 1)), "no id": b"\x80",
}  # fmt: skip
BAD_LOGPROBS = {
    "a chance over 1": struct.pack("<fB", 0.1, 0), "no length": ONE, "cut off": ONE[:2],
    "NaN": struct.pack("<fB", float("nan"), 0), "no chance": struct.pack("<fB", -np.inf, 0),
    "a likely one cut off": ONE + bytes((1, 5, 0, 0)), "ids cut off": ONE + bytes((2, 5)),
    "a likely one twice": ONE + bytes((2, 5, 5)) + 2 * ONE,
    "a likely one with a chance over 1": ONE + bytes((1, 5)) + struct.pack("<f", 0.1),
    "too many": ONE + bytes((MAX_TOP + 1, *range(MAX_TOP + 1))) + (MAX_TOP + 1) * ONE,
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BIASES)
def test_biases_that_break_a_rule_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"bias|ids?\b"):
        Biases.unpack(BAD_BIASES[name])


@pytest.mark.parametrize("name", BAD_LOGPROBS)
def test_logprobs_that_break_a_rule_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"logprob|ids"):
        Logprobs.unpack(BAD_LOGPROBS[name])


@pytest.mark.parametrize(
    "entries", [[(-1, 1.0)], [(MAX_ID + 1, 1.0)], [(1, 1.0), (1, 1.0)], [(1, float("nan"))]]
)
def test_bad_biases_cannot_even_be_made(entries: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="bias"):
        Biases(entries)


def test_a_bias_is_rounded_where_it_is_made() -> None:
    made = Biases([(5, 0.1), (70000, -100)])
    assert made == (Bias(5, float(np.float32(0.1))), Bias(70000, -100.0))
    assert Biases.unpack(made.pack()) == made
    assert Biases([(token, 1.0) for token in range(MAX_BIASES)])


@pytest.mark.parametrize("top", [0, 1, MAX_TOP])
def test_as_many_logprobs_as_are_said_to_fit_do(top: int) -> None:
    count = Logprobs.most(top, MAX_PAYLOAD - 1000)
    likely = tuple((MAX_ID - number, -1.0) for number in range(top))
    full = Commit(1, 0, Ids([MAX_ID] * count), logprobs=Logprobs([Logprob(-1.0, likely)] * count))
    assert len(codec.encode(full)) <= MAX_PAYLOAD
