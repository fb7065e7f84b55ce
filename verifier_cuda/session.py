"""One session at the verifier: its text, its draft tree, and what has been cached. Pure."""

from msgspec.structs import replace

from bus.messages import MAX_PAYLOAD, Commit, Draft, Finish, Open, Share, Timings
from bus.packed import Ids, Logprobs
from strategies.acceptance import Acceptance, Rows, TargetView, Verdict
from strategies.penalties import Adjustment
from strategies.tree import DraftTree, Node
from verifier_cuda.planner import Prospect, Selection, select
from verifier_cuda.source import Progress, Source

_LOCKSTEP_S = 0.5
"""How long a session in lockstep waits for a draft."""


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
        opener: Source,
    ) -> None:
        self.id = opened.session
        self.sources = [opener]
        """The drafters that were ever part of it; nodes of the tree name them by their index."""
        self.opened = opened
        self.sampling = opened.sampling
        self.acceptance = acceptance
        self.prompt_length = len(opened.prompt)
        self.tree = DraftTree(
            (*opened.prompt, *opened.committed), max_tree_nodes, self.prompt_length
        )
        self.cached = 0
        self.slot: int | None = None
        self.finish: Finish | None = None
        self.dropped_drafts = 0
        self.committed_at = 0.0
        """When the last Commit was made, in seconds of the daemon's clock."""
        self.served_at = 0.0
        """When the session was last part of a pass."""
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
        again = replace(opened, session=self.id, committed=self.opened.committed)
        return again == self.opened and tuple(self.tree.tokens[: len(seen)]) == seen

    def add_draft(self, draft: Draft, source: Source, now: float, drained_at: float) -> None:
        """Place what a drafter of this session guessed, and learn how long it took."""
        depth = len(self.tree.chain())
        self.dropped_drafts += self.tree.insert(draft, self.sources.index(source)).dropped
        source.arrived(draft, depth, self._progress, now, drained_at)

    def source(self, peer: bytes) -> Source:
        """The part of a drafter that is here."""
        return next(source for source in self._here if source.peer == peer)

    @property
    def _here(self) -> list[Source]:
        return [source for source in self.sources if source.present]

    @property
    def _progress(self) -> Progress:
        return Progress(self.tree, self.committed_at, self.room, self.chance)

    def chance(self, node: Node) -> float:
        """Of a node, given that its parent was accepted, by what its drafter's others came to."""
        return self.sources[node.sources[0] if node.sources else 0].pace.chance(node)

    @property
    def room(self) -> int:
        """Tokens worth drafting. The last open one never is: it comes for free."""
        return self._last - self.tree.tip - 1

    def rests_until(self) -> float:
        """Until when a session in lockstep is in no pass, because it has no draft."""
        asleep = self.opened.lockstep and not len(self.tree) and self.room > 0
        return self.committed_at + _LOCKSTEP_S if asleep else 0.0

    def prospect(self, pass_s: float, now: float) -> Prospect | None:
        """The best that waiting for drafts promises, when a pass takes `pass_s`."""
        if self.opened.lockstep:
            return None
        found = [source.prospect(self._progress, pass_s, now) for source in self._here]
        prospects = [one for one in found if one is not None]
        return max(prospects, key=lambda one: one.saved_s - one.at, default=None)

    def starts(self, now: float) -> None:
        """A pass starts with what is there; learn from what is not."""
        for source in () if self.opened.lockstep else self._here:
            source.starts(self._progress, now)

    def select(self, width: int) -> Selection:
        """The likeliest rows of the next pass, at most `width`."""
        return select(self.tree, width, self.room, self.chance)

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
        self._learn(tokens)
        self._credit(selection, verdict.accepted[:accepted])
        self.tree.advance(tokens)
        for source in () if len(self.tree) else self._here:
            source.missed(self.tree.tip, now)
        self.committed_at = now
        commit = Commit(self.id, position, Ids(tokens), accepted, len(rows.tokens), self.finish,
                        timings, rejected, shares=self._shares)  # fmt: skip
        return commit, (0, *verdict.accepted[:accepted])

    def _learn(self, tokens: list[int]) -> None:
        """The text tells of all guesses along it whether they were right."""
        node: Node | None = self.tree.root
        for token in tokens:
            for child in node.children if node else ():
                for source in child.sources[:1]:
                    self.sources[source].learn(child, child.token == token)
            node = node.child(token) if node else None

    def _credit(self, selection: Selection, accepted: tuple[int, ...]) -> None:
        """Count for each drafter what a pass looked at, and what it took."""
        for row, node in enumerate(selection.nodes, 1):
            for source in node.sources:
                self.sources[source].drafted += 1
                self.sources[source].accepted += row in accepted
        last = selection.nodes[accepted[-1] - 1] if accepted else None
        for number, source in enumerate(self.sources):
            source.exhausted = last is not None and not last.children and number in last.sources

    @property
    def _shares(self) -> tuple[Share, ...]:
        several = self.finish is not None and len(self.sources) > 1
        return tuple(source.share for source in self.sources) if several else ()

    def tell(self, commit: Commit, verdict: Verdict, view: TargetView) -> Commit:
        """The Commit of a verdict with its logprobs, if they were asked for."""
        if self.opened.logprobs is None:
            return commit
        rows = (0, *verdict.accepted)[: len(commit.tokens)]
        found = view.logprobs(rows, commit.tokens, self.opened.logprobs)
        self._logprobs += [Logprobs((one,)).pack() for one in found]
        return replace(commit, logprobs=Logprobs(found))

    def since(self, position: int) -> Commit:
        """What was committed from `position` on, said again; a part of it if not all fits."""
        end = self.tree.tip
        if self.opened.logprobs is not None:
            end = min(end, position + Logprobs.most(self.opened.logprobs, MAX_PAYLOAD - 1000))
        first = self.tree.tip - len(self._logprobs)  # those before came with the Open
        told = self._logprobs[max(0, position - first) : max(0, end - first)]
        finish = self.finish if end == self.tree.tip else None
        return Commit(self.id, position, Ids(self.tree.tokens[position:end]), finish=finish,
                      logprobs=Logprobs.unpack(b"".join(told)), shares=self._shares)  # fmt: skip

    def _ended(self, tokens: list[int]) -> bool:
        if tokens[-1] in self._ends:
            self.finish = "stop"
        elif self.tree.tip + len(tokens) >= self._last:
            self.finish = "length"
        return self.finish is not None
