"""The tiny pair is what its card says, and its held-out text was held out."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.pair import DRAFT, TARGET, corpus
from bench.pair.train import greedy_acceptance
from bus.vocabulary import Vocabulary

CARD = json.loads((TARGET.parent / "card.json").read_text())


def test_the_pair_ships_small_and_the_draft_is_six_times_smaller():
    size = sum(file.stat().st_size for folder in (TARGET, DRAFT) for file in folder.iterdir())
    assert size <= 24 * 2**20
    assert 4e6 <= CARD["target_parameters"] <= 8e6
    assert CARD["target_parameters"] >= 6 * CARD["draft_parameters"]
    assert (TARGET / "model.safetensors").exists()


def test_both_models_have_one_tokenizer():
    target, draft = (AutoTokenizer.from_pretrained(folder) for folder in (TARGET, DRAFT))
    assert Vocabulary.of(target.get_vocab()) == Vocabulary.of(draft.get_vocab())
    text = "def naïve(x):\n\treturn '€' + x  # 🙂\n"
    assert target.decode(draft.encode(text)) == text


def test_the_draft_guesses_the_targets_greedy_text_as_often_as_the_card_says():
    target, draft = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (TARGET, DRAFT)
    )
    encode = AutoTokenizer.from_pretrained(TARGET).encode
    prompts = [ids for _, ids in corpus.held_out_prompts(encode, 40)]
    measured = greedy_acceptance(target, draft, prompts)
    assert 0.6 <= measured <= 0.9
    assert measured == pytest.approx(CARD["greedy_acceptance"], abs=0.05), "another Python's text"


def test_held_out_files_are_the_same_everywhere_and_never_trained_on(tmp_path):
    for number in range(300):
        (tmp_path / f"module_{number}.py").write_text(f"value = {number}\n" * 60)
    (tmp_path / "encodings").mkdir()
    (tmp_path / "encodings" / "table.py").write_text("x = 1\n" * 200)
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n" * 200)
    held = [name for name, _ in corpus.files(held_out=True, root=tmp_path)]
    trained = [name for name, _ in corpus.files(held_out=False, root=tmp_path)]
    assert len(held) + len(trained) == 300
    assert not set(held) & set(trained)
    assert 5 <= len(held) <= 30
    assert all(corpus.is_held_out(name) for name in held)


def test_a_library_without_enough_held_out_text_is_named(monkeypatch):
    monkeypatch.setattr(corpus, "files", lambda held_out, root=None: iter([("a.py", "x" * 5000)]))
    with pytest.raises(ValueError, match="only 1 held-out files of 10 tokens; 2 were asked for"):
        corpus.held_out_prompts(lambda text: list(range(100)), 2, 5)


def test_the_readme_of_the_pair_quotes_the_card():
    page = (Path(TARGET).parent / "README.md").read_text()
    for value in (
        f"{CARD['target_parameters']:,}",
        f"{CARD['draft_parameters']:,}",
        f"{CARD['target_held_out_nats_per_token']:.2f}",
        f"{CARD['draft_held_out_nats_per_token']:.2f}",
        f"Greedy acceptance: {CARD['greedy_acceptance']:.2f}",
    ):
        assert value in page
