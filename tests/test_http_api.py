"""OpenAI's own client, unchanged, against a real drafter and verifier."""

from itertools import chain

import openai
import pytest
from openai import OpenAI
from test_lossless import complete
from web import ask, post

from bus.messages import Sampling
from bus.packed import Biases

SAMPLED = {"seed": 7, "temperature": 0.8, "max_tokens": 40}
MESSAGES = [{"role": "user", "content": "import os"}]
RENDERED = "# user: import os\n# assistant:"


@pytest.fixture(scope="module")
def client(front):
    with OpenAI(base_url=f"{front}/v1", api_key="any", max_retries=0) as made:
        yield made


def text(client, prompt, **more):
    return client.completions.create(model="tiny", prompt=prompt, **{**SAMPLED, **more})


def streamed(client, prompt, **more):
    """All chunks, and the text they make."""
    chunks = list(text(client, prompt, stream=True, **more))
    return chunks, "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_seeded_text_is_the_same_streamed_whole_and_by_complete(
    heat, client, verifier, prompts, tmp_path
):
    ids = {"extra_body": {"return_token_ids": True}}
    asked = [{"seed": 5 + number, "temperature": heat, "max_tokens": 40} for number in range(3)]
    pairs = list(zip(prompts, asked, strict=False))
    rows = complete(verifier, tmp_path, [{"prompt_ids": ids_, **more} for ids_, more in pairs])
    for (prompt, sampling), row in zip(pairs, rows, strict=True):
        whole = text(client, prompt, **sampling, **ids)
        chunks, joined = streamed(client, prompt, **sampling, **ids)
        assert whole.choices[0].token_ids == row["token_ids"]
        parts = [chunk.choices[0].token_ids for chunk in chunks]
        assert list(chain.from_iterable(parts)) == row["token_ids"]
        assert whole.choices[0].text == joined == row["text"]
        assert whole.choices[0].finish_reason == row["finish_reason"]
        assert chunks[-1].choices[0].finish_reason == row["finish_reason"]


def test_a_chat_is_the_template_and_then_a_completion(client):
    chat = client.chat.completions.create(model="tiny", messages=MESSAGES, **SAMPLED)
    plain = text(client, RENDERED)
    assert chat.choices[0].message.content == plain.choices[0].text
    assert chat.choices[0].message.role == "assistant"
    assert chat.object == "chat.completion"
    parts = [{"type": "text", "text": "import "}, {"type": "text", "text": "os"}]
    again = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": parts}], **SAMPLED
    )
    assert again.choices[0].message.content == chat.choices[0].message.content
    follow = [*MESSAGES, chat.choices[0].message, {"role": "user", "content": "more"}]
    assert client.chat.completions.create(model="tiny", messages=follow, **SAMPLED).choices


