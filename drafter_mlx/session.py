"""One request at the drafter: its text, its guesses, and what has been pushed. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from bus.errors import Code, ProtocolError
from bus.messages import Commit, Draft, Finish, Open
from bus.packed import Ids, Proposal
from drafter_mlx.batch import Batch
from drafter_mlx.experience import Experience
from drafter_mlx.piece import Piece, logprobs, origins
from drafter_mlx.request import Request
from drafter_mlx.stats import Stats
from strategies.calibration import Calibration
from strategies.drafting import Drafting, Guess, Observation, Outcome, Step
from strategies.tree import MAX_TREE_NODES, DraftTree, Node

Child = tuple[int, float]
"""A guessed token and the draft model's own chance of it."""
DRAWN = 0.5
"""Stands for the model's own chance of a token that was drawn: what becomes of a draw must not
depend on which token it is, or the odds of `probabilistic` are bent."""
MAX_CHILDREN = 64
"""Of a node, in one step."""
OUTCOMES = 64
"""Passes whose outcome a strategy gets to see."""
REPUSH_AFTER = 8
"""Passes in a row without drafts, though drafts were sent, after which all are sent again."""


class Session:
    """A request while it is worked on."""

    def __init__(
        self,
        session_id: int,
        request: Request,
        drafting: Drafting,
        window: int,
        experience: Experience | None = None,
    ) -> None:
        self.id = session_id
        self.request = request
        self.finish: Finish | None = None
        self.stats = Stats(len(request.prompt))
        self.tree = DraftTree(
            (*request.prompt, *request.committed), MAX_TREE_NODES, len(request.prompt)
        )
        self.logprobs = [*request.told, *[None] * (len(request.committed) - len(request.told))]
        """Of the text so far; None for tokens of which none were told."""
        self.ends: frozenset[int] = frozenset(request.sampling.stop_ids)
        self.max_len = 1 << 31
        self._drafting = drafting
        self._window = window
        self._experience = experience or Experience()
        self._pass_s = 0.0
        self.rtt_s = 0.0
        """From a question to the verifier to its answer, as far as was measured."""
        self._answering: float | None = None  # when the Commit was read that no push answered yet
        self._unpushed: list[Node] = []
        self._lost = self._drawn = False
        self._floor = 0.0
        self._idle_passes = 0
        self._outcomes: deque[Outcome] = deque(maxlen=OUTCOMES)

    @property
    def committed(self) -> tuple[int, ...]:
        """The text so far, without the prompt."""
        return tuple(self.tree.tokens[len(self.request.prompt) :])

    def welcome(
        self, ends: frozenset[int], max_len: int, max_nodes: int, drawn: bool = False
    ) -> None:
        """Take over the verifier's limits; called again after every reconnection.

        `drawn` says that its acceptance needs guesses drawn at random.
        """
        self._drawn = drawn
        stop_ids = frozenset(self.request.sampling.stop_ids)
        self.ends = stop_ids if self.request.sampling.ignore_eos else stop_ids | ends
        self.max_len = max_len
        self.tree.max_nodes = min(max_nodes, MAX_TREE_NODES)

    def open(self) -> Open:
        """The message that starts or resumes this session. What was pushed is pushed again."""
        self.push_again()
        request = self.request
        return Open(
            self.id, request.prompt, Ids(self.committed), request.sampling, request.acceptance,
            request.lockstep, request.logprobs, request.shared, request.guest,
        )  # fmt: skip

    # Drafting --------------------------------------------------------------------

    def plan(self) -> Step | None:
        """What the strategy wants next; None to wait."""
        if self.finish is not None:
            return None
        last = min(len(self.request.prompt) + self.request.sampling.max_tokens, self.max_len)
        # The last open token needs no draft: the target's own choice fills it.
        room = min(self._window, last - self.tree.tip - 1)
        unpushed = len(self._unpushed)
        known = self._experience
        # What becomes of a draw must not depend on its being an end, either.
        ends = frozenset[int]() if self.draws else self.ends
        step = self._drafting.plan(
            Observation(self.tree, room, ends, unpushed, len(self.tree) - unpushed,
                        known.step_costs, self._pass_s, self.rtt_s, tuple(self._outcomes))
        )  # fmt: skip
        if step is not None:
            _check(step, self.tree)
            step = self._unmixed(step)
        return Step(floor=self._floor) if step is None and self._lost else step

    def _unmixed(self, step: Step) -> Step | None:
        """The step without guesses that would stand among draws and spoil their odds."""
        if not (self.draws and step.known):
            return step
        nodes = (self.tree.root, *self.tree.nodes())
        if not step.expand and all(node.proposal is None for node in nodes):
            return step
        return replace(step, known=()) if step.expand or self._unpushed else None

    def tokens_to(self, node: Node) -> list[int]:
        """The whole sequence that ends with `node`."""
        return self.tree.tokens + [step.token for step in node.path()]

    @property
    def draws(self) -> bool:
        """True when guesses have to be drawn at random, for p/q acceptance."""
        return self._drawn and not self.request.sampling.greedy

    @property
    def _calibration(self) -> Calibration:
        return self._experience.calibration(self.request.sampling, self.draws)

    def expanded(
        self,
        step: Step,
        found: Sequence[Sequence[Child]],
        now: float = 0.0,
        proposals: Sequence[Proposal | None] = (),
    ) -> list[Draft]:
        """Take in the children of `step.expand`, best first; returns what to push.

        `proposals` say what the children of each node were drawn from.
        """
        for guess in step.known:
            self._take(guess)
        for number, (node, children) in enumerate(zip(step.expand, found, strict=True)):
            if proposals and not node.children:
                node.proposal = proposals[number]
            bound = 1.0
            for token, own in children:
                count, raw = len(self.tree), DRAWN if proposals else own
                chance = self._calibration.chance(len(node.children), raw)
                if proposals:  # in the order they were drawn
                    chance = bound = min(bound, chance)
                child = self.tree.add(node, token, chance, raw)
                if child is not None and len(self.tree) > count:
                    self._unpushed.append(child)
        pushes = self.pushes(step.floor) if step.push else []
        if pushes and self._answering is not None:
            turnaround_s = self.rtt_s + max(0.0, now - self._answering)
            first = msgspec.structs.replace(pushes[0], turnaround_us=1 + int(turnaround_s * 1e6))
            pushes[0], self._answering = first, None
        return pushes

    def _take(self, guess: Guess) -> None:
        node: Node | None = guess.node
        for token in guess.tokens:
            count = len(self.tree)
            node = self.tree.add(node, token, guess.confidence) if node else None
            if node is not None and len(self.tree) > count:
                self._unpushed.append(node)

    def pushes(self, floor: float = 0.0) -> list[Draft]:
        """What was not sent yet and is likely enough, in as few messages as possible."""
        self._lost, self._floor = False, floor
        batches: list[Batch] = []
        ready, later = [], []
        known = {self.tree.root.digest: 1.0}
        for node in self._unpushed:
            (ready if not floor or _path_chance(node, known) >= floor else later).append(node)
        for node in ready:
            if not batches or batches[-1].full:
                batches.append(Batch())
            batches[-1].add(node)
        self._unpushed = later
        return [batch.message(self.id) for batch in batches]

    def push_again(self) -> None:
        """Count every live node as not sent: a push was lost. A node sent twice does no harm."""
        self._unpushed = list(self.tree.nodes())
        self._lost = bool(self._unpushed)

    # Commits ---------------------------------------------------------------------

    def on_commit(self, commit: Commit, now: float) -> Piece | None:
        """Append what is new. None when there is a gap before it: open again.

        ProtocolError when the verifier says something else than it said before.
        """
        known = self.tree.tip - commit.position
        if known < 0:
            return None
        said = self.tree.tokens[commit.position : commit.position + len(commit.tokens)]
        if list(commit.tokens[:known]) != said or commit.position < len(self.request.prompt):
            raise ProtocolError(
                Code.BAD_MESSAGE, "the verifier changed text that it had committed", self.id
            )
        fresh = commit.tokens[known:]
        if self.finish is not None:
            return Piece((), ())
        if fresh:
            self._answering = now
            self._follow(fresh, commit)
            self.logprobs += logprobs(commit, len(fresh))
            self.stats.count(commit, len(fresh), now)
            if commit.width:
                self._outcomes.append(Outcome(commit.width - 1, commit.accepted))
        if commit.finish is not None:
            self.finish = commit.finish
            self.stats.ended_at = now
        told = () if self.request.logprobs is None else tuple(logprobs(commit, len(fresh)))
        return Piece(tuple(fresh), origins(commit, len(fresh)), told)

    def _follow(self, fresh: Sequence[int], commit: Commit) -> None:
        """Move the root; count what that says about our guesses."""
        drafted = self.tree.chain()
        self._learn(fresh)
        followed = self.tree.advance(fresh)
        on_path = sum(node is first for node, first in zip(followed, drafted, strict=False))
        if on_path < min(len(fresh), len(drafted)):
            self.stats.rollbacks += 1
            self.stats.rollback_tokens += len(drafted) - on_path
        taken = followed[: commit.accepted]
        self.stats.hedge_hits += sum(node is not None and node.rank > 0 for node in taken)
        if commit.timings.pass_us:
            pass_s = commit.timings.pass_us / 1e6
            self._pass_s += (0.2 if self._pass_s else 1.0) * (pass_s - self._pass_s)
        alive = {node.digest for node in self.tree.nodes()}
        self._unpushed = [node for node in self._unpushed if node.digest in alive]
        foreseen_for_nothing = commit.width == 1 and followed[0] is not None
        self._idle_passes = self._idle_passes + 1 if foreseen_for_nothing else 0
        if self._idle_passes >= REPUSH_AFTER:
            self._idle_passes = 0
            self.push_again()

    def _learn(self, fresh: Sequence[int]) -> None:
        """The text tells of all guesses along it whether they were right."""
        node: Node | None = self.tree.root
        for token in fresh:
            for child in node.children if node else ():
                right = child.token == token
                if child.raw is not None:
                    self._calibration.saw(child.rank, child.raw, right)
                self.stats.judged(child.rank, right)
            node = node.child(token) if node else None


def _check(step: Step, tree: DraftTree) -> None:
    """ValueError for what no strategy may ask."""
    nodes = (*step.expand, *(guess.node for guess in step.known))
    if any(tree.find(node.digest) is not node for node in nodes):
        raise ValueError("it named a node that is not in the tree")
    if not 1 <= step.children <= MAX_CHILDREN:
        raise ValueError(f"it asked for {step.children} children; 1 to {MAX_CHILDREN} can be had")
    if any(token < 0 for guess in step.known for token in guess.tokens):
        raise ValueError("it guessed a negative token")


def _path_chance(node: Node, known: dict[int, float]) -> float:
    """The chance that a node is reached; `known` keeps those of the nodes above it."""
    if node.digest not in known:
        assert node.parent is not None, "the root is known"
        known[node.digest] = node.confidence * _path_chance(node.parent, known)
    return known[node.digest]
