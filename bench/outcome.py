"""What a simulated run came to, and how it is shown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from rich.table import Table

from bench import limits
from bench.limits import Setting
from bench.virtual import Clock, DrafterLoop, VerifierLoop


@dataclass(frozen=True)
class Outcome:
    """What a run came to. Shares lie in [0, 1]; percentiles are 50, 90 and 99."""

    equal: bool
    """Every text is that of plain decoding."""
    tokens: int
    seconds: float
    """From the start to the last token, on the virtual clock."""
    tokens_per_s: float
    session_tokens_per_s: float
    """Mean over the texts, each from the end of its prompt's processing on."""
    token_ms: tuple[float, ...]
    """Time since the piece before over its length, for every token but a text's first piece."""
    first_ms: tuple[float, ...]
    """From the request to its first piece."""
    request_ms: tuple[float, ...]
    accepted_length: float
    """Tokens that a pass brings a text."""
    empty_passes: float
    """Share of passes without drafts."""
    bubble: float
    """Share of the texts' time in which they were in no pass."""
    verifier_busy: float
    drafter_busy: float
    hedge_hits: float
    """Share of the tokens that were drafted, though not as the first choice."""
    rows: float
    """Mean rows of a text in a pass."""
    bytes_per_token: float | None
    events: int
    wall_s: float = field(compare=False)
    """Seconds that the simulation itself took."""


def counted(
    drafters: list[DrafterLoop], verifiers: list[VerifierLoop], clock: Clock,
    sent: int | None, wall_s: float,
) -> Outcome:  # fmt: skip
    """Add up what all loops have seen; `sent` is the number of payload bytes."""
    sessions = [session for drafter in drafters for session in drafter.sessions]
    every = [session.stats for session in sessions]
    tokens, passes = sum(s.tokens for s in every), max(1, sum(s.passes for s in every))
    waited_s, passed_s = (
        sum(s.verifier_wait_s for s in every),
        sum(s.verifier_busy_s for s in every),
    )
    pieces = [piece for drafter in drafters for gaps in drafter.gaps.values() for piece in gaps[1:]]
    end = clock.now
    return Outcome(
        equal=all(session.committed == tuple(drafter.texts[session.id].tokens)
                  for drafter in drafters for session in drafter.sessions),
        tokens=tokens,
        seconds=end,
        tokens_per_s=tokens / end,
        session_tokens_per_s=sum(s.tokens / s.seconds for s in every) / len(every),
        token_ms=_percentiles([gap / size for gap, size in pieces for _ in range(size)]),
        first_ms=_percentiles([gaps[0][0] for d in drafters for gaps in d.gaps.values()]),
        request_ms=_percentiles([s.ended_at - s.opened_at for s in every]),
        accepted_length=1 + sum(s.accepted for s in every) / passes,
        empty_passes=sum(s.empty_passes for s in every) / passes,
        bubble=waited_s / (waited_s + passed_s),
        verifier_busy=sum(v.busy_s for v in verifiers) / (end * len(verifiers)),
        drafter_busy=sum(d.busy_s for d in drafters) / (end * len(drafters)),
        hedge_hits=sum(s.hedge_hits for s in every) / tokens,
        rows=1 + sum(s.drafted for s in every) / passes,
        bytes_per_token=None if sent is None else sent / tokens,
        events=clock.events,
        wall_s=wall_s,
    )  # fmt: skip


def _percentiles(seconds: list[float]) -> tuple[float, ...]:
    """In milliseconds."""
    return tuple(float(p) * 1e3 for p in np.percentile(seconds or [0.0], [50, 90, 99]))


# Tables ----------------------------------------------------------------------


def outcome_table(outcomes: Mapping[str, Outcome], s: Setting) -> Table:
    """The runs side by side, by the names of their strategies."""
    shown = _table("", *outcomes)
    alone = limits.plain(s)
    for name, cell in _ROWS.items():
        cells = [cell(outcome) for outcome in outcomes.values()]
        if any(cells):
            shown.add_row(name, *cells)
        if name == "tokens/s of a text":
            gains = [f"{o.session_tokens_per_s / alone:.2f}" for o in outcomes.values()]
            shown.add_row("  × plain decoding", *gains)
    return shown


def _table(*names: str) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for index, name in enumerate(names):
        shown.add_column(name, justify="right" if index else "left", no_wrap=True)
    return shown


def _spread(values: tuple[float, ...]) -> str:
    return "/".join(f"{value:.0f}" for value in values)


_ROWS: Mapping[str, Callable[[Outcome], str]] = {
    "tokens/s of a text": lambda o: f"{o.session_tokens_per_s:.2f}",
    "tokens/s, all together": lambda o: f"{o.tokens_per_s:.1f}",
    "ms per token p50/90/99": lambda o: _spread(o.token_ms),
    "ms to first piece": lambda o: _spread(o.first_ms),
    "ms per request": lambda o: _spread(o.request_ms),
    "mean accepted length": lambda o: f"{o.accepted_length:.2f}",
    "rows in a pass, a text": lambda o: f"{o.rows:.1f}",
    "passes without drafts": lambda o: f"{o.empty_passes:.1%}",
    "tokens from hedges": lambda o: f"{o.hedge_hits:.1%}",
    "bubble": lambda o: f"{o.bubble:.1%}",
    "verifier busy": lambda o: f"{o.verifier_busy:.1%}",
    "drafter busy": lambda o: f"{o.drafter_busy:.1%}",
    "payload bytes a token": lambda o: (
        "" if o.bytes_per_token is None else f"{o.bytes_per_token:.0f}"
    ),
    "texts equal plain's": lambda o: "all" if o.equal else "NO",
    "simulated in": lambda o: f"{o.wall_s:.1f} s",
}


def limits_table(s: Setting) -> Table:
    """The closed formulas for the same parameters."""
    shown = _table("limit", "tokens/s of a text", "× plain")
    alone = limits.plain(s)
    found = {"plain decoding": alone}
    for name, rate in (
        ("synchronous", limits.synchronous),
        ("lock-step overlap", limits.lock_step),
        ("outcome cache, ceiling", limits.outcome_cache),
    ):
        k, best = limits.best(rate, s)
        found[f"{name}, best k = {k}"] = best
    found["draft chain, ceiling"] = limits.draft_chain(s)
    found["draft tree, ceiling"] = limits.draft_tree(s)
    for name, value in found.items():
        shown.add_row(name, f"{value:.2f}", f"{value / alone:.2f}")
    return shown
