"""Bias and penalties through real processes: the text is still the target's own.

Whatever the drafting, the window, the temperature, and wherever the text is gone on
from: token for token what transformers and a few loops by hand say.
"""

from itertools import product

import pytest
from test_lossless import complete

from bus.messages import Sampling
from bus.packed import Biases

DRAFTING = ("fixed", "multi", "tree", "tree-lookup")
HEATS = ({"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.95, "seed": 3})
BANNED = {"12": -100, "199": -100, "5": 1.5, "201": -3.25}
ADJUSTED = (
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.1, "frequency_penalty": 0.7},
    {"repetition_penalty": 1.1, "frequency_penalty": -0.3, "logit_bias": BANNED},
)


def sampling_of(row: dict, **fields) -> Sampling:
    """What a row asks for."""
    names = {name: row[name] for name in Sampling.__struct_fields__ if name in row}
    if "logit_bias" in names:
        pairs = names["logit_bias"].items()
        names["logit_bias"] = Biases((int(token), value) for token, value in pairs)
    return Sampling(**{**names, **fields})


@pytest.mark.parametrize("at_once", [1, 8])
def test_penalised_texts_are_those_of_the_target_alone(
    at_once, verifier, reference, prompts, tmp_path
):
    cases = list(product(DRAFTING, (4, 16), range(len(HEATS)), range(len(ADJUSTED))))
    rows = [
        {"prompt_ids": prompts[2 + heat], "max_tokens": 40, "drafting": drafting, "window": window,
         "num_draft_tokens": window, "lockstep": window == 4, **HEATS[heat], **ADJUSTED[which]}
        for drafting, window, heat, which in cases
    ]  # fmt: skip
    got = complete(verifier, tmp_path, rows, "--concurrency", str(at_once))
    known = {}
    for (_, _, heat, which), row, answer in zip(cases, rows, got, strict=True):
        if (heat, which) not in known:
            wanted = reference.continue_(row["prompt_ids"], sampling_of(row))
            plain = Sampling(40, **HEATS[heat])
            assert wanted != reference.continue_(row["prompt_ids"], plain), "nothing was adjusted"
            known[heat, which] = wanted
        assert answer["token_ids"] == known[heat, which], row
    for name in DRAFTING:
        chosen = [a for a, case in zip(got, cases, strict=True) if case[0] == name]
        assert sum(a["timings"]["draft_n_accepted"] for a in chosen) > 0, f"{name} never helped"


def test_a_text_that_is_gone_on_from_counts_as_text(verifier, reference, prompts, tmp_path):
    rows, wanted = [], []
    for heat, adjusted in product(HEATS, ADJUSTED):
        row = {"prompt_ids": prompts[4], "max_tokens": 40, **heat, **adjusted}
        whole = reference.continue_(row["prompt_ids"], sampling_of(row))
        for known in (1, 19, len(whole) - 1):
            rows.append({**row, "committed_ids": whole[:known], "lockstep": True})
            wanted.append(whole)
    got = complete(verifier, tmp_path, rows)
    assert [answer["token_ids"] for answer in got] == wanted


def test_a_banned_token_is_not_said_by_any_acceptance(verifier, reference, prompts, tmp_path):
    common = {"prompt_ids": prompts[1], "max_tokens": 32, "drafting": "fixed", "lockstep": True}
    plain = reference.continue_(prompts[1], Sampling(32))
    common["logit_bias"] = {str(token): -100 for token in {*plain}}
    names = ("exact", "greedy", "threshold:0.05", "typical", "probabilistic")
    rows = [{**common, "acceptance": name, **heat} for name in names for heat in HEATS]
    for answer in complete(verifier, tmp_path, rows):
        assert not {*plain} & {*answer["token_ids"]}


def test_flags_and_fields_say_the_same(verifier, reference, prompts, tmp_path):
    row = {"prompt_ids": prompts[5], "max_tokens": 24, **ADJUSTED[2], "presence_penalty": 0.5}
    flags = ["--repeat-penalty", "1.1", "--frequency-penalty", "-0.3", "--presence-penalty", "0.5"]
    for token, value in BANNED.items():
        flags += ["--logit-bias", f"{token}={value}"]
    (by_flag,) = complete(
        verifier, tmp_path, [{"prompt_ids": prompts[5], "max_tokens": 24}], *flags
    )
    assert by_flag["token_ids"] == reference.continue_(prompts[5], sampling_of(row))
