"""What a person sees in a terminal: text in colours, then a table."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drafter_mlx.piece import Origin, Piece

COLOURS: Mapping[Origin, str] = {
    "accepted": "green",
    "correction": "blue",
    "bonus": "cyan",
    "plain": "default",
}
CONTEXT_LINES = 3
"""Lines of the prompt that are shown above its text."""
LEGEND = Text.assemble(
    ("accepted draft", COLOURS["accepted"]), "  ", ("correction", COLOURS["correction"]), "  ",
    ("bonus", COLOURS["bonus"]), "  without draft",
)  # fmt: skip


class Stream:
    """Shows one text while it is committed."""

    def __init__(self, detokenizer: Any, console: Console | None = None) -> None:
        """`detokenizer` is a fresh streaming one of mlx-lm."""
        self._console = console or Console(highlight=False)
        self._detokenizer = detokenizer

    def begin(self, prompt: str) -> None:
        """Start a new text below the end of its prompt."""
        self._detokenizer.reset()
        tail = "".join(prompt.splitlines(keepends=True)[-CONTEXT_LINES:])
        self._console.print(Text(tail, "dim"), end="", soft_wrap=True)

    def __call__(self, piece: Piece) -> None:
        """Print a piece; a character that is not complete yet waits for the next one."""
        for token, origin in zip(piece.tokens, piece.origins, strict=True):
            if origin != "end":
                self._detokenizer.add_token(token)
                self._print(COLOURS[origin])

    def finish(self, row: Mapping[str, Any], with_table: bool) -> None:
        """Print what is left of the text, what the colours mean, and perhaps statistics."""
        self._detokenizer.finalize()
        self._print(COLOURS["plain"])
        self._console.print("\n", LEGEND, *([statistics(row)] if with_table else [""]), sep="\n")

    def _print(self, colour: str) -> None:
        segment = self._detokenizer.last_segment
        if segment:
            self._console.print(Text(segment, colour), end="", soft_wrap=True)


def statistics(row: Mapping[str, Any]) -> Table:
    """The table under a completed prompt, from a row of `complete`."""
    timings, metrics = row["timings"], row["metrics"]
    spec, own = metrics["speculative_decoding"], metrics["draftbus"]
    speed = number(timings["predicted_per_second"])
    size = number(per_token(own["wire_bytes"], timings["predicted_n"]))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in (
        ("finish reason", row["finish_reason"]),
        ("prompt", f"{timings['prompt_n']} tokens in {timings['prompt_ms']:.0f} ms"),
        ("text", f"{timings['predicted_n']} tokens, {speed} tokens/s"),
        ("acceptance α", number(own["alpha"], 2)),
        ("mean accepted length", number(spec["mean_acceptance_length"], 2)),
        ("drafted / accepted", f"{timings['draft_n']} / {timings['draft_n_accepted']}"),
        ("rollbacks", f"{own['rollbacks']} ({own['rollback_depth_tokens']} tokens)"),
        ("hedge hits", own["hedge_hits"]),
        ("passes / without drafts", f"{spec['num_spec_steps']} / {own['empty_passes']}"),
        ("payload bytes per token", size),
    ):
        table.add_row(str(name), str(value))
    return table


def per_token(total: float | None, tokens: int) -> float | None:
    """A total over the number of tokens; None when either is missing."""
    return None if total is None or not tokens else total / tokens


def number(value: float | None, digits: int = 1) -> str:
    """A number for a table; a dash when there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
