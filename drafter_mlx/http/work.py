"""The texts of one HTTP request while they are made."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial

from drafter_mlx.config import Drafts
from drafter_mlx.desk import Over
from drafter_mlx.http.answers import Ended, Finish
from drafter_mlx.http.logprobs import Told
from drafter_mlx.http.metrics import Watch
from drafter_mlx.http.problems import problem_of, unavailable
from drafter_mlx.http.reception import Entry, Reception
from drafter_mlx.http.text import Text
from drafter_mlx.piece import Piece
from drafter_mlx.request import Request

Event = tuple[int, Piece | Over]


@dataclass(frozen=True)
class Choice:
    """What one text is made of."""

    request: Request
    drafts: Drafts
    text: Text


@dataclass(frozen=True)
class Delta:
    """More of one choice; its last delta has `ended`, with the whole text."""

    index: int
    text: str
    told: Told
    ended: Ended | None = None

    @property
    def finish(self) -> Finish | None:
        return self.ended.finish if self.ended else None


async def deltas(reception: Reception, choices: Sequence[Choice]) -> AsyncGenerator[Delta, None]:
    """All choices at once, as they come. Problem when one of them fails.

    However it ends, nothing of it stays behind: not at the desk, not at the verifier.
    """
    events = asyncio.Queue[Event]()
    entries = [
        Entry(choice.request, choice.drafts, partial(_put, events, index), Watch())
        for index, choice in enumerate(choices)
    ]
    said = [""] * len(choices)
    reception.admit(entries)
    left = len(choices)
    try:
        while left:
            index, event = await events.get()
            delta = _delta(index, choices[index].text, event, said[index])
            said[index] += delta.text
            left -= delta.ended is not None
            if choices[index].text.stopped and not delta.ended:
                reception.dismiss(entries[index])
            if delta.text or delta.told or delta.ended:
                yield delta
    finally:
        for entry in entries:
            reception.dismiss(entry)


def _put(events: asyncio.Queue[Event], index: int, event: Piece | Over) -> None:
    events.put_nowait((index, event))


def _delta(index: int, text: Text, event: Piece | Over, said: str) -> Delta:
    before = len(text.tokens)
    if isinstance(event, Piece):
        logprobs = event.logprobs or [None] * len(event.tokens)
        parts = zip(event.tokens, event.origins, logprobs, strict=True)
        more = "".join(text.add(token, origin != "end", known) for token, origin, known in parts)
        return Delta(index, more, text.told[before:])
    if event.error is not None and not text.stopped:
        raise problem_of(event.error)
    rest = text.end()
    finish = "stop" if text.stopped else event.finish
    if finish is None:
        raise unavailable("the text was given up")
    return Delta(index, rest, (), Ended(said + rest, text.told, finish, event.stats))
