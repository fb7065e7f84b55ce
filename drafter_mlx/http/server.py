"""The routes, and the way from a request to its answer."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from drafter_mlx.http import openapi
from drafter_mlx.http.answers import Ended, Head, Health, Model, Models, Prompt, Tokens
from drafter_mlx.http.fields import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    logprobs_of,
    parse,
)
from drafter_mlx.http.front import Front
from drafter_mlx.http.guard import Guard, response
from drafter_mlx.http.metrics import CONTENT_TYPE
from drafter_mlx.http.plan import choices_of
from drafter_mlx.http.problems import Problem, encoded, unavailable, wrong
from drafter_mlx.http.stream import Stream, chunks
from drafter_mlx.http.work import Delta, deltas

MAX_BODY = 4 << 20
"""Bytes of a request's body; of a longer one, as many again are read to tell the client."""
T = TypeVar("T")


class Server:
    """The endpoints of one Front."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._created = int(time.time())

    def app(self) -> Starlette:
        """The ASGI application."""
        serving = self._front.serving
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", partial(self.generate, ChatBody), methods=["POST"]),
                Route("/v1/completions", partial(self.generate, CompletionBody), methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/v1/models/{model:path}", self.model),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Route("/openapi.json", self.document),
            ],
            middleware=[Middleware(Guard, api_key=serving.api_key, host=serving.host)],
            exception_handlers={
                Problem: lambda _, problem: response(problem),
                HTTPException: _by_status,
                ClientDisconnect: lambda *_: Response(status_code=400),
                Exception: lambda *_: response(Problem(500, "a bug of the server; see its log")),
            },
        )
        app.router.redirect_slashes = False
        return app

    async def generate(self, kind: type[ChatBody | CompletionBody], request: Request) -> Response:
        front = self._front
        office = front.working()
        body = parse(await body_of(request), kind)
        front.check_model(body.model)
        choices, seed = await to_thread.run_sync(
            choices_of, body, office.prompts, front.drafts, limiter=front.tokenizing
        )
        chat = kind is ChatBody
        head = Head(
            chat, f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}", int(time.time()),
            front.model_name(), front.fingerprint, seed, body.choices, bool(body.return_token_ids),
            None if logprobs_of(body) is None else office.prompts.name,
        )  # fmt: skip
        source = deltas(office.reception, choices)
        if not body.stream:
            ended = await attended(request, _gathered(source))
            return _json(head.whole(ended))
        rest = chunks(head, source, len(choices), body.usage_wanted)
        return Stream(await attended(request, anext(rest)), rest)

    async def models(self, request: Request) -> Response:
        verifier = self._front.standing.verifier
        return _json(Models([self._model(verifier.limits.max_model_len)] if verifier else []))

    async def model(self, request: Request) -> Response:
        verifier = self._front.standing.verifier
        if verifier is None:
            raise Problem(404, "no model is served now", "model", "model_not_found")
        self._front.check_model(request.path_params["model"])
        return _json(self._model(verifier.limits.max_model_len))

    def _model(self, max_model_len: int) -> Model:
        return Model(self._front.model_name(), self._created, max_model_len)

    async def tokenize(self, request: Request) -> Response:
        office = self._front.loaded()
        body = parse(await body_of(request), TokenizeBody)
        self._front.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise wrong("prompt", "give either prompt or messages")
        work = partial(
            office.prompts.ids, body.prompt, special=body.add_special_tokens is not False
        )
        if body.messages is not None:
            work = partial(office.prompts.of_messages, body.messages, body.chat_template_kwargs)
        ids = await to_thread.run_sync(work, limiter=self._front.tokenizing)
        verifier = self._front.standing.verifier
        return _json(Tokens(ids, len(ids), verifier.limits.max_model_len if verifier else None))

    async def detokenize(self, request: Request) -> Response:
        office = self._front.loaded()
        body = parse(await body_of(request), DetokenizeBody)
        self._front.check_model(body.model)
        work = partial(office.prompts.decode, body.tokens)
        return _json(Prompt(await to_thread.run_sync(work, limiter=self._front.tokenizing)))

    async def health(self, request: Request) -> Response:
        if (trouble := self._front.trouble()) is not None:
            raise unavailable(trouble)
        return _json(Health())

    async def metrics(self, request: Request) -> Response:
        return Response(self._front.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def document(self, request: Request) -> Response:
        return _json(openapi.document(version("draftbus")))


async def body_of(request: Request) -> bytes:
    """The request's body. Problem (413) when it is too large."""
    raw, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size <= MAX_BODY:
            raw += part
        elif size > 2 * MAX_BODY:
            break
    if size > MAX_BODY:
        raise Problem(413, f"the body is over {MAX_BODY} bytes", code="body_too_large")
    return bytes(raw)


async def attended(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`; ClientDisconnect, and its end, when the client hangs up before."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _gathered(source: AsyncGenerator[Delta, None]) -> list[Ended]:
    """All choices, in order."""
    ended: dict[int, Ended] = {}
    async with aclosing(source):
        async for delta in source:
            if delta.ended is not None:
                ended[delta.index] = delta.ended
    return [ended[index] for index in sorted(ended)]


def _by_status(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.url.path}: {error.detail.lower()}"
    answer = response(Problem(error.status_code, said))
    answer.headers.update(error.headers or {})
    return answer


def _json(value: Any) -> Response:
    return Response(encoded(value), media_type="application/json")
