"""Prometheus metrics under vLLM's names, and our own, all with the prefix `draftbus:`."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from drafter_mlx.stats import Stats

CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_0_0_4
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From a request's arrival to its first token.", LONG_S),
    "inter_token_latency_seconds": ("Between tokens of one text.", SHORT_S),
    "e2e_request_latency_seconds": ("From a request's arrival to its end.", LONG_S),
    "request_queue_time_seconds": ("Waiting for a place.", LONG_S),
}
_COUNTERS: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "prompt_tokens": ("Prompt tokens.", lambda s: s.prompt_tokens),
    "generation_tokens": ("Committed tokens.", lambda s: s.tokens),
    "spec_decode_num_drafts": ("Passes with drafts.", lambda s: s.passes - s.empty_passes),
    "spec_decode_num_draft_tokens": ("Drafted tokens in passes.", lambda s: s.drafted),
    "spec_decode_num_accepted_tokens": ("Accepted draft tokens.", lambda s: s.accepted),
    "wasted_draft_tokens": ("Drafted tokens that were not accepted.",
                            lambda s: s.drafted - s.accepted),
    "hedge_hits": ("Accepted tokens that were not the first choice.", lambda s: s.hedge_hits),
    "empty_passes": ("Passes without drafts.", lambda s: s.empty_passes),
    "verifier_wait_seconds": ("Time the verifier waited for drafts.", lambda s: s.verifier_wait_s),
    "wire_bytes": ("Payload bytes both ways.", lambda s: s.wire_bytes),
}  # fmt: skip
_POSITIONS = "spec_decode_num_accepted_tokens_per_pos"


@dataclass
class Watch:
    """When things happened to one text, in seconds of the monotonic clock."""

    arrived_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    first_at: float | None = None
    last_at: float = 0.0
    gaps_s: list[float] = field(default_factory=list)

    def started(self) -> None:
        """Work begins."""
        self.started_at = time.monotonic()

    def got(self, tokens: int) -> None:
        """So many tokens have come at once."""
        now = time.monotonic()
        if self.first_at is None:
            self.first_at = now
        else:
            self.gaps_s += [(now - self.last_at) / tokens] * tokens
        self.last_at = now


@dataclass(frozen=True)
class Gauges:
    """What is measured when somebody asks."""

    running: int = 0
    waiting: int = 0
    in_flight: int = 0
    rtt_s: float | None = None


class Metrics:
    """The registry of one server. Counters move when a text is over."""

    def __init__(self, gauges: Callable[[], Gauges], model_name: Callable[[], str]) -> None:
        prometheus.disable_created_metrics()
        self._registry = prometheus.CollectorRegistry()
        self._gauges = gauges
        self._name = model_name
        self._rollbacks: dict[str, tuple[int, int]] = {}
        new = {"labelnames": ["model_name"], "registry": self._registry}
        self._counters = {
            name: prometheus.Counter(f"draftbus:{name}", help_, **new)
            for name, (help_, _) in _COUNTERS.items()
        }
        self._histograms = {
            name: prometheus.Histogram(f"draftbus:{name}", help_, buckets=buckets, **new)
            for name, (help_, buckets) in _HISTOGRAMS.items()
        }
        self._positions = prometheus.Counter(
            f"draftbus:{_POSITIONS}", "Accepted draft tokens by their place in a pass.",
            labelnames=["model_name", "position"], registry=self._registry,
        )  # fmt: skip
        self._registry.register(self)  # type: ignore[arg-type]

    def ended(self, watch: Watch, stats: Stats) -> None:
        """A text is over, in whatever way."""
        name, now = self._name(), time.monotonic()
        for key, (_, value) in _COUNTERS.items():
            self._counters[key].labels(name).inc(max(0.0, value(stats)))
        for depth, count in enumerate(stats.accepted_by_depth):
            self._positions.labels(name, depth).inc(count)
        count, total = self._rollbacks.get(name, (0, 0))
        self._rollbacks[name] = count + stats.rollbacks, total + stats.rollback_tokens
        seen = {key: self._histograms[key].labels(name) for key in _HISTOGRAMS}
        if watch.first_at is not None:
            seen["time_to_first_token_seconds"].observe(watch.first_at - watch.arrived_at)
        for gap_s in watch.gaps_s:
            seen["inter_token_latency_seconds"].observe(gap_s)
        seen["e2e_request_latency_seconds"].observe(now - watch.arrived_at)
        if watch.started_at is not None:
            seen["request_queue_time_seconds"].observe(watch.started_at - watch.arrived_at)

    def collect(self) -> Iterable[Metric]:
        """What prometheus-client asks of a collector: gauges, and a summary of totals."""
        now, name = self._gauges(), self._name()
        for key, help_, value in (
            ("num_requests_running", "Texts that are being made.", now.running),
            ("num_requests_waiting", "Texts that wait for a place.", now.waiting),
            ("drafts_in_flight", "Drafted tokens that no pass has judged yet.", now.in_flight),
            ("rtt_seconds", "Round trip to the verifier.", now.rtt_s),
        ):
            if value is not None:
                gauge = GaugeMetricFamily(f"draftbus:{key}", help_, labels=["model_name"])
                gauge.add_metric([name], value)
                yield gauge
        depth = SummaryMetricFamily("draftbus:rollback_depth_tokens",
                                    "Tokens drafted beyond a point where the target disagreed.",
                                    labels=["model_name"])  # fmt: skip
        for known, (count, total) in self._rollbacks.items():
            depth.add_metric([known], count_value=count, sum_value=total)
        yield depth

    def text(self) -> bytes:
        """The exposition."""
        return prometheus.generate_latest(self._registry)
