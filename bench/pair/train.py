"""Train the tiny pair: `python -m bench.pair.train`.

Tokenizer, then target, then a draft distilled from the target. Everything is
seeded. `card.json` beside the weights holds what was measured, and how long it
took: 62 minutes for the target and 19 for the draft on 2 busy cores. A GPU is
used where there is one.
"""

import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from bench.pair import corpus

VOCAB = 3072
END = "<|endoftext|>"
MAX_LEN = 2048
CHAT = (
    "{% for message in messages %}# {{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant:{% endif %}"
)
"""A chat template: turns are comments of a source file."""
TARGET = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 6,
          "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
DRAFT = {"hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(logits `[batch, length, vocab]`, ids `[batch, length]`) to a mean loss in nats."""


@dataclass(frozen=True)
class Plan:
    """How long and how hard to train one model."""

    tokens: int
    lr: float
    batch: int = 8
    length: int = 512
    long_share: float = 0.15
    """Share of the tokens, at the end, that come in windows of MAX_LEN."""


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of VOCAB tokens; id 0 is the end of text."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=END, eos_token=END, model_max_length=MAX_LEN,
        clean_up_tokenization_spaces=False, chat_template=CHAT,
    )  # fmt: skip


def make_model(shape: dict[str, int], seed: int) -> LlamaForCausalLM:
    """A Llama with random weights, drawn from `seed`."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCAB, head_dim=64, max_position_embeddings=MAX_LEN,
                    tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, pad_token_id=None,
                    **shape)  # type: ignore[arg-type]
    )  # fmt: skip


def stream(tokenizer: PreTrainedTokenizerFast, held_out: bool) -> np.ndarray:
    """All files of one half as one array of ids, each file closed by the end of text."""
    texts = [text for _, text in corpus.files(held_out)]
    rows = tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
    return np.concatenate([np.array([*row, 0], dtype=np.int32) for row in rows])


def optimizers(model: LlamaForCausalLM, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def next_token_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross entropy against the text, in nats per token."""
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def distillation_loss(teacher: LlamaForCausalLM, device: torch.device) -> Loss:
    """KL(target || draft) at every position, in nats per token (Hinton et al., 2015)."""

    def loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            wanted = teacher(input_ids=ids).logits
        return F.kl_div(
            logits.float().log_softmax(-1).flatten(0, 1),
            wanted.float().log_softmax(-1).flatten(0, 1),
            log_target=True, reduction="batchmean",
        )  # fmt: skip

    return loss


