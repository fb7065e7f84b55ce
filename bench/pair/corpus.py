"""The text of the tiny pair: the running interpreter's standard library.

The split between training and held-out files is a function of a file's name
alone, so it is the same on every machine and for every Python version.
"""

import hashlib
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

HELD_OUT_SHARE = 13  # of 256: about one file in twenty
SKIPPED = ("site-packages", "__pycache__", "encodings", "pydoc_data", "lib2to3")
"""Folders left out: other people's packages, and generated tables that are not code."""


def name_hash(relative: str) -> bytes:
    """SHA-256 of a file's path relative to the library's root, with forward slashes."""
    return hashlib.sha256(relative.encode()).digest()


def is_held_out(relative: str) -> bool:
    """True for the files that training never sees."""
    return name_hash(relative)[0] < HELD_OUT_SHARE


def files(held_out: bool, root: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield `(relative path, text)` of one half of the split, ordered by path hash.

    The order looks random but never changes, so the first n files are a fair
    sample. Files that are not UTF-8 or shorter than 400 characters are left out.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    named = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    for relative in sorted(named, key=name_hash):
        if is_held_out(relative) is not held_out or set(relative.split("/")) & set(SKIPPED):
            continue
        try:
            text = named[relative].read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if len(text) >= 400:
            yield relative, text


def held_out_prompts(
    encode: Callable[[str], list[int]], count: int, length: int = 96
) -> list[tuple[str, list[int]]]:
    """The first `count` held-out files, each cut to its first `length` tokens.

    Only files of at least twice that length are taken, so a prompt never holds
    a whole file. Returns `(relative path, token ids)`.
    """
    prompts: list[tuple[str, list[int]]] = []
    for relative, text in files(held_out=True):
        ids = encode(text[: 16 * length])
        if len(ids) >= 2 * length and len(prompts) < count:
            prompts.append((relative, ids[:length]))
    if len(prompts) < count:
        raise ValueError(
            f"the standard library of this interpreter has only {len(prompts)} held-out "
            f"files of {2 * length} tokens; {count} were asked for"
        )
    return prompts
