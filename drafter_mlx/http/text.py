"""The text of one choice: whole characters only, up to the first stop string. Pure."""

from collections.abc import Sequence
from typing import Any

from bus.packed import Logprob
from drafter_mlx.http.logprobs import Told

CONTEXT = 8
"""Last tokens of the prompt that a detokenizer reads first: a text in the middle of another keeps
its leading space."""


class Text:
    """Makes text of tokens. Nothing it has handed out is ever taken back."""

    def __init__(self, detokenizer: Any, prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        """`detokenizer` is a fresh streaming one of mlx-lm."""
        self.stopped = False
        """True once a stop string was reached; it is not part of the text."""
        self.tokens: list[int] = []
        """Those the text was made of, up to the one that completed a stop string."""
        self.logprobs: list[Logprob | None] = []
        """Of each of them."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._held = ""
        for token in prompt[-CONTEXT:]:
            detokenizer.add_token(token)
        _ = detokenizer.last_segment

    def add(self, token: int, shown: bool = True, logprob: Logprob | None = None) -> str:
        """What is sure after one more token. An end id is counted, and not `shown`."""
        if self.stopped:
            return ""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if not shown:
            return ""
        self._detokenizer.add_token(token)
        return self._sure(self._detokenizer.last_segment)

    @property
    def told(self) -> Told:
        """The tokens with their logprobs."""
        return list(zip(self.tokens, self.logprobs, strict=True))

    def end(self) -> str:
        """The rest: no more tokens will come."""
        if self.stopped:
            return ""
        self._detokenizer.finalize()
        sure = self._sure(self._detokenizer.last_segment)
        rest, self._held = self._held, ""
        return sure + rest

    def _sure(self, segment: str) -> str:
        """What cannot be part of a stop string any more; the rest is held back."""
        self._held += segment
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:  # the one that was complete first; the longest of those
            self.stopped = True
            sure, self._held = self._held[: min(found)[1]], ""
            return sure
        begun = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - begun
        sure, self._held = self._held[:cut], self._held[cut:]
        return sure


def _overlap(text: str, stop: str) -> int:
    """The length of the longest beginning of `stop` that `text` ends with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
