"""Rows of JSON lines: what a user asks for, and the file that keeps what was answered."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

import strategies
from bus.errors import BadSetup
from bus.messages import Sampling, Top
from bus.packed import Biases, Ids, Logprob
from drafter_mlx import logprobs as told
from drafter_mlx.config import Drafts
from drafter_mlx.request import Request
from drafter_mlx.session import MAX_CHILDREN
from strategies.drafting import OPTIONS

Row = dict[str, Any]
_PROMPT = ("prompt", "prompt_ids", "committed_ids", "lockstep", "logprobs")
_DRAFTS = ("drafting", "acceptance")
_SAMPLING = {field.name: field.type for field in msgspec.structs.fields(Sampling)}
Count = Annotated[int, msgspec.Meta(ge=1, le=256)]
Children = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHILDREN)]


@dataclass(frozen=True)
class Job:
    """One prompt with all that its row or the flags said."""

    number: int
    request: Request
    drafts: Drafts


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSON-lines file; BadSetup names the line that is not one."""
    try:
        lines = path.read_text("utf-8").split("\n")  # splitlines cuts at U+2028 too
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetup(f"cannot read {path}: {error}") from None
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadSetup(f"{path}:{number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise BadSetup(f"{path}:{number} is not an object with a prompt or prompt_ids")
        rows.append(row)
    if not rows:
        raise BadSetup(f'{path} holds no prompt; write one JSON object a line, with "prompt"')
    return rows


@dataclass(frozen=True)
class Encoder:
    """What rows need to know of a tokenizer."""

    encode: Callable[[str], list[int]]
    vocab_size: int


def make_job(
    number: int,
    row: Row,
    sampling: Sampling,
    drafts: Drafts,
    encoder: Encoder,
    logprobs: int | None = None,
) -> Job:
    """A row over the flags; BadSetup names the field that cannot be used."""
    where = f"prompt {number + 1}"
    known = {*_PROMPT, *_SAMPLING, *_DRAFTS, *OPTIONS}
    if unknown := sorted(set(row) - known):
        raise BadSetup(
            f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )
    drafts = _drafts(where, row, drafts)
    request = Request(
        _prompt(where, row, encoder),
        _sampling(where, row, sampling),
        drafts.acceptance,
        _ids(where, "committed_ids", row.get("committed_ids", ())),
        _field(where, "lockstep", row.get("lockstep", False), bool),
        _field(where, "logprobs", row.get("logprobs", logprobs), Top | None),
        shared=drafts.shared,
    )
    _check_ids(where, (*request.prompt, *request.committed), encoder)
    _check_ids(f"{where}: logit_bias", dict(request.sampling.logit_bias), encoder)
    return Job(number, request, drafts)


def _prompt(where: str, row: Row, encoder: Encoder) -> Ids:
    if ("prompt" in row) == ("prompt_ids" in row):
        raise BadSetup(f"{where}: give either prompt or prompt_ids")
    if not isinstance(row.get("prompt", ""), str):
        raise BadSetup(f"{where}: prompt is not a string")
    prompt = row["prompt_ids"] if "prompt_ids" in row else _encoded(where, row["prompt"], encoder)
    if not prompt:
        raise BadSetup(f"{where}: the prompt is empty; give it at least one token")
    return _ids(where, "prompt_ids", prompt)


def _drafts(where: str, row: Row, drafts: Drafts) -> Drafts:
    kinds = {name: Children if name == "branches" else Count for name in OPTIONS}
    options = {name: _field(where, name, row[name], kinds[name]) for name in kinds if name in row}
    names = {name: _field(where, name, row[name], str) for name in _DRAFTS if name in row}
    drafts = replace(drafts, **names, options=replace(drafts.options, **options))
    try:
        strategies.load("drafting", drafts.drafting)
    except BadSetup as error:
        raise BadSetup(f"{where}: {error}") from None
    return drafts


def _sampling(where: str, row: Row, sampling: Sampling) -> Sampling:
    special = {Ids: _ids, Biases: _biases}
    chosen = {
        name: special.get(kind, partial(_field, kind=kind))(where, name, row[name])
        for name, kind in _SAMPLING.items()
        if name in row
    }
    try:
        return msgspec.structs.replace(sampling, **chosen)
    except ValueError as error:
        raise BadSetup(f"{where}: {error}") from None


def _field(where: str, name: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadSetup(f"{where}: {name}: {error}") from None


def _encoded(where: str, prompt: str, encoder: Encoder) -> list[int]:
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise BadSetup(f"{where}: prompt holds half a surrogate pair, which is no text") from None
    return encoder.encode(prompt)


def _ids(where: str, field: str, value: Any) -> Ids:
    if not isinstance(value, list | tuple) or not all(
        type(token) is int and 0 <= token < 1 << 32 for token in value
    ):
        raise BadSetup(f"{where}: {field} is not a list of token ids")
    return Ids(value)


def _check_ids(where: str, ids: Iterable[int], encoder: Encoder) -> None:
    if (largest := max(ids, default=0)) >= encoder.vocab_size:
        raise BadSetup(
            f"{where}: token id {largest} is outside the vocabulary of {encoder.vocab_size}"
        )


def _biases(where: str, field: str, value: Any) -> Biases:
    """From an object {"id": value}."""
    try:
        return Biases(msgspec.convert(value, dict[int, float], str_keys=True).items())
    except ValueError as error:  # msgspec's own errors are some, too
        raise BadSetup(f"{where}: {field}: {error}") from None


def _kept(path: Path) -> list[Row]:
    """The rows of an earlier run; a last line that was cut by a crash is left out."""
    lines = path.read_text("utf-8", "replace").splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            _ids(f"{path}:{number}", "token_ids", row["token_ids"])
            _told(f"{path}:{number}", row)
            rows.append(row)
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise BadSetup(
                f"{path}:{number} is not an output row: choose another --out, or leave out --resume"
            ) from None
    return rows


def _told(where: str, row: Row) -> tuple[Logprob | None, ...]:
    """The logprobs of a kept row; none at all if nobody asked for them."""
    try:
        return told.from_rows(row["token_ids"], row["logprobs"]) if "logprobs" in row else ()
    except ValueError as error:
        raise BadSetup(f"{where}: logprobs: {error}") from None


class OutFile:
    """An output file that can be gone on from: finished rows stay, cut ones are replaced."""

    def __init__(self, path: Path, resume: bool) -> None:
        self._path = path.resolve()
        if self._path.exists() and not self._path.is_file():
            raise BadSetup(f"cannot write {path}: it is no file; choose another --out")
        self.rows: list[Row] = _kept(self._path) if resume and self._path.exists() else []

    def begin(self, jobs: list[Job]) -> list[Job]:
        """The jobs still to be done, with what is known of their text.

        Only now is the file written to. BadSetup when a kept row answers another prompt.
        """
        todo: list[Job] = []
        for job in jobs:
            kept = self.rows[job.number] if job.number < len(self.rows) else None
            if kept is not None and tuple(kept.get("prompt_ids", ())) != job.request.prompt:
                raise BadSetup(
                    f"row {job.number + 1} of {self._path.name} answers another prompt: give the "
                    "--prompts of the earlier run, or choose another --out"
                )
            if kept is None:
                todo.append(job)
            elif kept.get("finish_reason") == "error":
                committed, known = Ids(kept["token_ids"]), _told(self._path.name, kept)
                request = replace(job.request, committed=committed, told=known)
                todo.append(replace(job, request=request))
        try:
            self._write_all()
        except OSError as error:
            reason = error.strerror
            raise BadSetup(f"cannot write {self._path}: {reason}; choose another --out") from None
        return todo

    def put(self, number: int, row: Row) -> None:
        """Keep the output of an input row. Nothing that was kept before can be lost."""
        if number == len(self.rows):
            self.rows.append(row)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        else:
            self.rows[number] = row
            self._write_all()

    def _write_all(self) -> None:
        beside = self._path.with_name(self._path.name + ".partial")
        beside.write_text("".join(json.dumps(row) + "\n" for row in self.rows), "utf-8")
        os.replace(beside, self._path)
