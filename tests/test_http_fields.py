"""Every wrong field is named; what is sent is what the text depends on; the document says both."""

import json

import msgspec
import pytest

from drafter_mlx.http import fields, openapi
from drafter_mlx.http.answers import combined
from drafter_mlx.http.fields import ChatBody, CompletionBody, parse, sampling_of
from drafter_mlx.http.problems import Problem
from drafter_mlx.stats import Stats

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def refused(raw: bytes | dict, kind: type = CompletionBody) -> Problem:
    raw = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    with pytest.raises(Problem) as caught:
        parse(raw, kind)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"), ("temperature", -1), ("temperature", 101), ("temperature", True),
        ("top_p", 0), ("top_p", 1.5), ("top_k", -2), ("top_k", 1.5), ("min_p", 2),
        ("max_tokens", 0), ("max_tokens", "1"), ("n", 0), ("n", 65), ("seed", -1),
        ("seed", 1 << 64), ("stop", 5), ("stop", ""), ("stop", ["a"] * 17), ("stop", [""]),
        ("stop_token_ids", [-1]), ("ignore_eos", 1), ("stream", "yes"), ("drafting", 5),
        ("drafting", "x" * 201), ("num_draft_tokens", 0), ("branches", 65), ("prompt", 5),
        ("prompt", []), ("prompt", None), ("prompt", [1.5]), ("stream_options", []),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(field, value):
    problem = refused({"prompt": "a", field: value})
    assert problem.status == 400
    assert problem.body.error.type == "invalid_request_error"
    assert problem.body.error.param.split("[")[0] == field
    assert problem.body.error.message.startswith(field)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "wish": 1}]}, "messages[0].wish"),
        ({**CHAT, "stream_options": {"a": 1}}, "stream_options.a"),
        ({**CHAT, "stream_options": {"include_usage": True}}, "stream_options"),
        ({**CHAT, "temprature": 1}, "temprature"),
    ],
)  # fmt: skip
def test_a_wrong_place_is_named(body, param):
    assert refused(body, ChatBody).body.error.param == param


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800x"}',
        b'{"prompt": NaN}',
        b"null",
    ],
)
def test_what_is_no_json_object_is_refused(raw):
    assert refused(raw).status == 400


def test_deep_nesting_is_refused():
    deep = b'{"prompt": "a", "metadata": ' + b"[" * 100_000
    assert refused(deep).status == 400


@pytest.mark.parametrize("name", fields.NEUTRAL)
def test_unsupported_fields_pass_when_they_ask_for_nothing_and_are_named_otherwise(name):
    for value in (None, *fields.NEUTRAL[name]):
        parse(json.dumps({"prompt": "a", name: value}).encode(), CompletionBody)
    flag = any(known is False for known in fields.NEUTRAL[name])
    for value in ({"something": 1}, 0 if flag else False):  # to Python, they are equal
        problem = refused({"prompt": "a", name: value})
    assert (problem.body.error.param, problem.body.error.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("name", fields.IGNORED)
def test_fields_that_cannot_change_the_text_are_taken(name):
    parse(json.dumps({**CHAT, name: "x"}).encode(), ChatBody)


def test_sampling_is_what_was_sent_and_openais_defaults_else():
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "max_tokens": 9,
             "ignore_eos": True, "stop_token_ids": [4, 5]}  # fmt: skip
    sampling = sampling_of(
        parse(json.dumps({"prompt": "a", **given}).encode(), CompletionBody), 3, 16
    )
    for name in given.keys() - {"stop_token_ids"}:
        assert getattr(sampling, name) == given[name]
    assert (tuple(sampling.stop_ids), sampling.seed) == ((4, 5), 3)
    plain = sampling_of(
        parse(b'{"prompt": "a", "top_k": -1, "temperature": null}', CompletionBody), 1, 16
    )
    assert (plain.temperature, plain.top_p, plain.top_k, plain.max_tokens) == (1.0, 1.0, 0, 16)
    chat = parse(json.dumps({**CHAT, "max_completion_tokens": 5}).encode(), ChatBody)
    assert sampling_of(chat, (1 << 64) + 2, 99).max_tokens == 5
    assert sampling_of(chat, (1 << 64) + 2, 99).seed == 2, "seed + i wraps"


def test_the_document_has_every_field_and_only_those():
    schemas = openapi.document("0")["components"]["schemas"]
    for kind in (ChatBody, CompletionBody):
        listed = schemas[kind.__name__]["properties"]
        assert set(listed) == {field.encode_name for field in msgspec.structs.fields(kind)}
        assert schemas[kind.__name__]["additionalProperties"] is False
        assert listed["echo"]["enum"] == [None, False]
    assert json.loads(json.dumps(schemas)) == schemas


def test_statistics_of_several_texts_add_up():
    one = Stats(3, opened_at=10.0, prefilled_at=11.0, ended_at=13.0, tokens=4, passes=2,
                histogram={0: 1, 1: 1}, accepted_by_depth=[1])  # fmt: skip
    two = Stats(5, opened_at=20.0, prefilled_at=20.5, ended_at=24.5, tokens=8, passes=4, lossy=True,
                histogram={1: 2, 3: 2}, accepted_by_depth=[4, 2])  # fmt: skip
    total = combined([one, two])
    assert (total.prompt_tokens, total.tokens, total.passes, total.lossy) == (8, 12, 6, True)
    assert total.histogram == {0: 1, 1: 3, 3: 2}
    assert total.accepted_by_depth == [5, 2]
    assert total.timings()["prompt_ms"] == 1500
    assert total.timings()["predicted_ms"] == 6000
    assert (one.tokens, two.histogram) == (4, {1: 2, 3: 2}), "the parts stay as they are"
