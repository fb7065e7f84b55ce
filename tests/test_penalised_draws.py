"""p/q acceptance with penalties and a bias: the text is a sample of the adjusted target.

The models of `test_probabilistic.py`, whose logits hang on the token before. What each
token does to those after it makes every row of a tree another distribution.
"""

import by_hand
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from scipy.stats import chisquare
from test_probabilistic import DRAFT, SIZE, TARGET

from bus.messages import Sampling
from bus.packed import Biases
from drafter_mlx import proposals
from strategies import penalties
from strategies.acceptance import Rows
from strategies.acceptance.probabilistic import Probabilistic
from strategies.tree import DraftTree, Node
from verifier_cuda import sampling as torch_sampling
from verifier_cuda.planner import Pace, select
from verifier_cuda.view import View

RUNS = 4_000
PROMPT = [1, 2, 1]
SAMPLING = Sampling(
    temperature=0.9, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.8,
    logit_bias=Biases([(4, 1.0), (3, -0.7)]),
)  # fmt: skip
TARGET_LOGITS, DRAFT_LOGITS = np.log(TARGET).astype(np.float32), np.log(DRAFT).astype(np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    chances = np.exp(logits.astype(np.float64) / SAMPLING.temperature)
    return chances / chances.sum()


def grow(tree: DraftTree, node: Node, sampling: Sampling) -> None:
    """Two draws below `node`, from what the draft says of its path."""
    if node.children:
        return
    path = [step.token for step in node.path()]
    adjustment = tree.tally.adjustment(sampling, [path])
    (logits,) = penalties.adjusted(DRAFT_LOGITS[[node.token]], adjustment)
    node.proposal = proposals.support([*enumerate(softmax(logits))])
    for token, _ in proposals.drawn(node.proposal, sampling.seed, node.position + 1, 2):
        tree.add(node, token, 0.5)


def view_of(rows: Rows, tree: DraftTree, sampling: Sampling) -> View:
    """What the verifier's model would say of these rows."""
    adjustment = tree.tally.adjustment(sampling, rows.paths())
    logits = torch.from_numpy(TARGET_LOGITS[[*rows.tokens]])
    depths = [0]
    for parent in rows.parents[1:]:
        depths.append(depths[parent] + 1)
    positions = [tree.tip + depth for depth in depths]
    return View([], torch_sampling.adjusted(logits, adjustment), sampling, positions, logits)


def two_tokens(seed: int, pace: Pace) -> tuple[int, int]:
    """The first two tokens that a session commits."""
    tree, sampling = DraftTree(PROMPT, 64), replace(SAMPLING, seed=seed)
    while tree.tip < len(PROMPT) + 2:
        grow(tree, tree.root, sampling)
        for child in tree.root.children:
            grow(tree, child, sampling)
        rows = select(tree, 16, 8, pace.chance).rows
        verdict = Probabilistic().judge(rows, view_of(rows, tree, sampling))
        tree.advance([*(rows.tokens[row] for row in verdict.accepted), verdict.token])
    return tree.tokens[len(PROMPT)], tree.tokens[len(PROMPT) + 1]


def p_value(runs: int) -> float:
    """Of the joint counts of two tokens against the chances that follow by hand."""
    counts, pace = np.zeros((SIZE, SIZE)), Pace()
    for seed in range(runs):
        counts[two_tokens(seed, pace)] += 1
    first = softmax(by_hand.adjusted(TARGET_LOGITS[PROMPT[-1]], SAMPLING, PROMPT, []))
    second = [softmax(by_hand.adjusted(TARGET_LOGITS[token], SAMPLING, PROMPT, [token]))
              for token in range(SIZE)]  # fmt: skip
    expected = runs * first[:, None] * np.array(second)
    likely = expected > 5
    kept = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum())
    return float(chisquare(kept[wanted > 0], wanted[wanted > 0]).pvalue)


def test_two_tokens_are_a_sample_of_the_adjusted_target() -> None:
    assert p_value(RUNS) > 1e-3


def test_rows_that_share_the_counts_of_the_text_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "paths", lambda self: [()] * len(self.tokens))
    assert p_value(RUNS) < 1e-6
