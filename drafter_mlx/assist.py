"""`assist`: help with other drafters' sessions, for as long as the program runs."""

from collections.abc import Callable

import structlog

from bus.messages import Open
from drafter_mlx.config import Drafts
from drafter_mlx.daemon import Daemon
from drafter_mlx.piece import Piece
from drafter_mlx.request import Request
from drafter_mlx.session import Session

log = structlog.get_logger()


class Assistant:
    """Joins every session that is offered, and leaves those that are over."""

    def __init__(self, daemon: Daemon, drafts: Drafts, shared: int) -> None:
        """`shared` is the secret's word; the acceptance in `drafts` is not looked at."""
        self._daemon = daemon
        self._drafts = drafts
        self._helped: list[Session] = []
        daemon.talk.joined = shared

    def run(self, done: Callable[[], bool]) -> None:
        """Help until `done`, or until the verifier is given up (`talk.failure`)."""
        talk = self._daemon.talk
        while not done() and talk.failure is None:
            self._daemon.run(lambda: done() or bool(talk.offers) or bool(self._ended()))
            offers, talk.offers = talk.offers, {}
            self._helped += [self._join(offer) for offer in offers.values() if self._sound(offer)]
            for session in self._ended():
                self._leave(session)

    def _sound(self, offer: Open) -> bool:
        """True when the draft can read it; a verifier that is mistaken ends nobody."""
        ids = (*offer.prompt, *offer.committed)
        return bool(offer.prompt) and max(ids) < self._daemon.vocab_size

    def _join(self, offer: Open) -> Session:
        request = Request(offer.prompt, offer.sampling, offer.acceptance, offer.committed,
                          offer.lockstep, shared=offer.shared, guest=True)  # fmt: skip
        return self._daemon.start(request, self._drafts, _unseen, offer.session)

    def _ended(self) -> list[Session]:
        errors = self._daemon.talk.errors
        return [one for one in self._helped if one.finish or one.id in errors]

    def _leave(self, session: Session) -> None:
        self._helped.remove(session)
        self._daemon.forget(session)
        self._daemon.talk.errors.pop(session.id, None)
        log.info("helped", tokens=session.stats.tokens, drafters=len(session.stats.shares))


def _unseen(piece: Piece) -> None:
    """The text is shown where the session was opened."""
