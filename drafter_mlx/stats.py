"""What happened in one request, in the field names that people know. Pure.

`timings` follows llama.cpp, `metrics.speculative_decoding` follows vLLM, and
`metrics.draftbus` holds what only this pipeline has.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from bus.messages import Commit, Share


@dataclass
class Stats:
    """Counts of one session; times in seconds of the caller's clock."""

    prompt_tokens: int
    opened_at: float = 0.0
    prefilled_at: float = 0.0
    """When the verifier had read the prompt."""
    ended_at: float = 0.0
    tokens: int = 0
    passes: int = 0
    empty_passes: int = 0
    rejections: int = 0
    """Passes that ended with a drafted token turned down."""
    drafted: int = 0
    """Draft tokens that the verifier looked at."""
    accepted: int = 0
    histogram: dict[int, int] = field(default_factory=dict)
    hedge_hits: int = 0
    """Accepted tokens that were not the drafter's first choice."""
    rollbacks: int = 0
    rollback_tokens: int = 0
    """First choices drafted beyond a point where the target disagreed."""
    judged_by_depth: list[int] = field(default_factory=list)
    """Passes that had a draft so deep on the path they took."""
    accepted_by_depth: list[int] = field(default_factory=list)
    tried_by_rank: list[int] = field(default_factory=list)
    """Guesses of each rank at a position that was committed, whether verified in time or not."""
    right_by_rank: list[int] = field(default_factory=list)
    draft_steps: int = 0
    resumed: int = 0
    verifier_busy_s: float = 0.0
    verifier_wait_s: float = 0.0
    drafter_busy_s: float = 0.0
    reused: int = 0
    """Prompt tokens that the verifier still had in its cache."""
    lossy: bool = False
    """Whether the acceptance strategy may have changed the text."""
    shares: tuple[Share, ...] = ()
    """What each of several drafters gave, this one first; empty when it was alone."""
    wire_bytes: int = 0
    """Payload bytes both ways while this session was the newest to end."""

    def count(self, commit: Commit, fresh: int, now: float) -> None:
        """Take in one Commit that brought `fresh` new tokens."""
        if not self.prefilled_at:
            self.prefilled_at = now - commit.timings.pass_us / 1e6
        self.ended_at = now
        self.tokens += fresh
        self.shares = commit.shares
        if not commit.width:
            return  # said again after a loss: its passes were never reported
        self.reused += commit.timings.reused
        self.passes += 1
        self.empty_passes += commit.width == 1
        self.rejections += commit.rejected > 0
        self.drafted += commit.width - 1
        self.accepted += commit.accepted
        for depth in range(commit.accepted + (commit.rejected > 0)):
            if depth == len(self.judged_by_depth):
                self.judged_by_depth.append(0)
                self.accepted_by_depth.append(0)
            self.judged_by_depth[depth] += 1
            self.accepted_by_depth[depth] += depth < commit.accepted
        self.histogram[commit.accepted] = self.histogram.get(commit.accepted, 0) + 1
        self.verifier_busy_s += (commit.timings.pass_us + commit.timings.prefill_us) / 1e6
        self.verifier_wait_s += commit.timings.wait_us / 1e6

    def judged(self, rank: int, right: bool) -> None:
        """The text has come to a position with a guess of this rank."""
        while len(self.tried_by_rank) <= rank:
            self.tried_by_rank.append(0)
            self.right_by_rank.append(0)
        self.tried_by_rank[rank] += 1
        self.right_by_rank[rank] += right

    @property
    def alpha(self) -> float | None:
        """Chance that the drafts at a position hold the target's token; None if never tried."""
        tried = self.accepted + self.rejections
        return self.accepted / tried if tried else None

    @property
    def seconds(self) -> float:
        """From the end of prompt processing to the last token."""
        return max(0.0, self.ended_at - self.prefilled_at)

    def timings(self) -> dict[str, Any]:
        """The `timings` object of llama.cpp."""
        prompt_s = max(0.0, self.prefilled_at - self.opened_at)
        return {
            "cache_n": self.reused,
            **_rates("prompt", self.prompt_tokens, prompt_s),
            **_rates("predicted", self.tokens, self.seconds),
            "draft_n": self.drafted,
            "draft_n_accepted": self.accepted,
        }

    def metrics(self) -> dict[str, Any]:
        """vLLM's `speculative_decoding`, and our own."""
        return {
            "speculative_decoding": {
                "mean_acceptance_length": 1 + self.accepted / self.passes if self.passes else None,
                "draft_acceptance_rate": self.accepted / self.drafted if self.drafted else None,
                "acceptance_histogram": [
                    self.histogram.get(n, 0) for n in range(max(self.histogram, default=-1) + 1)
                ],
                "num_spec_steps": self.passes,
                "num_accepted_draft_tokens": self.accepted,
                "num_draft_tokens": self.drafted,
            },
            "draftbus": {
                "lossy": self.lossy,
                "alpha": self.alpha,
                "empty_passes": self.empty_passes,
                "judged_by_depth": self.judged_by_depth,
                "accepted_by_depth": self.accepted_by_depth,
                "judged_by_rank": self.tried_by_rank,
                "accepted_by_rank": self.right_by_rank,
                "draft_steps": self.draft_steps,
                "hedge_hits": self.hedge_hits,
                "rollbacks": self.rollbacks,
                "rollback_depth_tokens": self.rollback_tokens,
                "resumed": self.resumed,
                "verifier_busy_s": self.verifier_busy_s,
                "verifier_wait_s": self.verifier_wait_s,
                "drafter_busy_s": self.drafter_busy_s,
                "wire_bytes": self.wire_bytes,
                "drafters": [msgspec.structs.asdict(share) for share in self.shares],
            },
        }


def _rates(name: str, count: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / count if count else None,
        f"{name}_per_second": count / seconds if seconds else None,
    }
