"""Rows of JSON lines: what a user asks for, and the file that keeps what was answered."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

import strategies
from bus.errors import BadSetup
from bus.messages import Sampling
from bus.packed import Ids
from drafter_mlx.config import Drafts
from drafter_mlx.session import MAX_CHILDREN, Request

Row = dict[str, Any]
_DRAFTS = ("drafting", "acceptance")
_OPTIONS = ("num_draft_tokens", "window", "branches", "step_nodes")
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


def make_job(number: int, row: Row, sampling: Sampling, drafts: Drafts, encoder: Encoder) -> Job:
    """A row over the flags; BadSetup names the field that cannot be used."""
    where = f"prompt {number + 1}"
    known = {"prompt", "prompt_ids", "committed_ids", "lockstep", *_SAMPLING, *_DRAFTS, *_OPTIONS}
    if unknown := sorted(set(row) - known):
        raise BadSetup(
            f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )
    if ("prompt" in row) == ("prompt_ids" in row):
        raise BadSetup(f"{where}: give either prompt or prompt_ids")
    if not isinstance(row.get("prompt", ""), str):
        raise BadSetup(f"{where}: prompt is not a string")
    prompt = row["prompt_ids"] if "prompt_ids" in row else _encoded(where, row["prompt"], encoder)
    if not prompt:
        raise BadSetup(f"{where}: the prompt is empty; give it at least one token")
    chosen = {
        name: _ids(where, name, row[name]) if kind is Ids else _field(where, name, row[name], kind)
        for name, kind in _SAMPLING.items()
        if name in row
    }
    kinds = {name: Children if name == "branches" else Count for name in _OPTIONS}
    options = {name: _field(where, name, row[name], kinds[name]) for name in kinds if name in row}
    names = {name: _field(where, name, row[name], str) for name in _DRAFTS if name in row}
    drafts = replace(drafts, **names, options=replace(drafts.options, **options))
    try:
        strategies.load("drafting", drafts.drafting)
        sampling = msgspec.structs.replace(sampling, **chosen)
    except (BadSetup, ValueError) as error:
        raise BadSetup(f"{where}: {error}") from None
    request = Request(
        _ids(where, "prompt_ids", prompt),
        sampling,
        drafts.acceptance,
        _ids(where, "committed_ids", row.get("committed_ids", ())),
        _field(where, "lockstep", row.get("lockstep", False), bool),
        drafts.shared,
    )
    if (largest := max(*request.prompt, *request.committed, 0)) >= encoder.vocab_size:
        raise BadSetup(
            f"{where}: token id {largest} is outside the vocabulary of {encoder.vocab_size}"
        )
    return Job(number, request, drafts)


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


def _kept(path: Path) -> list[Row]:
    """The rows of an earlier run; a last line that was cut by a crash is left out."""
    lines = path.read_text("utf-8", "replace").splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            _ids(f"{path}:{number}", "token_ids", row["token_ids"])
            rows.append(row)
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise BadSetup(
                f"{path}:{number} is not an output row: choose another --out, or leave out --resume"
            ) from None
    return rows


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
                request = replace(job.request, committed=Ids(kept["token_ids"]))
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
