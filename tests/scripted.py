"""A verifier on a real socket that commits what it was told to, and notes what it hears."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bus.messages import Close, Commit, Error, Hello, Limits, Message, Open, Ping, Pong, Welcome
from bus.packed import Ids
from bus.sockets import VerifierSocket

Pieces = Sequence[Sequence[int]]
MODEL = "scripted"


@dataclass
class Story:
    """What becomes of one session: pieces, one a Commit, then perhaps an end."""

    pieces: Pieces
    finish: str | None = "length"
    """None: nothing more comes, and the session stays open."""
    error: tuple[str, str] | None = None
    """Code and message of the answer to its Open."""


@dataclass
class _Told:
    story: Story
    start: int
    said: int = 0
    """Pieces that were committed."""

    def since(self, session: int, position: int) -> Commit:
        tokens = [token for piece in self.story.pieces[: self.said] for token in piece]
        finish = self.story.finish if self.said == len(self.story.pieces) else None
        return Commit(
            session, position, Ids(tokens[position - self.start :]), width=1, finish=finish
        )


@dataclass
class ScriptedVerifier:
    """Runs in a thread until closed. `story` says what becomes of an Open."""

    story: Callable[[Open], Story]
    port: int = 0
    boot_id: int = 1
    opened: list[Open] = field(default_factory=list)
    """Sessions in the order of their first Open."""
    closed: list[int] = field(default_factory=list)

    def __enter__(self) -> "ScriptedVerifier":
        self._socket = VerifierSocket("127.0.0.1", self.port)
        self.address = self._socket.address
        self.port = int(self.address.rsplit(":", 1)[1])
        self._sessions: dict[tuple[bytes, int], _Told] = {}
        self._over = threading.Event()
        self.go = threading.Event()
        """While it is clear, no piece but the first of a session is said."""
        self.go.set()
        self.heard = threading.Condition()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait_for(self, what: Callable[["ScriptedVerifier"], bool], within_s: float = 30) -> None:
        """Until `what` holds of this verifier."""
        with self.heard:
            assert self.heard.wait_for(lambda: what(self), within_s), (self.opened, self.closed)

    def _run(self) -> None:
        while not self._over.is_set():
            self._socket.wait(0.01)
            for arrival in self._socket.drain():
                with self.heard:
                    answer = self._answer(arrival.peer, arrival.content)
                    self.heard.notify_all()
                if answer is not None:
                    self._socket.send(arrival.peer, answer)
            for (peer, number), told in self._sessions.items():
                if told.said < len(told.story.pieces) and (self.go.is_set() or not told.said):
                    position = told.start + sum(map(len, told.story.pieces[: told.said]))
                    told.said += 1
                    self._socket.send(peer, told.since(number, position))
        self._socket.close()

    def _answer(self, peer: bytes, message: object) -> Message | None:
        match message:
            case Hello():
                limits = Limits(64, 2048, 256, 60_000)
                return Welcome(self.boot_id, MODEL, limits, ("exact",), Ids([0]))
            case Ping(sent_us=sent):
                return Pong(sent, 0)
            case Close(session=number):
                if self._sessions.pop((peer, number), None):
                    self.closed.append(number)
            case Open():
                return self._open(peer, message)
        return None

    def _open(self, peer: bytes, opened: Open) -> Message:
        key = (peer, opened.session)
        if key not in self._sessions:
            self.opened.append(opened)
            story = self.story(opened)
            if story.error is not None:
                return Error(*story.error, opened.session)
            told = self._sessions[key] = _Told(story, len(opened.prompt))
            while sum(map(len, story.pieces[: told.said])) < len(opened.committed):
                told.said += 1
        return self._sessions[key].since(opened.session, len(opened.prompt) + len(opened.committed))
