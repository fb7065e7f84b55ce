"""Server-sent events: one text after another's piece, and an end that says so."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from drafter_mlx.http.answers import Ended, Head
from drafter_mlx.http.problems import Problem, encoded
from drafter_mlx.http.work import Delta

DONE = "[DONE]"
Chunks = AsyncGenerator[str, None]


async def chunks(
    head: Head, source: AsyncGenerator[Delta, None], count: int, with_usage: bool
) -> Chunks:
    """The `data` of each event, for `count` choices. Problem before the first; later, an event."""
    teller = _Teller(head, count, with_usage)
    begun = False
    async with aclosing(source):
        try:
            async for delta in source:
                for chunk in teller.tell(delta):
                    begun = True
                    yield encoded(chunk).decode()
            if with_usage:
                yield encoded(head.summary(teller.ended)).decode()
        except Problem as problem:
            if not begun:
                raise
            yield encoded(problem.body).decode()
    yield DONE


class _Teller:
    """Makes chunks of deltas."""

    def __init__(self, head: Head, count: int, with_usage: bool) -> None:
        self._head = head
        self._count = count
        self._extra: dict[str, Any] = {"usage": None} if with_usage else {}
        self._greeted = set[int]()
        self._ended: dict[int, Ended] = {}
        self._told: dict[int, int] = {}  # characters of the tokens told of

    @property
    def ended(self) -> list[Ended]:
        """The choices that are over, in order."""
        return [self._ended[index] for index in sorted(self._ended)]

    def tell(self, delta: Delta) -> Iterator[Any]:
        head, index = self._head, delta.index
        if head.chat and index not in self._greeted:
            self._greeted.add(index)
            yield head.greeting(index, **self._extra)
        if delta.text or (delta.told and head.tells):
            yield head.chunk(index, delta.text, delta.told, offset=self._offset(delta),
                             **self._extra)  # fmt: skip
        if delta.ended is not None:
            self._ended[index] = delta.ended
            last = len(self._ended) == self._count
            closing = head.closing(self.ended) if last else {}
            yield head.chunk(index, "", (), delta.finish, **self._extra, **closing)

    def _offset(self, delta: Delta) -> int:
        """Where the tokens of a delta begin."""
        start = self._told.get(delta.index, 0)
        self._told[delta.index] = start + self._head.length(delta.told)
        return start


class Stream(EventSourceResponse):
    """Sends chunks, the first of which is there already; whatever happens, their source ends."""

    def __init__(self, first: str, rest: Chunks) -> None:
        self._rest = rest
        super().__init__(_after(first, rest), sep="\n")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            await super().__call__(scope, receive, send)


async def _after(first: str, rest: Chunks) -> AsyncGenerator[dict[str, str], None]:
    yield {"data": first}
    async for chunk in rest:
        yield {"data": chunk}
