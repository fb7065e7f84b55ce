"""Prompts: where they come from, how they are cut, and which half tunes.

What is tuned is tuned on other prompts than those that are reported. The split is
a function of a prompt's tokens and a seed, so it is the same in every run.
"""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.pair import corpus
from bus.errors import BadSetup

Encode = Callable[[str], list[int]]
FIELDS = ("prompt_ids", "prompt", "question", "turns")
"""What a row may call its prompt: ours, HumanEval's, GSM8K's, Spec-Bench's (the first turn)."""


@dataclass(frozen=True)
class Prompt:
    """One prompt and where it came from."""

    name: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Halves:
    """Prompts to tune on, and prompts to report on; no prompt is in both."""

    tuning: tuple[Prompt, ...]
    reporting: tuple[Prompt, ...]


def load(paths: Sequence[Path], encode: Encode, length: int) -> list[Prompt]:
    """The prompts of all files, or the held-out standard library's; cut to `length` tokens.

    No two are equal after the cut. BadSetup names the file and line that cannot be used.
    """
    found = (
        (prompt for path in paths for prompt in read(path, encode))
        if paths
        else _standard_library(encode, length)
    )
    unique: dict[tuple[int, ...], Prompt] = {}
    for prompt in found:
        ids = prompt.ids[:length]
        unique.setdefault(ids, Prompt(prompt.name, ids))
    return list(unique.values())


def read(path: Path, encode: Encode) -> Iterator[Prompt]:
    """The prompts of a JSON-lines file, which may be gzipped; BadSetup where it is none."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadSetup(f"{where} is not JSON: {error}") from None
        yield Prompt(f"{path.name}:{number}", tuple(_ids(where, row, encode)))


def split(prompts: Iterable[Prompt], seed: int) -> Halves:
    """Two halves, in an order that looks random and depends on tokens and seed alone."""

    def place(prompt: Prompt) -> bytes:
        return hashlib.sha256(repr((seed, prompt.ids)).encode()).digest()

    ordered = sorted(prompts, key=place)
    return Halves(tuple(ordered[0::2]), tuple(ordered[1::2]))


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8").split("\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadSetup(f"cannot read prompts from {path}: {error}") from None


def _ids(where: str, row: Any, encode: Encode) -> list[int]:
    field = next((name for name in FIELDS if isinstance(row, dict) and name in row), None)
    if field is None:
        raise BadSetup(f"{where} has none of the fields {', '.join(FIELDS)}")
    value = row[field]
    if field == "prompt_ids":
        if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
            raise BadSetup(f"{where}: prompt_ids is not a list of token ids")
        ids = value
    else:
        text = value[0] if field == "turns" and isinstance(value, list) and value else value
        if not isinstance(text, str):
            raise BadSetup(f"{where}: {field} holds no text")
        ids = encode(text)
    if not ids:
        raise BadSetup(f"{where}: the prompt is empty")
    return ids


def _standard_library(encode: Encode, length: int) -> Iterator[Prompt]:
    """The beginnings of held-out files at least twice as long as the prompt."""
    for relative, text in corpus.files(held_out=True):
        ids = encode(text[: 16 * length])
        if len(ids) >= 2 * length:
            yield Prompt(relative, tuple(ids))
