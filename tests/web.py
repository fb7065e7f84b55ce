"""Plain HTTP requests, without any client's help."""

import http.client
import json
import time
from collections.abc import Callable
from contextlib import closing
from urllib.parse import urlsplit


def connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)


def ask(
    url: str, path: str, body: bytes | None = None, method: str | None = None, **headers: str
) -> tuple[int, str]:
    """Status and text of an answer."""
    with closing(connect(url)) as connection:
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def post(url: str, path: str, body: dict) -> dict:
    """What a request that succeeds is answered."""
    status, text = ask(url, path, json.dumps(body).encode())
    assert status == 200, text
    return json.loads(text)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, "it never came to hold"
        time.sleep(0.02)


def wait_health(url: str, status: int) -> None:
    wait_until(lambda: ask(url, "/health")[0] == status)
