"""One session at the verifier: its text, its draft tree, and what has been cached. Pure."""

from bus.messages import Commit, Draft, Finish, Ids, Open, Timings
from strategies.acceptance import Acceptance, Verdict
from strategies.tree import DraftTree
from verifier_cuda.planner import Pace, Selection, select


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
    ) -> None:
        self.id = opened.session
        self.opened = opened
        self.sampling = opened.sampling
        self.acceptance = acceptance
        self.prompt_length = len(opened.prompt)
        self.tree = DraftTree((*opened.prompt, *opened.committed), max_tree_nodes)
        self.pace = Pace()
        self.cached = 0
        self.slot: int | None = None
        self.finish: Finish | None = None
        self.dropped_drafts = 0
        self.committed_at = 0.0
        """When the last Commit was made, in seconds of the daemon's clock."""
        self.served_at = 0.0
        """When the session was last part of a pass."""
        self.prefill_s = 0.0
        own_ends = frozenset() if self.sampling.ignore_eos else stop_ids
        self._ends = own_ends | frozenset(self.sampling.stop_ids)
        self._last = min(self.prompt_length + self.sampling.max_tokens, max_model_len)
        if opened.committed and opened.committed[-1] in self._ends:
            self.finish = "stop"
        elif self.tree.tip >= self._last:
            self.finish = "length"

    @property
    def unread(self) -> int:
        """Tokens to prefill before the session can decode."""
        return self.tree.tip - 1 - self.cached

    def matches(self, opened: Open) -> bool:
        """True when `opened` asks for this very text and has seen no more of it than there is."""
        seen = (*opened.prompt, *opened.committed)
        return (
            (self.opened.prompt, self.sampling, self.opened.acceptance)
            == (opened.prompt, opened.sampling, opened.acceptance)
        ) and tuple(self.tree.tokens[: len(seen)]) == seen

    def add_draft(self, draft: Draft, now: float) -> None:
        """Place what was guessed; measure the turnaround when it was waited for."""
        was_empty = len(self.tree) == 0
        placed = self.tree.insert(
            draft.position, draft.digest, draft.tokens, draft.confidence, draft.parents
        )
        self.dropped_drafts += placed.dropped
        # A draft from further back answers an older Commit, and tells nothing of this one.
        if was_empty and len(self.tree) and draft.position == self.tree.tip:
            self.pace.saw_draft(now - self.committed_at)

    def select(self, width: int) -> Selection:
        """The rows of the next pass. The last open token is never drafted: it comes for free."""
        return select(self.tree, width, self._last - self.tree.tip - 1)

    def commit(
        self, selection: Selection, verdict: Verdict, timings: Timings
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
        self.tree.advance(tokens)
        self.pace.saw_pass(len(selection.nodes), accepted, timings.pass_us / 1e6)
        commit = Commit(self.id, position, Ids(tokens), accepted, len(rows.tokens), self.finish,
                        timings, rejected)  # fmt: skip
        return commit, (0, *verdict.accepted[:accepted])

    def since(self, position: int) -> Commit:
        """What was committed from `position` on, said again."""
        return Commit(self.id, position, Ids(self.tree.tokens[position:]), finish=self.finish)

    def _ended(self, tokens: list[int]) -> bool:
        if tokens[-1] in self._ends:
            self.finish = "stop"
        elif self.tree.tip + len(tokens) >= self._last:
            self.finish = "length"
        return self.finish is not None
