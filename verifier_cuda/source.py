"""One drafter's part in one session: when its next draft is due, and how its guesses fare. Pure.

Times are seconds of the daemon's clock.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bus.messages import Draft, Share
from strategies.tree import DraftTree, Node
from verifier_cuda.planner import Pace, Prospect, prospect

_MISSES = 64
"""Tips that no draft foresaw, whose first drafts may still come and fit."""


@dataclass(frozen=True)
class Progress:
    """What a source has to know of its session."""

    tree: DraftTree
    committed_at: float
    """When the last Commit was made."""
    room: int
    """Tokens worth drafting."""
    chance: Callable[[Node], float]
    """Of a node, given that its parent was accepted."""


@dataclass(frozen=True)
class _Due:
    """A draft that is waited for, or could be."""

    at: float
    path: list[float]
    """Chances along the path that it is expected to continue."""


class Source:
    """A drafter of a session: the one that opened it, or a guest."""

    def __init__(self, peer: bytes, number: int, model: str, pace: Pace) -> None:
        self.peer = peer
        self.number = number
        """Of the session, on this drafter's connection."""
        self.model = model
        self.pace = pace
        """Shared by all sessions of this drafter."""
        self.present = True
        """False once a guest has left."""
        self.drafted = self.accepted = 0
        self._drafted_at = 0.0  # when a draft last arrived
        self._live = False  # whether the verifier was waiting when that draft arrived
        self._missed: dict[int, float] = {}  # tips that no draft foresaw, and when
        self.exhausted = False
        """Whether the last pass accepted a draft of it to the very end."""

    @property
    def share(self) -> Share:
        """What it gave so far."""
        return Share(self.model, self.drafted, self.accepted)

    def arrived(
        self, draft: Draft, depth: int, session: Progress, now: float, drained_at: float
    ) -> None:
        """Learn from a draft that was placed; the optimistic path was `depth` tokens deep before.

        It arrived between `drained_at`, the end of the drain before, and `now`.
        """
        tree, pace = session.tree, self.pace
        deeper = len(tree.chain()) - depth
        live = drained_at > session.committed_at  # nothing else was done meanwhile
        if self.exhausted and not live and deeper:
            self.exhausted = False
            pace.ahead.add(1.0)
        if draft.turnaround_us:
            waited_for = live and not depth and draft.position == tree.tip
            measured_s = now - session.committed_at if waited_for else draft.turnaround_us / 1e6
            pace.heard(measured_s)
            self._missed.pop(draft.position, None)
            if draft.position < tree.tip and draft.tokens and not any(draft.parents[:1]):
                # Too late to be verified, but not to be compared.
                pace.alpha.add(float(draft.tokens[0] == tree.tokens[draft.position]))
            if not depth:
                pace.burst.add(deeper)
        elif live and self._live and self._drafted_at < drained_at:
            pace.interval_s.add(now - self._drafted_at)
            pace.growth.add(deeper)
        self._drafted_at, self._live = now, live

    def starts(self, session: Progress, now: float) -> None:
        """A pass starts with what is there; learn from what is not."""
        if self.exhausted:
            self.exhausted = False
            self.pace.ahead.add(0.0)
        due = self._due(session, now)
        if due is None or now < due.at + self.pace.slack_s or due.at < session.committed_at:
            return
        if len(session.tree):
            self.pace.growth.add(0.0)
        else:
            self.pace.missed(now - session.committed_at)

    def missed(self, tip: int, now: float) -> None:
        """No draft foresaw this tip."""
        self._missed[tip] = now
        self._missed = dict(list(self._missed.items())[-_MISSES:])

    def learn(self, guess: Node, right: bool) -> None:
        """The text has come to a guess that this source was the first to send."""
        self.pace.calibration.saw(guess.rank, guess.confidence, right)
        if guess.rank == 0:
            self.pace.alpha.add(float(right))

    def prospect(self, session: Progress, pass_s: float, now: float) -> Prospect | None:
        """What waiting for its drafts promises, when a pass takes `pass_s`."""
        due = self._due(session, now)
        if due is None or now >= due.at + self.pace.slack_s:
            return None
        return prospect(self.pace, due.path, due.at, pass_s, now)

    def _due(self, session: Progress, now: float) -> _Due | None:
        """The next draft that may fit; None when there is none to wait for.

        A drafter that has never sent anything is not waited for: its first draft comes
        anyway, if it comes, and then says how long it took.
        """
        pace, tip, chain = self.pace, session.tree.tip, session.tree.chain()
        turnaround_s = pace.turnaround_s.value
        if turnaround_s is None or len(chain) >= session.room:
            return None
        if chain:
            since = max(session.committed_at, self._drafted_at)
            interval_s = pace.interval_s.value or turnaround_s
            return _Due(since + interval_s, [*map(session.chance, chain)])
        # The answers to earlier corrections may still fit, if they guessed right.
        ahead = {at + turnaround_s: tip - asked for asked, at in self._missed.items()}
        last = max(ahead, default=session.committed_at + turnaround_s)
        at = min((at for at in ahead if at > now), default=last)
        return _Due(at, [pace.alpha.value or 0.0] * ahead.get(at, 0))
