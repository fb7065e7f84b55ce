"""One process: the event loop in the main thread, the daemon in a thread of its own."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn

from bus.errors import BadSetup
from bus.sockets import is_loopback
from drafter_mlx.config import Config, Drafts, Serving
from drafter_mlx.desk import Desk
from drafter_mlx.http.front import Front
from drafter_mlx.http.prompts import Prompts
from drafter_mlx.http.server import Server

DRAIN_S = 10.0
"""Time that running requests get to finish after the first signal."""
LOOK_EVERY_S = 0.05


def serve(config: Config, serving: Serving, drafts: Drafts) -> None:
    """Serve until SIGTERM or SIGINT. BadSetup for what cannot be used as given."""
    check_open(serving, config.insecure)
    with _listening(serving.host, serving.port) as listener:
        front = Front(config, serving, drafts)
        asyncio.run(_Running(front, config, listener).run())


def check_open(serving: Serving, insecure: bool) -> None:
    """Refuse to let everybody in unless the user asked for it."""
    if serving.api_key == "":
        raise BadSetup("--api-key is empty; choose a long random one, or leave it out")
    if not (serving.api_key or insecure or is_loopback(serving.host)):
        raise BadSetup(
            f"{serving.host} is not a loopback address, and anybody could use the model: give an "
            "--api-key, or add --insecure if you trust the network"
        )


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise BadSetup(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port, "
            "or check --host"
        ) from None
    with listener:
        yield listener


class _Uvicorn(uvicorn.Server):
    """Leaves the signals to us: what runs may finish before the server stops."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Running:
    """What has to end together: the server, the daemon's thread, the signals' effect."""

    def __init__(self, front: Front, config: Config, listener: socket.socket) -> None:
        self._front = front
        self._config = config
        self._listener = listener
        self._server = _Uvicorn(uvicorn.Config(
            Server(front).app(), log_config=None, access_log=False, lifespan="off", ws="none",
            server_header=False, timeout_graceful_shutdown=2,
        ))  # fmt: skip
        self._desk: Desk | None = None
        self._failure: BaseException | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        thread = threading.Thread(target=self._work, args=(loop,), name="daemon", daemon=True)
        thread.start()
        host, port = self._listener.getsockname()[:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        print(f"listening {self._url}", flush=True)
        await self._server.serve(sockets=[self._listener])
        if self._desk is not None:
            self._desk.close()
        await asyncio.to_thread(thread.join, DRAIN_S)
        if self._failure is not None:
            raise self._failure

    def _stop(self) -> None:
        """The first signal drains; the next one ends the process at once."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        self._front.draining = True
        self._stopping = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while not self._front.idle:
                    await asyncio.sleep(LOOK_EVERY_S)
        self._front.end_all()
        self._server.should_exit = True

    # In the daemon's thread ------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        failure: BaseException | None = None
        try:
            self._load_and_run(partial(_call, loop))
        except BaseException as error:
            failure = error
        _call(loop, self._ended, failure)

    def _load_and_run(self, call: Callable[..., None]) -> None:
        # Imported late: MLX takes seconds, and the port answers before. A thread of MLX owns
        # what it has loaded, so that is done here too.
        from drafter_mlx.daemon import Daemon
        from drafter_mlx.model import load

        model = load(self._config)
        prompts = Prompts(model.tokenizer, model.vocabulary.size, self._front.serving.chat_template)
        daemon = Daemon(self._config, model)
        try:
            desk = Desk(daemon)
            call(self._open, desk, prompts)
            desk.run()
        finally:
            daemon.close()

    # In the event loop's thread --------------------------------------------------

    def _open(self, desk: Desk, prompts: Prompts) -> None:
        """The model is loaded."""
        self._desk = desk
        self._front.open(desk, prompts)
        self._announcing = asyncio.ensure_future(self._announce())
        if self._server.should_exit:
            desk.close()

    async def _announce(self) -> None:
        while self._front.trouble() is not None:
            await asyncio.sleep(LOOK_EVERY_S)
        print(f"ready {self._url}", flush=True)

    def _ended(self, failure: BaseException | None) -> None:
        """The daemon's thread is over: nothing can be served any more."""
        self._failure = failure
        self._front.end_all()
        self._server.should_exit = True


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(function, *args)
