"""A line of JSON for each pass: where its time went. For benchmarks and for finding out why."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from bus.errors import BadSetup
from bus.messages import Commit
from strategies.costs import Costs
from verifier_cuda.registry import Reply
from verifier_cuda.scheduler import Entry

_FLUSH_S = 0.5


class Watch:
    """Seconds of the parts of a loop's turn, one after another."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, part: str) -> None:
        """What was done since the last lap is `part`."""
        now = time.monotonic()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last
        self._last = now


class PassLog:
    """The file. Its first line has the pass times that were measured at start-up."""

    def __init__(self, path: Path, costs: Costs) -> None:
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadSetup(f"cannot write --pass-log {path}: {error.strerror}") from None
        self._flushed_at = 0.0
        self._write({"pass_times": {str(w): round(s, 7) for w, s in costs.known().items()}})

    def put(
        self, began: float, work: Sequence[Entry], replies: Sequence[Reply], watch: Watch
    ) -> None:
        """One pass over `work`, answered by `replies`; one that only reads prompts is left out."""
        widths = [len(entry.block.tokens) for entry in work if entry.selection is not None]
        if not widths:
            return
        read = sum(len(entry.block.tokens) for entry in work) - sum(widths)
        tokens = sum(len(r.message.tokens) for r in replies if isinstance(r.message, Commit))
        parts = {f"{name}_s": round(seconds, 7) for name, seconds in watch.parts.items()}
        counts = {"sessions": len(widths), "rows": sum(widths), "width": max(widths)}
        more = {"prompt_rows": read, "tokens": tokens}
        self._write({"at": round(began, 6), **counts, **more, **parts})

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
        now = time.monotonic()
        if now - self._flushed_at > _FLUSH_S:
            self._file.flush()
            self._flushed_at = now

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