def test_a_streamed_chat_begins_with_the_role_and_ends_with_the_reason(client):
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, **SAMPLED)
    chunks = list(
        client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, **SAMPLED)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[:-1] == [None] * (len(chunks) - 1)
    assert reasons[-1] == whole.choices[0].finish_reason
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_choice_i_is_the_text_of_seed_plus_i(client):
    both = text(client, ["import os\n", "def f"], n=3)
    assert [choice.index for choice in both.choices] == list(range(6))
    for number, choice in enumerate(both.choices):
        prompt = ("import os\n", "def f")[number // 3]
        alone = text(client, prompt, seed=7 + number % 3)
        assert choice.text == alone.choices[0].text, number
    assert both.usage.prompt_tokens == sum(
        text(client, prompt).usage.prompt_tokens for prompt in ("import os\n", "def f")
    ), "a prompt counts once"
    assert len({choice.text for choice in both.choices[:3]}) == 3
    by_index = [""] * 6
    for chunk in text(client, ["import os\n", "def f"], n=3, stream=True):
        by_index[chunk.choices[0].index] += chunk.choices[0].text
    assert by_index == [choice.text for choice in both.choices]


def test_prompts_come_as_text_texts_ids_or_lists_of_ids(client, front):
    ids = [tokens(front, prompt) for prompt in ("import os\n", "def f")]
    one = text(client, "import os\n").choices[0].text
    two = text(client, "def f").choices[0].text
    assert [choice.text for choice in text(client, ["import os\n", "def f"]).choices] == [one, two]
    assert text(client, ids[0]).choices[0].text == one
    assert [choice.text for choice in text(client, ids).choices] == [one, two]


def test_an_unseeded_text_can_be_had_again_by_the_seed_it_reports(client):
    first = text(client, "import", seed=None, temperature=1.0)
    second = text(client, "import", seed=None, temperature=1.0)
    assert first.seed != second.seed
    assert text(client, "import", seed=first.seed, temperature=1.0).choices[0].text == (
        first.choices[0].text
    )


@pytest.mark.parametrize("at", [0.2, 0.5, 0.8])
def test_a_stop_string_cuts_the_text_before_it_streamed_or_not(at, client):
    whole = text(client, "import os\n").choices[0].text
    place = int(len(whole) * at)
    stop = whole[place : place + 4]
    expected = whole[: whole.index(stop)]
    for stops in (stop, [stop], ["\x01never", stop]):
        cut = text(client, "import os\n", stop=stops)
        assert cut.choices[0].text == expected
        assert cut.choices[0].finish_reason == "stop"
        assert streamed(client, "import os\n", stop=stops)[1] == expected


def test_stop_token_ids_are_counted_and_not_shown(client, front):
    ids = {"return_token_ids": True}
    whole = text(client, "import os\n", extra_body=ids).choices[0]
    last = whole.token_ids[5]
    cut = text(client, "import os\n", extra_body={**ids, "stop_token_ids": [last]})
    known = whole.token_ids[: whole.token_ids.index(last) + 1]
    assert cut.choices[0].token_ids == known
    assert cut.usage.completion_tokens == len(known)
    assert cut.choices[0].text == post(front, "/detokenize", {"tokens": known[:-1]})["prompt"]
    assert cut.choices[0].finish_reason == "stop"


def test_usage_timings_and_metrics_are_in_every_answer(client):
    row = text(client, "def main():\n", temperature=0)
    assert row.usage.completion_tokens == 40
    assert row.usage.total_tokens == row.usage.prompt_tokens + 40
    again = text(client, "def main():\n" + row.choices[0].text, temperature=0)
    assert again.usage.prompt_tokens_details.cached_tokens == again.timings["cache_n"] > 0
    options = {"stream_options": {"include_usage": True}}
    chunks, _ = streamed(client, "def main():\n", temperature=0, **options)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 40
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all("usage" in chunk.model_fields_set for chunk in chunks), "it is there, and null"
    without, _ = streamed(client, "def main():\n", temperature=0)
    for last in (row, chunks[-1], chunks[-2], without[-1]):
        assert last.timings["predicted_n"] == 40
        assert last.timings["draft_n_accepted"] <= last.timings["draft_n"]
        spec = last.metrics["speculative_decoding"]
        assert spec["num_accepted_draft_tokens"] == last.timings["draft_n_accepted"]
        assert last.seed == 7


def test_drafting_and_acceptance_are_chosen_by_request(client):
    plain = text(client, "import os\n", temperature=0)
    for extra in ({"drafting": "fixed", "num_draft_tokens": 2}, {"acceptance": "greedy"}):
        got = text(client, "import os\n", temperature=0, extra_body=extra)
        assert got.choices[0].text == plain.choices[0].text
    assert got.timings["draft_n_accepted"] == 0, "greedy takes no draft"
    lossy = text(client, "import os\n", temperature=0, extra_body={"acceptance": "threshold:0.01"})
    assert lossy.metrics["draftbus"]["lossy"] is True


def test_sampling_fields_reach_the_target(client, reference, front):
    ids = tokens(front, "import os\n")
    for extra in ({"top_p": 0.7}, {"top_k": 3}, {"min_p": 0.2}, {"ignore_eos": True}):
        got = text(client, ids, extra_body={**extra, "return_token_ids": True})
        assert got.choices[0].token_ids == reference.continue_(ids, Sampling(**SAMPLED, **extra))
    heavy = {"presence_penalty": 0.7, "frequency_penalty": 1.1}
    more = {"repetition_penalty": 1.3, "logit_bias": {"77": -100.0, str(ids[0]): 2.5}}
    got = text(client, ids, **heavy, extra_body={**more, "return_token_ids": True})
    biases = Biases([(77, -100.0), (ids[0], 2.5)])
    asked = Sampling(**SAMPLED, **heavy, repetition_penalty=1.3, logit_bias=biases)
    assert got.choices[0].token_ids == reference.continue_(ids, asked)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-5"}, 404, "model"),
        ({"temperature": -1}, 400, "temperature"),
        ({"extra_body": {"nonsense": 1}}, 400, "nonsense"),
        ({"echo": True}, 400, "echo"),
        ({"prompt": [1, 99_999]}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [5] * 2048}, 400, "prompt"),
        ({"prompt": ["a", "b"], "n": 50}, 400, "n"),
        ({"prompt": ["a"] * 65}, 400, "prompt"),
        ({"extra_body": {"drafting": "magic"}}, 400, "drafting"),
        ({"extra_body": {"acceptance": "magic"}}, 400, "acceptance"),
        ({"extra_body": {"acceptance": "threshold:x"}}, 400, "acceptance"),
        ({"extra_body": {"stop_token_ids": [99_999]}}, 400, "stop_token_ids"),
        ({"logit_bias": {"99999": 1}}, 400, "logit_bias"),
        ({"presence_penalty": 3}, 400, "presence_penalty"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_has_the_right_status_and_names_the_field(stream, fields, status, param, client):
    body = {"model": "tiny", "prompt": "a", "stream": stream, **fields}
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**body)
    assert caught.value.status_code == status
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert text(client, "import", max_tokens=1).choices, "the server lives"


def test_a_chat_template_has_what_it_is_given_and_may_refuse(client):
    def ask(**more):
        return client.chat.completions.create(model="tiny", messages=MESSAGES, **more)

    assert ask(max_tokens=1, extra_body={"chat_template_kwargs": {"mood": "good"}}).choices
    for name in ("chat_template", "tokenize", "add_generation_prompt"):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(extra_body={"chat_template_kwargs": {name: "x"}})
        assert caught.value.param == f"chat_template_kwargs.{name}"


def test_models_tokens_and_metrics(client, front):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").max_model_len == 2048
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    ids = tokens(front, "héllo 🙂")
    assert post(front, "/detokenize", {"tokens": ids})["prompt"] == "héllo 🙂"
    assert post(front, "/tokenize", {"messages": MESSAGES})["tokens"] == tokens(front, RENDERED)
    said = ask(front, "/metrics")[1]
    for name in ("spec_decode_num_drafts_total", "num_requests_running", "generation_tokens_total",
                 "time_to_first_token_seconds_bucket", "rtt_seconds", "wire_bytes_total",
                 "rollback_depth_tokens_sum"):  # fmt: skip
        assert f"draftbus:{name}{{" in said, name
    assert 'num_requests_running{model_name="tiny"} 0.0' in said


def tokens(front: str, prompt: str) -> list[int]:
    return post(front, "/tokenize", {"prompt": prompt})["tokens"]
