"""Logprobs as rows of JSON have them. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bus.packed import Logprob


class Likely(msgspec.Struct):
    """One of the likeliest tokens of a place."""

    id: int
    logprob: float


class Told(msgspec.Struct):
    """What was told of one token of the text."""

    id: int
    logprob: float
    top: list[Likely]


def to_rows(ids: Sequence[int], logprobs: Sequence[Logprob | None]) -> list[Any]:
    """For each token an object; None where nothing was told."""
    return [
        None if known is None else msgspec.to_builtins(
            Told(token, known.value, [Likely(*likely) for likely in known.top]))
        for token, known in zip(ids, logprobs, strict=True)
    ]  # fmt: skip


def from_rows(ids: Sequence[int], rows: Any) -> tuple[Logprob | None, ...]:
    """What `to_rows` wrote for `ids`. ValueError when it is something else."""
    entries = msgspec.convert(rows, list[Told | None])
    if [entry.id if entry else token for entry, token in zip(entries, ids, strict=True)] != [*ids]:
        raise ValueError("logprobs of other tokens")
    return tuple(
        None if entry is None else
        Logprob(entry.logprob, tuple((each.id, each.logprob) for each in entry.top))
        for entry in entries
    )  # fmt: skip
