"""Who may ask at all: a key, or, on a loopback address without one, no web page of a stranger.

A page in this machine's browser can reach a loopback port, directly or under a
name that its owner points at 127.0.0.1 (DNS rebinding). Browsers tell on it by
Host and Origin; curl and clients send a loopback Host and no Origin.
"""

import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bus.sockets import is_loopback
from drafter_mlx.http.problems import Problem, encoded

OPEN = frozenset({"/health"})
"""Paths that need no key."""


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, api_key: str | None, host: str) -> None:
        """`host` is the address listened on."""
        self._app = app
        self._key = api_key
        self._local = is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = self._check(scope["path"], Headers(scope=scope))
            if problem is not None:
                await response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Mapping[str, str]) -> Problem | None:
        if self._key is not None:
            given = headers.get("authorization", "").removeprefix("Bearer ").encode()
            if path in OPEN or secrets.compare_digest(given, self._key.encode()):
                return None
            return Problem(401, "send the header `Authorization: Bearer KEY` with the key that "
                           "--api-key was given", code="invalid_api_key")  # fmt: skip
        if self._local and not _here(f"//{headers.get('host', 'localhost')}"):
            return Problem(403, "this server listens to its own machine, and the Host header names "
                           "another", code="foreign_host")  # fmt: skip
        if self._local and not _here(headers.get("origin", "//localhost")):
            return Problem(403, "pages of other sites may not use this server; --api-key opens it "
                           "to whoever has the key", code="foreign_origin")  # fmt: skip
        return None


def _here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def response(problem: Problem) -> Response:
    """The answer that a Problem is."""
    return Response(encoded(problem.body), problem.status, problem.headers, "application/json")
