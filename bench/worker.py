"""A drafter that is fed batches of rows: `python -m bench.worker --verifier ADDR --model DIR`.

Every batch gets a daemon of its own, so the verifier meets a new drafter, which
may emulate another network. The model stays loaded. A batch is `{"rows", "at_once",
"delay_s", "jitter_s", "policy"}`; rows are those of `draftbus-drafter complete`. With
`record` it asks instead what the draft would have guessed along a row's `text`.
"""

import argparse
import sys
import time
from dataclasses import replace
from statistics import median
from typing import Any

import structlog

from bench import feed
from bench.impostors import IMPOSTORS
from bench.recording import record
from bus.messages import Sampling
from drafter_mlx.complete import Completion
from drafter_mlx.config import Config, Drafts
from drafter_mlx.daemon import Daemon
from drafter_mlx.experience import Experience
from drafter_mlx.model import load
from drafter_mlx.piece import Piece
from drafter_mlx.rows import Encoder, make_job
from drafter_mlx.session import Child
from strategies.costs import Costs
from strategies.drafting import Options

PINGS = 5


class Watch:
    """A viewer that notes when the first and the last piece came, in monotonic seconds."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at = 0.0
        self.tokens_after_first = 0

    def begin(self, prompt: str) -> None:
        pass

    def __call__(self, piece: Piece) -> None:
        self.last_at = time.monotonic()
        if self.first_at is None:
            self.first_at = self.last_at
        else:
            self.tokens_after_first += len(piece.tokens)


class Counted:
    """A draft model whose steps are counted and timed; otherwise the model itself."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._costs = model.step_costs().known()
        self.steps = 0
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def step_costs(self) -> Costs:
        """Measured once for all daemons."""
        return Costs(self._costs)

    def expand(self, *args: Any) -> list[list[Child]]:
        began = time.perf_counter()
        children: list[list[Child]] = self._model.expand(*args)
        self.seconds += time.perf_counter() - began
        self.steps += 1
        return children


class Worker:
    """One loaded draft, or an impostor, before one verifier."""

    def __init__(self, verifier: str, name: str, impostor: str | None) -> None:
        self._verifier = verifier
        self._name = name
        self._model = Counted(
            IMPOSTORS[impostor](name) if impostor else load(Config(verifier, name))
        )
        # Without a window there is nothing to draft: this one only listens.
        self._drafts = Drafts(options=Options(window=0)) if impostor == "dead" else Drafts()
        self._learned: dict[str, Experience] = {}

    def about(self) -> feed.Answer:
        """What the result should say about this drafter."""
        network = getattr(self._model, "network", None)
        arrays = _arrays(network.parameters()) if network else []
        return {
            "blas": feed.loaded_blas(),
            "step_s": self._model.step_costs().known(),
            "rtt_s": median(self._ping() for _ in range(PINGS)),
            "parameters": sum(array.size for array in arrays) or None,
            "dtype": str(arrays[0].dtype).removeprefix("mlx.core.") if arrays else None,
        }

    def _ping(self) -> float:
        """Seconds to an idle verifier and back, without an emulated network."""
        daemon = Daemon(Config(self._verifier, self._name, delay_s=0.0), self._model)
        try:
            daemon.run(lambda: daemon.talk.rtt_s is not None)
            if daemon.talk.rtt_s is None:
                raise daemon.talk.failure or feed.Broken("the verifier does not answer")
            return daemon.talk.rtt_s
        finally:
            daemon.close()

    def answer(self, batch: feed.Batch) -> feed.Answer:
        """What `run` or, for a batch that asks for it, `record` finds."""
        return self.record(batch) if batch.get("record") else self.run(batch)

    def record(self, batch: feed.Batch) -> feed.Answer:
        """What the draft would guess along the `text` of each row."""
        return {
            "records": [
                record(
                    self._model, row["prompt_ids"], row["text"],
                    Sampling(row["max_tokens"], row["temperature"], seed=row["seed"]),
                )
                for row in batch["rows"]
            ]
        }  # fmt: skip

    def run(self, batch: feed.Batch) -> feed.Answer:
        """The rows of one batch through a new daemon. Raises what made a row fail.

        The daemon knows what earlier batches for the same `policy` taught, and only those:
        what another policy learned on the same prompt must not help.
        """
        config = Config(
            self._verifier, self._name, delay_s=batch["delay_s"], jitter_s=batch["jitter_s"]
        )
        encoder = Encoder(self._model.tokenizer.encode, self._model.vocabulary.size)
        drafts = replace(self._drafts, shared=batch.get("shared", 0))
        jobs = [
            make_job(number, row, Sampling(), drafts, encoder)
            for number, row in enumerate(batch["rows"])
        ]
        model, watch = self._model, Watch()
        model.steps, model.seconds = 0, 0.0
        daemon = Daemon(config, model)
        daemon.experience = self._learned.setdefault(batch["policy"], daemon.experience)
        try:
            completion = Completion(daemon, lambda ids: "", batch["at_once"])
            rows = [row for _, row in completion.run(jobs, watch)]
            if daemon.talk.failure is not None:
                raise daemon.talk.failure
        finally:
            daemon.close()
        failed = next((row["error"] for row in rows if "error" in row), None)
        if failed:
            raise feed.Broken(failed)
        wanted = ("token_ids", "timings", "metrics")
        return {
            "rows": [{key: row[key] for key in wanted} for row in rows],
            "span_s": watch.last_at - (watch.first_at or watch.last_at),
            "span_tokens": watch.tokens_after_first,
            "steps": model.steps,
            "step_s": model.seconds,
        }


def _arrays(tree: Any) -> list[Any]:
    """The leaves of nested dicts and lists of arrays."""
    if isinstance(tree, dict | list):
        parts = tree.values() if isinstance(tree, dict) else tree
        return [leaf for part in parts for leaf in _arrays(part)]
    return [tree]


def main() -> None:
    """Read the flags, load, and answer batches until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verifier", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--impostor", choices=sorted(IMPOSTORS))
    flags = parser.parse_args()
    out = feed.claim_stdout()
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    worker = Worker(flags.verifier, flags.model, flags.impostor)
    feed.serve(out, worker.about(), worker.answer)


if __name__ == "__main__":
    main()
