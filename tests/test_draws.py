"""p/q acceptance through the drafter's own decisions: ends, floors, messages, other sources.

The drafter's session grows and pushes as it would, the verifier's tree takes the
messages in and selects; how far the drafter got before each pass is random. The
first two tokens have to be a sample of the target all the same, the end among them.
"""

import random

import numpy as np
import pytest
from fakes import guess, hello
from msgspec.structs import replace
from scipy.stats import chisquare
from test_probabilistic import DRAFT, SIZE, TARGET, View, proposal

from bus import codec
from bus.messages import Commit, Limits, Sampling, Welcome
from bus.packed import Ids, Proposal, Proposals
from drafter_mlx import proposals
from drafter_mlx.conversation import Conversation
from drafter_mlx.session import Request, Session
from strategies import load
from strategies.acceptance.probabilistic import Probabilistic
from strategies.costs import Costs
from strategies.drafting import Options
from strategies.tree import DraftTree
from verifier_cuda.planner import Pace, best_rows, select

END = 5
RUNS = 9_000
PASS_COSTS = Costs({1: 1.0, 2: 1.05, 3: 1.2, 4: 1.5, 8: 3.0})
"""So that unlikely rows are left out."""
OPTIONS = Options(num_draft_tokens=4, window=4, branches=2, step_nodes=2)


def drafted(session: Session, tree: DraftTree, steps: int, seed: int) -> None:
    """So many steps of the drafter, its messages through the codec into the verifier's tree."""
    for _ in range(steps):
        step = session.plan()
        if step is None:
            return
        told = [proposal(node.token) for node in step.expand]
        found = [proposals.drawn(each, seed, node.position + 1, step.children)
                 for each, node in zip(told, step.expand, strict=True)]  # fmt: skip
        for message in session.expanded(step, found, 0.0, told):
            tree.insert(codec.decode(codec.encode(message)))


def two_tokens(seed: int, drafting: str, pace: Pace) -> tuple[int, ...]:
    """The first two tokens of a text, or the one that ended it."""
    rng = random.Random(seed)
    sampling = Sampling(64, 1.0, seed=seed)
    prompt = Ids([1, 0, 1, 3, 0])
    session = Session(1, Request(prompt, sampling, "probabilistic"),
                      load("drafting", drafting)(OPTIONS), OPTIONS.window)  # fmt: skip
    session.welcome(frozenset([END]), 1000, 64, drawn=True)
    tree = DraftTree(prompt, 64)
    while (tree.tip < len(prompt) + 2 and tree.tokens[-1] != END) or tree.tip == len(prompt):
        drafted(session, tree, rng.randrange(6), seed)
        chosen = select(tree, 8, 8, pace.chance)
        chosen = chosen.cut(best_rows([chosen], PASS_COSTS, 0.0)[0])
        verdict = Probabilistic().judge(chosen.rows, View(chosen.rows, seed, tree.tip))
        tokens = [*(chosen.rows.tokens[row] for row in verdict.accepted), verdict.token]
        cut = tokens.index(END) + 1 if END in tokens else len(tokens)
        commit = Commit(1, tree.tip, Ids(tokens[:cut]), min(len(verdict.accepted), cut), 2)
        tree.advance(tokens[:cut])
        session.on_commit(commit, 0.0)
    return tuple(tree.tokens[len(prompt) : len(prompt) + 2])


# By hand -----------------------------------------------------------------------------


def drawing() -> Session:
    """A session that draws, with a text that repeats itself."""
    request = Request(Ids([1, 0, 1, 3, 0]), Sampling(64, 1.0), "probabilistic")
    session = Session(1, request, load("drafting", "tree-lookup")(OPTIONS), OPTIONS.window)
    session.welcome(frozenset([END]), 1000, 64, drawn=True)
    return session


@pytest.mark.parametrize(
    ("acceptance", "temperature", "draws"),
    [("own", 1.0, True), ("own:0.5", 1.0, True), ("own", 0.0, False), ("exact", 1.0, False)],
)
def test_whoever_asks_for_draws_gets_them_and_nobody_else(
    acceptance: str, temperature: float, draws: bool
) -> None:
    talk = Conversation(hello(), "tcp://verifier:7700", 9.0, 0.0)
    request = Request(Ids([1, 2]), Sampling(9, temperature), acceptance)
    session = Session(1, request, load("drafting", "tree")(OPTIONS), 4)
    talk.start(session, lambda piece: None, 0.0)
    named = ("own", "exact")
    talk.handle(Welcome(1, "target", Limits(1, 99, 64, 5000), named, drawn=("own",)), 0.0)
    assert session.draws is draws


def test_no_lookup_stands_among_draws_and_nobody_spins() -> None:
    session, tree = drawing(), DraftTree([1, 0, 1, 3, 0], 64)
    step = session.plan()
    assert step is not None and step.expand and not step.known
    drafted(session, tree, 99, 7)
    assert session.plan() is None, "there is nothing left to do"
    inner = [session.tree.root, *session.tree.nodes()]
    assert all(node.proposal for node in inner if node.children)


def test_what_was_not_drawn_finds_no_place_below_draws() -> None:
    session, tree = drawing(), DraftTree([1, 0, 1, 3, 0], 64)
    drafted(session, tree, 1, 7)
    drawn = {node.token for node in tree.root.children}
    foreign = next(token for token in range(SIZE) if token not in drawn)
    count = len(tree)
    assert tree.insert(guess(tree.tokens, [foreign])).dropped == 1
    other = guess(tree.tokens, [foreign])
    lie = Proposals([Proposal(0, (foreign, 0), (1.0, 1.0))])
    assert tree.insert(replace(other, proposals=lie)).dropped == 1
    assert tree.insert(guess(tree.tokens, [*drawn][:1])).dropped == 0, "what is there is there"
    assert len(tree) == count


# Through everything ------------------------------------------------------------------


def p_value(drafting: str, runs: int = RUNS) -> float:
    counts, pace = np.zeros((SIZE, SIZE + 1)), Pace()
    for seed in range(runs):
        first, *second = two_tokens(seed, drafting, pace)
        counts[first, second[0] if second else SIZE] += 1
    expected = np.zeros_like(counts)
    for first in range(SIZE):
        chance = TARGET[0][first]
        if first == END:
            expected[first, SIZE] = chance
        else:
            expected[first, :SIZE] = chance * TARGET[first]
    expected *= runs
    assert counts[expected == 0].sum() == 0
    likely = expected > 5
    kept = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum())
    return float(chisquare(kept[wanted > 0], wanted[wanted > 0]).pvalue)


@pytest.mark.parametrize("drafting", ["fixed", "lookup", "tree", "tree-lookup"])
def test_whatever_the_drafter_does_the_text_is_a_sample_of_the_target(drafting):
    assert DRAFT[0][END] > 0.01 and TARGET[0][END] > 0.01, "ends are drawn, and come"
    assert p_value(drafting) > 1e-3


def test_a_drafter_that_knows_an_end_when_it_drew_one_is_found(monkeypatch):
    monkeypatch.setattr(Session, "draws", False)
    assert p_value("fixed") < 1e-6
