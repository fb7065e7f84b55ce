"""What happened in one request, in the field names that people know. Pure.

`timings` follows llama.cpp, `metrics.speculative_decoding` follows vLLM, and
`metrics.draftbus` holds what only this pipeline has.
"""

from dataclasses import dataclass, field
from typing import Any

from bus.messages import Commit


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
    resumed: int = 0
    verifier_busy_s: float = 0.0
    verifier_wait_s: float = 0.0
    drafter_busy_s: float = 0.0
    wire_bytes: int = 0
    """Payload bytes both ways while this session was the newest to end."""

    def count(self, commit: Commit, fresh: int, now: float) -> None:
        """Take in one Commit that brought `fresh` new tokens."""
        if not self.prefilled_at:
            self.prefilled_at = now - commit.timings.pass_us / 1e6
        self.ended_at = now
        self.tokens += fresh
        if not commit.width:
            return  # said again after a loss: its passes were never reported
        self.passes += 1
        self.empty_passes += commit.width == 1
        self.rejections += commit.rejected > 0
        self.drafted += commit.width - 1
        self.accepted += commit.accepted
        self.histogram[commit.accepted] = self.histogram.get(commit.accepted, 0) + 1
        self.verifier_busy_s += (commit.timings.pass_us + commit.timings.prefill_us) / 1e6
        self.verifier_wait_s += commit.timings.wait_us / 1e6

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
            "cache_n": 0,
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
                "alpha": self.alpha,
                "empty_passes": self.empty_passes,
                "hedge_hits": self.hedge_hits,
                "rollbacks": self.rollbacks,
                "rollback_depth_tokens": self.rollback_tokens,
                "resumed": self.resumed,
                "verifier_busy_s": self.verifier_busy_s,
                "verifier_wait_s": self.verifier_wait_s,
                "drafter_busy_s": self.drafter_busy_s,
                "wire_bytes": self.wire_bytes,
            },
        }


def _rates(name: str, count: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / count if count else None,
        f"{name}_per_second": count / seconds if seconds else None,
    }
