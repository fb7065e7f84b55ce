"""One session at the verifier: its text, its draft tree, and what has been cached. Pure."""

from dataclasses import dataclass

import msgspec

from bus.messages import MAX_PAYLOAD, Commit, Draft, Finish, Open, Timings
from bus.packed import Ids, Logprobs
from strategies.acceptance import Acceptance, Rows, TargetView, Verdict
from strategies.penalties import Adjustment
from strategies.tree import DraftTree, Node
from verifier_cuda.planner import Pace, Prospect, Selection, prospect, select

_LOCKSTEP_S = 0.5
"""How long a session in lockstep waits for a draft."""
_MISSES = 64
"""Tips that no draft foresaw, whose first drafts may still come and fit."""


@dataclass(frozen=True)
class _Due:
    """A draft that is waited for, or could be. Times in seconds of the daemon's clock."""

    at: float
    path: list[float]
    """Chances along the path that it is expected to continue."""


class Session:
    """A prompt being continued.

    `cached` counts the tokens whose keys and values the slot holds; everything
    up to the last committed token, exclusive, is cached before the session decodes.
    """

    def __init__(
        self,
        opened: Open,
        acceptance: Acceptance,
        stop_ids: frozenset[int],
        max_model_len: int,
        max_tree_nodes: int,
        pace: Pace | None = None,
    ) -> None:
        self.id = opened.session
        self.opened = opened
        self.sampling = opened.sampling
        self.acceptance = acceptance
        self.prompt_length = len(opened.prompt)
        self.tree = DraftTree(
            (*opened.prompt, *opened.committed), max_tree_nodes, self.prompt_length
        )
        self.pace = pace or Pace()
        """Shared by all sessions of one drafter."""
        self.cached = 0
        self.slot: int | None = None
        self.finish: Finish | None = None
        self.dropped_drafts = 0
        self.committed_at = 0.0
        """When the last Commit was made, in seconds of the daemon's clock."""
        self.served_at = 0.0
        """When the session was last part of a pass."""
        self.drafted_at = 0.0
        """When a draft last arrived."""
        self._live = False  # whether the verifier was waiting when that draft arrived
        self._missed: dict[int, float] = {}  # tips that no draft foresaw, and when
        self._exhausted = False  # whether the last pass accepted a draft to its very end
        self.prefill_s = 0.0
        self.reused = 0
        """Tokens that needed no reading; told with the first Commit."""
        self._logprobs: list[bytes] = []  # packed, of the last tokens; with tuples it were tenfold
        own_ends = frozenset() if self.sampling.ignore_eos else stop_ids
        self._ends = own_ends | frozenset(self.sampling.stop_ids)
        self._last = min(self.prompt_length + self.sampling.max_tokens, max_model_len)
        if opened.committed and opened.committed[-1] in self._ends:
            self.finish = "stop"
        elif self.tree.tip >= self._last:
            self.finish = "length"

    def reuse(self, shared: int) -> None:
        """The slot holds the first `shared` tokens already, from an earlier session."""
        self.cached = self.reused = min(shared, self.tree.tip - 1)

    @property
    def unread(self) -> int:
        """Tokens to prefill before the session can decode."""
        return self.tree.tip - 1 - self.cached

    def matches(self, opened: Open) -> bool:
        """True when `opened` asks for this very text and has seen no more of it than there is."""
        seen = (*opened.prompt, *opened.committed)
        again = msgspec.structs.replace(opened, committed=self.opened.committed)
        return again == self.opened and tuple(self.tree.tokens[: len(seen)]) == seen

    def add_draft(self, draft: Draft, now: float, drained_at: float) -> None:
        """Place what was guessed, and learn how long it took.

        It arrived between `drained_at`, the end of the drain before, and `now`.
        """
        tree, pace, depth = self.tree, self.pace, len(self.tree.chain())
        self.dropped_drafts += tree.insert(draft).dropped
        deeper = len(tree.chain()) - depth
        live = drained_at > self.committed_at  # nothing else was done meanwhile
        if self._exhausted and not live and deeper:
            self._exhausted = False
            pace.ahead.add(1.0)
        if draft.turnaround_us:
            waited_for = live and not depth and draft.position == tree.tip
            measured_s = now - self.committed_at if waited_for else draft.turnaround_us / 1e6
            pace.heard(measured_s)
            self._missed.pop(draft.position, None)
            if draft.position < tree.tip and draft.tokens and not any(draft.parents[:1]):
                # Too late to be verified, but not to be compared.
                pace.alpha.add(float(draft.tokens[0] == tree.tokens[draft.position]))
            if not depth:
                pace.burst.add(deeper)
        elif live and self._live and self.drafted_at < drained_at:
            pace.interval_s.add(now - self.drafted_at)
            pace.growth.add(deeper)
        self.drafted_at, self._live = now, live

    @property
    def room(self) -> int:
        """Tokens worth drafting. The last open one never is: it comes for free."""
        return self._last - self.tree.tip - 1

    def rests_until(self) -> float:
        """Until when a session in lockstep is in no pass, because it has no draft."""
        asleep = self.opened.lockstep and not len(self.tree) and self.room > 0
        return self.committed_at + _LOCKSTEP_S if asleep else 0.0

    def prospect(self, pass_s: float, now: float) -> Prospect | None:
        """What waiting for drafts promises, when a pass takes `pass_s`."""
        due = self._due(now)
        if due is None or now >= due.at + self.pace.slack_s:
            return None
        return prospect(self.pace, due.path, due.at, pass_s, now)

    def starts(self, now: float) -> None:
        """A pass starts with what is there; learn from what is not."""
        if self._exhausted:
            self._exhausted = False
            self.pace.ahead.add(0.0)
        due = self._due(now)
        if due is None or now < due.at + self.pace.slack_s or due.at < self.committed_at:
            return
        if len(self.tree):
            self.pace.growth.add(0.0)
        else:
            self.pace.missed(now - self.committed_at)

    def _due(self, now: float) -> _Due | None:
        """The next draft that may fit; None when there is none to wait for.

        A drafter that has never sent anything is not waited for: its first draft comes
        anyway, if it comes, and then says how long it took.
        """
        pace, tip, chain = self.pace, self.tree.tip, self.tree.chain()
        turnaround_s = pace.turnaround_s.value
        if self.opened.lockstep or turnaround_s is None or len(chain) >= self.room:
            return None
        if chain:
            since = max(self.committed_at, self.drafted_at)
            interval_s = pace.interval_s.value or turnaround_s
            return _Due(since + interval_s, [*map(pace.chance, chain)])
        # The answers to earlier corrections may still fit, if they guessed right.
        ahead = {at + turnaround_s: tip - asked for asked, at in self._missed.items()}
        last = max(ahead, default=self.committed_at + turnaround_s)
        at = min((at for at in ahead if at > now), default=last)
        return _Due(at, [pace.alpha.value or 0.0] * ahead.get(at, 0))

    def select(self, width: int) -> Selection:
        """The likeliest rows of the next pass, at most `width`."""
        return select(self.tree, width, self.room, self.pace)

    def adjustment(self, rows: Rows) -> Adjustment | None:
        """What bias and penalties do to the logits of `rows`; None for nothing."""
        if not self.sampling.adjusts:
            return None
        return self.tree.tally.adjustment(self.sampling, rows.paths())

    def commit(
        self, selection: Selection, verdict: Verdict, timings: Timings, now: float
    ) -> tuple[Commit, tuple[int, ...]]:
        """Make a verdict part of the text: move the tip, cut at an end, say so.

        Also returns the rows whose cache entries stay. ValueError when the verdict
        is not a path through the rows.
        """
        position, rows = self.tree.tip, selection.rows
        row = 0
        for child in verdict.accepted:
            if child not in rows.children(row):
                raise ValueError(f"row {child} does not continue row {row}")
            row = child
        tokens: list[int] = []
        for token in (*(rows.tokens[row] for row in verdict.accepted), verdict.token):
            tokens.append(token)
            if self._ended(tokens):
                break
        accepted = min(len(verdict.accepted), len(tokens))
        rejected = len(rows.children(row)) if len(tokens) > accepted else 0
        self.cached = position + accepted
        self._exhausted = bool(row) and not selection.nodes[row - 1].children
        self._learn(tokens)
        self.tree.advance(tokens)
        if not len(self.tree):
            self._missed[self.tree.tip] = now
            self._missed = dict(list(self._missed.items())[-_MISSES:])
        self.committed_at = now
        commit = Commit(self.id, position, Ids(tokens), accepted, len(rows.tokens), self.finish,
                        timings, rejected)  # fmt: skip
        return commit, (0, *verdict.accepted[:accepted])

    def _learn(self, tokens: list[int]) -> None:
        """The text tells of all guesses along it whether they were right."""
        node: Node | None = self.tree.root
        for token in tokens:
            for child in node.children if node else ():
                right = child.token == token
                self.pace.calibration.saw(child.rank, child.confidence, right)
                if child.rank == 0:
                    self.pace.alpha.add(float(right))
            node = node.child(token) if node else None

    def tell(self, commit: Commit, verdict: Verdict, view: TargetView) -> Commit:
        """The Commit of a verdict with its logprobs, if they were asked for."""
        if self.opened.logprobs is None:
            return commit
        rows = (0, *verdict.accepted)[: len(commit.tokens)]
        found = view.logprobs(rows, commit.tokens, self.opened.logprobs)
        self._logprobs += [Logprobs((one,)).pack() for one in found]
        return msgspec.structs.replace(commit, logprobs=Logprobs(found))

    def since(self, position: int) -> Commit:
        """What was committed from `position` on, said again; a part of it if not all fits."""
        end = self.tree.tip
        if self.opened.logprobs is not None:
            end = min(end, position + Logprobs.most(self.opened.logprobs, MAX_PAYLOAD - 1000))
        first = self.tree.tip - len(self._logprobs)  # those before came with the Open
        told = self._logprobs[max(0, position - first) : max(0, end - first)]
        finish = self.finish if end == self.tree.tip else None
        return Commit(self.id, position, Ids(self.tree.tokens[position:end]), finish=finish,
                      logprobs=Logprobs.unpack(b"".join(told)))  # fmt: skip

    def _ended(self, tokens: list[int]) -> bool:
        if tokens[-1] in self._ends:
            self.finish = "stop"
        elif self.tree.tip + len(tokens) >= self._last:
            self.finish = "length"
        return self.finish is not None
