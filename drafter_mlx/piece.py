"""Newly committed tokens: where each came from, and what the target thought of it. Pure."""

from dataclasses import dataclass
from typing import Literal

from bus.messages import Commit
from bus.packed import Logprob

Origin = Literal["accepted", "correction", "bonus", "plain", "end"]
"""Drafted and accepted; the target's instead of a draft; the target's after accepted drafts;
without drafts; an end id, which is not text."""


@dataclass(frozen=True)
class Piece:
    """Newly committed tokens, each with where it came from."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[Logprob | None, ...] = ()
    """Of each token, if they were asked for."""


def origins(commit: Commit, fresh: int) -> tuple[Origin, ...]:
    """Of the last `fresh` tokens of a Commit."""
    last: Origin = "correction" if commit.rejected else "bonus" if commit.accepted else "plain"
    found: list[Origin] = ["plain"] * len(commit.tokens)
    if commit.width:
        own = len(commit.tokens) - commit.accepted
        found = ["accepted"] * commit.accepted + [last] * own
    if commit.finish == "stop" and found:
        found[-1] = "end"
    return tuple(found[len(found) - fresh :])


def logprobs(commit: Commit, fresh: int) -> list[Logprob | None]:
    """Of the last `fresh` tokens of a Commit; None for those that it says nothing of."""
    found = [*[None] * len(commit.tokens), *commit.logprobs]
    return found[len(found) - fresh :]