def fit(
    model: LlamaForCausalLM, ids: np.ndarray, plan: Plan, loss_of: Loss, device: torch.device
) -> float:
    """Train in place on random windows of `ids`: warm-up, then a cosine to a tenth.

    Returns the minutes it took.
    """
    rng = np.random.default_rng(0)
    opts = optimizers(model.to(device).train(), plan.lr)
    per_step = plan.batch * plan.length
    steps = plan.tokens // per_step
    began = time.monotonic()
    for step in range(steps):
        long = step >= steps * (1 - plan.long_share)
        length = MAX_LEN if long else plan.length
        starts = rng.integers(0, len(ids) - length, max(1, per_step // length))
        batch = torch.from_numpy(np.stack([ids[s : s + length] for s in starts])).long().to(device)
        rate = min(1.0, (step + 1) / 50) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(input_ids=batch).logits
        loss = loss_of(logits, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = plan.lr * rate
            opt.step()
            opt.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            print(
                f"step {step}/{steps} loss {loss.item():.3f} {time.monotonic() - began:.0f} s",
                flush=True,
            )
    model.eval()
    return round((time.monotonic() - began) / 60, 1)


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, ids: np.ndarray, windows: int = 64) -> float:
    """Mean next-token loss in nats over evenly spread held-out windows of 512 tokens."""
    starts = np.linspace(0, len(ids) - 513, windows).astype(int)
    rows = torch.from_numpy(np.stack([ids[s : s + 512] for s in starts])).long()
    device = model.device
    batches = [row[None].to(device) for row in rows]
    return float(
        np.mean([next_token_loss(model(input_ids=batch).logits, batch).item() for batch in batches])
    )


@torch.no_grad()
def greedy_acceptance(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, prompts: list[list[int]], length: int = 128
) -> float:
    """Share of the target's greedy tokens that the draft would have proposed."""
    device = target.device
    ids = torch.tensor(prompts, device=device)
    full = target.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, min_new_tokens=length,
        do_sample=False, pad_token_id=0,
    )  # fmt: skip
    guessed = draft(input_ids=full).logits.argmax(-1)[:, ids.shape[1] - 1 : -1]
    return float((guessed == full[:, ids.shape[1] :]).float().mean())


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights (bfloat16 safetensors), config and tokenizer."""
    model.to("cpu", torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)


def measure(
    out: Path, tokenizer: PreTrainedTokenizerFast, device: torch.device
) -> dict[str, float]:
    """Losses and acceptance of the weights as they were saved, in float32."""
    target, draft = (
        LlamaForCausalLM.from_pretrained(out / name, dtype=torch.float32).to(device).eval()
        for name in ("target", "draft")
    )
    held = stream(tokenizer, held_out=True)
    prompts = [ids for _, ids in corpus.held_out_prompts(tokenizer.encode, 40)]
    return {
        "target_parameters": target.num_parameters(),
        "draft_parameters": draft.num_parameters(),
        "target_held_out_nats_per_token": round(held_out_loss(target, held), 4),
        "draft_held_out_nats_per_token": round(held_out_loss(draft, held), 4),
        "greedy_acceptance": round(greedy_acceptance(target, draft, prompts), 4),
    }


def train(
    out: Annotated[Path, typer.Option(help="Folder that gets target/, draft/, card.json.")] = Path(
        __file__
    ).parent,
    target_tokens: Annotated[int, typer.Option(help="Training tokens of the target.")] = 8_000_000,
    draft_tokens: Annotated[int, typer.Option(help="Training tokens of the draft.")] = 4_000_000,
    target_lr: Annotated[float, typer.Option(help="Peak learning rate of the target.")] = 1e-2,
    draft_lr: Annotated[float, typer.Option(help="Peak learning rate of the draft.")] = 1e-2,
    draft_only: Annotated[bool, typer.Option(help="Keep the target that is there.")] = False,
) -> None:
    """Train tokenizer, target and draft on the standard library; write them to OUT."""
    disable_progress_bar()
    path = out / "card.json"
    minutes = json.loads(path.read_text())["minutes"] if draft_only and path.exists() else {}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plans = {"target": Plan(target_tokens, target_lr), "draft": Plan(draft_tokens, draft_lr)}
    tokenizer = make_tokenizer([text for _, text in corpus.files(held_out=False)])
    ids = stream(tokenizer, held_out=False)
    print(f"{len(ids)} training tokens on {device}", flush=True)
    if not draft_only:
        target = make_model(TARGET, seed=1)
        minutes["target"] = fit(target, ids, plans["target"], next_token_loss, device)
        save(target, tokenizer, out / "target")
    teacher = (
        LlamaForCausalLM.from_pretrained(out / "target", dtype=torch.float32).to(device).eval()
    )
    draft = make_model(DRAFT, seed=2)
    minutes["draft"] = fit(draft, ids, plans["draft"], distillation_loss(teacher, device), device)
    save(draft, tokenizer, out / "draft")
    card = {
        **measure(out, tokenizer, device),
        "corpus_tokens": len(ids),
        "plans": {name: asdict(plan) for name, plan in plans.items()},
        "python": platform.python_version(), "torch": torch.__version__, "device": device.type,
        "minutes": minutes,
    }  # fmt: skip
    path.write_text(json.dumps(card, indent=2) + "\n")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    typer.run(train)
