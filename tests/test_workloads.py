"""Prompts from every kind of file, cut and split the same way each time."""

import gzip
import json

import pytest

from bench import workloads
from bench.workloads import Prompt
from bus.errors import BadSetup


def encode(text: str) -> list[int]:
    return list(text.encode())


def written(path, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


KINDS = {
    "humaneval.jsonl.gz": {"task_id": "HumanEval/0", "prompt": "def f", "test": "assert f"},
    "humaneval.jsonl": {"task_id": "HumanEval/0", "prompt": "def f", "test": "assert f"},
    "gsm8k.jsonl": {"question": "def f", "answer": "#### 3"},
    "spec-bench.jsonl.gz": {"question_id": 1, "category": "qa", "turns": ["def f", "and then?"]},
    "generic.jsonl": {"prompt": "def f"},
    "ids.jsonl": {"prompt_ids": encode("def f")},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_file_gives_its_prompt(tmp_path, name):
    path = written(tmp_path / name, [KINDS[name]])
    assert list(workloads.read(path, encode)) == [Prompt(f"{name}:1", tuple(encode("def f")))]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{not json}\n", "p.jsonl:1 is not JSON"),
        (b'{"prompt": "x"}\n\n{"text": "y"}\n', "p.jsonl:3 has none of the fields"),
        (b"[1, 2]\n", "p.jsonl:1 has none of the fields"),
        (b'{"prompt": 7}\n', "prompt holds no text"),
        (b'{"turns": []}\n', "turns holds no text"),
        (b'{"prompt_ids": ["a"]}\n', "not a list of token ids"),
        (b'{"prompt_ids": [true]}\n', "not a list of token ids"),
        (b'{"prompt": ""}\n', "the prompt is empty"),
        (b"\xff\xfe\n", "cannot read prompts"),
        (b"\x1f\x8bnot really gzip", "cannot read prompts"),
        (gzip.compress(b'{"prompt": "x"}')[:-9], "cannot read prompts"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path, content, said):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadSetup, match=said):
        list(workloads.read(path, encode))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(BadSetup, match="cannot read prompts"):
        list(workloads.read(tmp_path / "none.jsonl", encode))


def test_prompts_are_cut_and_equal_ones_come_once(tmp_path):
    one = written(tmp_path / "a.jsonl", [{"prompt": "abcdef"}, {"prompt": "abcxyz"}])
    two = written(tmp_path / "b.jsonl", [{"prompt": "ab"}])
    found = workloads.load([one, two], encode, 3)
    assert found == [
        Prompt("a.jsonl:1", tuple(encode("abc"))),
        Prompt("b.jsonl:1", tuple(encode("ab"))),
    ]


def test_without_files_the_prompts_are_held_out_and_whole():
    found = workloads.load([], encode, 40)
    assert len(found) > 20
    assert {len(prompt.ids) for prompt in found} == {40}
    assert len({prompt.ids for prompt in found}) == len(found)


def some(count):
    return [Prompt(f"p{i}", (i, i + 1)) for i in range(count)]


def test_the_halves_are_disjoint_and_hold_everything():
    halves = workloads.split(some(21), seed=3)
    assert not set(halves.tuning) & set(halves.reporting)
    assert set(halves.tuning) | set(halves.reporting) == set(some(21))
    assert abs(len(halves.tuning) - len(halves.reporting)) == 1


def test_the_split_depends_on_the_tokens_and_the_seed_alone():
    halves = workloads.split(some(20), seed=3)
    assert workloads.split(reversed(some(20)), seed=3) == halves
    renamed = [Prompt("another", prompt.ids) for prompt in some(20)]
    assert [p.ids for p in workloads.split(renamed, 3).tuning] == [p.ids for p in halves.tuning]
    assert workloads.split(some(20), seed=4) != halves
