"""What others do with the same models: `python -m bench.baselines KIND --model DIR --draft DIR`.

`engine` is our own verifier's engine without drafts, `transformers` is plain and
assisted generation, `mlx-lm` is its speculative decoding on one machine. Each is a
process that answers batches as a drafter's worker does. Only one library is
loaded in it, hence the imports inside.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from bench import feed

Decode = Callable[[dict[str, Any], dict[str, Any]], tuple[list[int], float]]
"""A row and the batch's options to its tokens, and seconds from the end of the prompt on."""


def engine(flags: argparse.Namespace) -> tuple[Decode, feed.Answer]:
    """Our own engine, one session."""
    import torch

    from bench import plain
    from bus.messages import Sampling
    from verifier_cuda.config import Config
    from verifier_cuda.model import load

    target = load(Config(flags.model, dtype=flags.dtype, max_sessions=1))

    def decode(row: dict[str, Any], options: dict[str, Any]) -> tuple[list[int], float]:
        sampling = Sampling(
            row["max_tokens"], row["temperature"], seed=row["seed"], ignore_eos=row["ignore_eos"]
        )
        done = plain.decode(target, row["prompt_ids"], sampling)
        return done.tokens, done.seconds

    device = target.device
    return decode, {
        "dtype": str(target.network.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
    }


def transformers(flags: argparse.Namespace) -> tuple[Decode, feed.Answer]:
    """`generate`, or with the option `assistant` (a dtype) assisted generation.

    The options `num_assistant_tokens` and `schedule` drop the confidence threshold;
    without them the library's defaults decide.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    from bench import plain

    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    dtype = flags.dtype if flags.dtype != "auto" else "bfloat16" if cuda else "float32"

    def loaded(name: str, kind: str) -> Any:
        network = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, kind))
        network.generation_config.eos_token_id = None  # all benchmarks ignore ends
        return network.to(device).eval()

    target = loaded(flags.model, dtype)
    assistants: dict[str, Any] = {}

    def decode(row: dict[str, Any], options: dict[str, Any]) -> tuple[list[int], float]:
        assistant = None
        if kind := options.get("assistant"):
            if kind not in assistants:
                assistants[kind] = loaded(flags.draft, kind)
            assistant = assistants[kind]
            assistant.generation_config = GenerationConfig(eos_token_id=None)
            if count := options.get("num_assistant_tokens"):
                assistant.generation_config.update(
                    num_assistant_tokens=count, assistant_confidence_threshold=0.0,
                    num_assistant_tokens_schedule=options["schedule"],
                )  # fmt: skip
        done = plain.generate(target, row["prompt_ids"], row["max_tokens"], assistant)
        return done.tokens, done.seconds

    return decode, {"dtype": dtype, "threads": torch.get_num_threads()}


def mlx_lm(flags: argparse.Namespace) -> tuple[Decode, feed.Answer]:
    """`speculative_generate_step` with both models in this process; float32 on a CPU."""
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.generate import speculative_generate_step

    target, draft = load(flags.model)[0], load(flags.draft)[0]
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    if on_cpu:
        target.set_dtype(mx.float32)
        draft.set_dtype(mx.float32)

    def decode(row: dict[str, Any], options: dict[str, Any]) -> tuple[list[int], float]:
        tokens: list[int] = []
        began = first_at = time.perf_counter()
        for token, *_ in speculative_generate_step(
            mx.array(row["prompt_ids"]), target, draft, max_tokens=row["max_tokens"],
            num_draft_tokens=options["num_draft_tokens"],
        ):  # fmt: skip
            tokens.append(int(token))
            if len(tokens) == 1:
                first_at = time.perf_counter()
        seconds, rest = time.perf_counter() - first_at, len(tokens) - 1
        return tokens, seconds * len(tokens) / rest if rest else time.perf_counter() - began

    kind = "float32" if on_cpu else "as stored"
    return decode, {"dtype": kind, "blas": feed.loaded_blas() if on_cpu else None}


KINDS = {"engine": engine, "transformers": transformers, "mlx-lm": mlx_lm}


def answer(decode: Decode, batch: feed.Batch) -> feed.Answer:
    """The rows of a batch, one after the other."""
    rows = []
    for row in batch["rows"]:
        tokens, seconds = decode(row, batch.get("options", {}))
        timings = {"predicted_n": len(tokens), "predicted_ms": seconds * 1e3}
        rows.append({"token_ids": tokens, "timings": timings, "metrics": None})
    return {"rows": rows}


def main() -> None:
    """Read the flags, load, and answer batches until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--dtype", default="auto")
    flags = parser.parse_args()
    out = feed.claim_stdout()
    decode, about = KINDS[flags.kind](flags)
    feed.serve(out, about, lambda batch: answer(decode, batch))


if __name__ == "__main__":
    main()
