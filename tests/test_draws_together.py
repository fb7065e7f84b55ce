"""p/q acceptance with eight texts at once: each is a sample of the target, whatever the others do.

Registry, scheduler and the drafter's sessions are real, and so are the messages; the
rows of all texts share each pass, and compete for it.
"""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from fakes import PEER, Verifier, hello
from scipy.stats import chisquare
from test_draws import OPTIONS, PASS_COSTS
from test_probabilistic import SIZE, TARGET, View, proposal

from bus import codec
from bus.messages import Limits, Sampling
from bus.packed import Ids
from drafter_mlx import proposals
from drafter_mlx.request import Request
from drafter_mlx.session import Session
from strategies import load
from strategies.acceptance import Rows
from verifier_cuda.scheduler import Block

TEXTS = 8
ROUNDS = 1_200
PROMPT = Ids([1, 0, 1, 3, 0])


def views(blocks: Sequence[Block]) -> list[View]:
    """What the target says about a pass."""
    return [
        View(Rows(block.tokens, block.parents), block.sampling.seed if block.sampling else 0,
             block.start + 1)
        for block in blocks
    ]  # fmt: skip


def draft(verifier: Verifier, session: Session) -> None:
    """One step of the drafter for one text."""
    step = session.plan()
    if step is None:
        return
    told = [proposal(node.token) for node in step.expand]
    seed = session.request.sampling.seed
    found = [proposals.drawn(each, seed, node.position + 1, step.children)
             for each, node in zip(told, step.expand, strict=True)]  # fmt: skip
    for message in session.expanded(step, found, 0.0, told):
        verifier.say(codec.decode(codec.encode(message)))


def texts(start: int, drafting: str, verifier: Verifier) -> list[tuple[int, ...]]:
    """Eight texts with seeds of their own, each three tokens long."""
    rng, sessions = random.Random(start), {}
    for number in range(start, start + TEXTS):
        sampling = Sampling(3, 1.0, seed=number, ignore_eos=True)
        request = Request(PROMPT, sampling, "probabilistic")
        strategy = load("drafting", drafting)(OPTIONS)
        sessions[number] = Session(number, request, strategy, OPTIONS.window)
        sessions[number].welcome(frozenset(), 1000, 64, drawn=True)
        verifier.say(sessions[number].open())
    now = float(start)
    while open_ := [session for session in sessions.values() if session.finish is None]:
        for session in open_:
            for _ in range(rng.randrange(4)):
                draft(verifier, session)
        now += 1.0
        work = verifier.scheduler.plan(now)
        replies, _ = verifier.scheduler.complete(work, views([e.block for e in work]), 0.1, now)
        for reply in replies:
            sessions[reply.message.session].on_commit(reply.message, now)
    return [session.committed for session in sessions.values()]


@pytest.mark.parametrize("drafting", ["fixed", "tree"])
def test_each_of_eight_texts_is_a_sample_of_the_target(drafting: str) -> None:
    verifier = Verifier(limits=Limits(TEXTS, 64, 64, 5000), width=8, costs=PASS_COSTS.known())
    verifier.say(hello(), peer=PEER)
    counts = np.zeros((SIZE, SIZE))
    for start in range(0, TEXTS * ROUNDS, TEXTS):
        for first, second, _ in texts(start, drafting, verifier):
            counts[first, second] += 1
    assert verifier.scheduler.counters.accepted > 0.2 * counts.sum(), "drafts were accepted"
    expected = counts.sum() * TARGET[0][:, None] * TARGET
    likely = expected > 5
    kept = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum())
    assert float(chisquare(kept, wanted).pvalue) > 1e-3
