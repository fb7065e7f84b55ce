"""Bad input at the commands: one line that says what to do, the right exit code, nothing lost."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import processes
from bench.pair import DRAFT, TARGET
from drafter_mlx.__main__ import app as drafter
from drafter_mlx.rows import read_rows
from verifier_cuda.__main__ import app as verifier_app

NOWHERE = "tcp://127.0.0.1:9"


def complete(*flags: str, verifier: str = NOWHERE, model: object = DRAFT):
    """Run `complete` in this process; the result has exit_code, stdout, stderr."""
    arguments = ["complete", "--verifier", verifier, "--model", str(model), "--deadline", "1"]
    return CliRunner().invoke(drafter, [*arguments, *flags])


def one_line(text: str) -> str:
    """The last line of standard error; no traceback may stand there."""
    assert "Traceback" not in text
    return text.strip().splitlines()[-1]


def prompts_file(folder: Path, *rows: object) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return str(path)


def test_without_a_verifier_it_waits_then_gives_up_with_code_2():
    done = complete("--prompt", "import os")
    assert done.exit_code == 2
    assert "no verifier answers at tcp://127.0.0.1:9 (tried for 1 s)" in one_line(done.stderr)
    assert "draftbus-verifier serve" in one_line(done.stderr)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "give either --prompt TEXT or --prompts FILE.jsonl"),
        (("--prompt", "a", "--prompts", "b"), "give either --prompt TEXT or --prompts FILE.jsonl"),
        (("--prompts", "/nowhere.jsonl"), "cannot read /nowhere.jsonl"),
        (("--prompt", "a", "--drafting", "magic"), "no drafting strategy is called 'magic'"),
        (("--prompt", "a", "--top-p", "0"), "a sampling flag is out of range"),
        (("--prompt", "a", "--resume"), "--resume needs the --out file"),
        (("--prompt", "a", "--out", "/nowhere/out.jsonl"), "cannot write /nowhere/out.jsonl"),
        (("--prompt", "a", "--out", "/dev/null"), "cannot write /dev/null: it is no file"),
        (("--prompts", "same.jsonl", "--out", "same.jsonl"), "--out would replace --prompts"),
        (("--prompt", ""), "prompt 1: the prompt is empty"),
    ],
)
def test_a_bad_flag_is_named(flags, said):
    done = complete(*flags)
    assert done.exit_code == 1
    assert said in one_line(done.stderr)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "prompts.jsonl:2 is not JSON"),
        ("[1]", "prompts.jsonl:2 is not an object"),
        ({"text": "x"}, "prompt 2: unknown field 'text'; known are"),
        ({}, "prompt 2: give either prompt or prompt_ids"),
        ({"prompt": 3}, "prompt 2: prompt is not a string"),
        ({"prompt_ids": []}, "prompt 2: the prompt is empty"),
        ({"prompt_ids": [-1]}, "prompt 2: prompt_ids is not a list of token ids"),
        ({"prompt_ids": [1, 100_000]}, "prompt 2: token id 100000 is outside the vocabulary"),
        ({"prompt_ids": [1], "temperature": "hot"}, "prompt 2: temperature: Expected `float`"),
        ({"prompt_ids": [1], "top_p": 2}, "prompt 2: top_p: Expected `float` <= 1"),
        ({"prompt_ids": [1], "seed": 1 << 64}, "prompt 2: seed: Expected `int` < 2**64"),
        ('{"prompt": "\\ud800x"}', "prompt 2: prompt holds half a surrogate pair"),
        ({"prompt_ids": [1], "seed": -4}, "prompt 2: seed: Expected `int` >= 0"),
        ({"prompt_ids": [1], "window": 0}, "prompt 2: window: Expected `int` >= 1"),
        ({"prompt_ids": [1], "drafting": 5}, "prompt 2: drafting: Expected `str`"),
        ({"prompt_ids": [1], "drafting": "magic"}, "prompt 2: no drafting strategy"),
        ({"prompt_ids": [1], "repetition_penalty": 0}, "prompt 2: repetition_penalty: Expected"),
        ({"prompt_ids": [1], "presence_penalty": 3}, "prompt 2: presence_penalty: Expected"),
        ({"prompt_ids": [1], "frequency_penalty": "x"}, "prompt 2: frequency_penalty: Expected"),
        ({"prompt_ids": [1], "logit_bias": [5]}, "prompt 2: logit_bias: Expected `object`"),
        ({"prompt_ids": [1], "logit_bias": {"a": 1}}, "prompt 2: logit_bias: Expected `int`"),
        ({"prompt_ids": [1], "logit_bias": {"5": "1"}}, "prompt 2: logit_bias: Expected `float`"),
        ({"prompt_ids": [1], "logit_bias": {"5": 101}}, "prompt 2: logit_bias: a bias lies in"),
        (
            {"prompt_ids": [1], "logit_bias": {"100000": 1}},
            "prompt 2: logit_bias: token id 100000 is outside the vocabulary",
        ),
        ({"prompt_ids": [1], "logprobs": 21}, "prompt 2: logprobs: Expected `int` <= 20"),
        ({"prompt_ids": [1], "logprobs": True}, "prompt 2: logprobs: Expected `int | null`"),
    ],
)
def test_a_bad_row_is_named_with_its_line_before_anything_runs(row, said, tmp_path):
    done = complete("--prompts", prompts_file(tmp_path, {"prompt": "ok"}, row))
    assert done.exit_code == 1
    assert said in one_line(done.stderr)


@pytest.mark.parametrize("bias", ["5", "5=", "=1", "a=1", "5=x", "5=nan", "5=101", "-1=1"])
def test_a_bad_bias_flag_is_named_and_nothing_is_lost(bias, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("dear\n")
    done = complete("--prompt", "a", "--out", str(out), f"--logit-bias={bias}")
    assert done.exit_code == 1
    assert "--logit-bias: " in one_line(done.stderr)
    assert out.read_text() == "dear\n"


def test_a_bias_flag_outside_the_vocabulary_is_named():
    done = complete("--prompt", "a", "--logit-bias", "5=1", "--logit-bias", "100000=2")
    assert done.exit_code == 1
    assert "logit_bias: token id 100000 is outside the vocabulary" in one_line(done.stderr)


@pytest.mark.parametrize(
    "flags",
    [("--logprobs", "21"), ("--repetition-penalty", "0"), ("--presence-penalty", "2.5"),
     ("--frequency-penalty", "-3")],
)  # fmt: skip
def test_a_sampling_flag_out_of_range_is_refused(flags):
    done = complete("--prompt", "a", *flags)
    assert done.exit_code == 2
    assert f"Invalid value for '{flags[0]}'" in " ".join(done.stderr.split())


def test_beyond_loopback_needs_insecure_on_both_sides():
    done = complete("--prompt", "a", verifier="tcp://192.0.2.1:7700")
    assert done.exit_code == 1
    assert "192.0.2.1 is not a loopback address" in one_line(done.stderr)
    flags = ["serve", "--model", str(TARGET), "--host", "0.0.0.0", "--port", "0"]
    done = CliRunner().invoke(verifier_app, flags)
    assert done.exit_code == 1
    assert "--insecure" in one_line(done.stderr)


@pytest.mark.parametrize("address", ["127.0.0.1:7700", "tcp://host", "tcp://host:99999", "x"])
def test_a_bad_address_is_named(address):
    done = complete("--prompt", "a", verifier=address)
    assert done.exit_code == 1
    assert "write it as tcp://HOST:PORT" in one_line(done.stderr)


def test_wrong_model_paths_are_named_on_both_sides():
    done = complete("--prompt", "a", model="/nowhere/model")
    assert done.exit_code == 1
    assert "cannot load the draft '/nowhere/model'" in one_line(done.stderr)
    done = CliRunner().invoke(verifier_app, ["serve", "--model", "/nowhere/model", "--port", "0"])
    assert done.exit_code == 1
    assert "cannot load the target '/nowhere/model'" in one_line(done.stderr)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(verifier_app, ["serve", "--model", str(TARGET), "--port", port])
    assert done.exit_code == 1
    assert "choose another --port" in one_line(done.stderr)


def test_unequal_tokenizers_are_refused_by_name(verifier, tmp_path):
    for file in DRAFT.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[1000:1002]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    done = complete("--prompt", "import os", verifier=verifier, model=tmp_path)
    assert done.exit_code == 1
    assert "tokenizer_mismatch" in one_line(done.stderr)
    assert "number their tokens differently" in one_line(done.stderr)


def test_what_the_verifier_refuses_fails_its_row_and_no_other(verifier, tmp_path):
    out = tmp_path / "out.jsonl"
    rows = [
        {"prompt_ids": [5] * 2048},
        {"prompt_ids": [5, 6, 7], "max_tokens": 4},
        {"prompt_ids": [5, 6], "acceptance": "magic"},
    ]
    done = complete(
        "--prompts", prompts_file(tmp_path, *rows), "--out", str(out), verifier=verifier
    )
    assert done.exit_code == 1
    assert "Traceback" not in done.stderr
    got = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["finish_reason"] for row in got] == ["error", "length", "error"]
    assert "at most 2047: shorten it" in got[0]["error"]
    assert "no acceptance strategy is called 'magic'; known are" in got[2]["error"]
    assert len(got[1]["token_ids"]) == 4


def test_nothing_is_written_before_the_setup_is_known_to_be_good(tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("dear\n")
    done = complete("--prompt", "a", "--out", str(out), model="/nowhere/model")
    assert done.exit_code == 1
    assert out.read_text() == "dear\n"


def test_resume_refuses_the_answer_to_another_prompt(tmp_path):
    out = tmp_path / "out.jsonl"
    kept = {"prompt_ids": [5, 6], "token_ids": [7], "finish_reason": "length"}
    out.write_text(json.dumps(kept) + "\n")
    source = prompts_file(tmp_path, {"prompt_ids": [5, 8]})
    done = complete("--prompts", source, "--out", str(out), "--resume")
    assert done.exit_code == 1
    assert "row 1 of out.jsonl answers another prompt" in one_line(done.stderr)
    assert json.loads(out.read_text()) == kept


def test_a_line_separator_inside_a_prompt_is_text(tmp_path):
    path = prompts_file(tmp_path, '{"prompt": "a\u2028b"}')
    assert read_rows(Path(path)) == [{"prompt": "a\u2028b"}]


def test_prompt_streams_the_text_and_ends_with_statistics(verifier):
    command = processes.complete_command(
        verifier, DRAFT, ["--prompt", "import os\n\ndef", "--max-tokens", "24"]
    )
    env = {**processes.environment(1), "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "\x1b[3" in done.stdout, "the text is coloured"
    for name in ("acceptance α", "mean accepted length", "rollbacks", "hedge hits"):
        assert name in done.stdout


@pytest.mark.parametrize("module", ["verifier_cuda", "drafter_mlx", "bench"])
def test_modules_run_as_the_scripts_do(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "Usage" in done.stdout
