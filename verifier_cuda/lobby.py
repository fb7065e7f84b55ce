"""Sessions that other drafters may join: who knows a session's secret may draft for it. Pure."""

from msgspec.structs import replace

from bus.messages import Commit, Open
from bus.packed import Ids, Logprobs
from verifier_cuda.planner import Pace
from verifier_cuda.session import Session
from verifier_cuda.source import Source

FIRST_OFFER = 1 << 31
"""Numbers of offered sessions start here, so that drafters' own are below."""
MAX_DRAFTERS = 16
"""Drafters that may ever take part in one session."""


class Lobby:
    """The shared sessions of one verifier, by the number under which they are offered."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self.added = 0
        """Sessions that were ever offered."""

    def add(self, session: Session) -> None:
        """Offer a session from now on, if it may be."""
        if session.opened.shared:
            self._sessions[FIRST_OFFER + self.added] = session
            self.added = (self.added + 1) % FIRST_OFFER

    def remove(self, session: Session) -> None:
        """Offer a session no more, if it was."""
        if session.opened.shared:
            self._sessions = {
                number: known for number, known in self._sessions.items() if known is not session
            }

    def offers(self, shared: int, peer: bytes, since: int = 0) -> list[Open]:
        """The sessions under a secret that `peer` takes no part in, but for the first `since`."""
        return [
            self._offer(number, session)
            for number, session in self._sessions.items()
            if shared and session.opened.shared == shared and number >= FIRST_OFFER + since
            if all(source.peer != peer or not source.present for source in session.sources)
        ]

    def enter(self, opened: Open, peer: bytes, model: str, pace: Pace) -> Session | None:
        """The session whose offer `opened` takes, with `peer` as one of its drafters.

        None when it is over, another one, its own, or has too many drafters.
        """
        session = self._sessions.get(opened.session)
        if session is None or not opened.shared:
            return None
        # The text is told to guests, and nothing that was asked for about it.
        asked = replace(opened, guest=False, logprobs=session.opened.logprobs)
        if not session.matches(asked):
            return None
        opener, *guests = session.sources
        known = next((guest for guest in guests if guest.peer == peer), None)
        if opener.peer == peer or (known is None and len(session.sources) >= MAX_DRAFTERS):
            return None
        if known is None:
            session.sources.append(Source(peer, opened.session, model, pace))
        else:
            known.present = True
        return session

    @staticmethod
    def _offer(number: int, session: Session) -> Open:
        opened, text = session.opened, session.tree.tokens[session.prompt_length :]
        return Open(number, opened.prompt, Ids(text), opened.sampling, opened.acceptance,
                    opened.lockstep, shared=opened.shared, guest=True)  # fmt: skip


def for_guest(commit: Commit, number: int) -> Commit:
    """What a guest is told, who knows the session by `number`."""
    return replace(commit, session=number, logprobs=Logprobs())
