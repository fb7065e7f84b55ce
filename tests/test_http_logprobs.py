"""Logprobs over HTTP: the target's own, whole and streamed, in both of OpenAI's forms."""

import openai
import pytest
import torch
from test_http_api import client, streamed, text, tokens  # noqa: F401

from bus.packed import Logprob
from drafter_mlx.http.logprobs import of_chat, of_text

NAMES = {1: "a", 2: "bc", 3: "\ufffd"}.__getitem__


@torch.inference_mode()
def own(reference, ids: list[int], made: list[int]) -> torch.Tensor:
    """Logprobs after each token of the prompt's end and the text, `[made, vocab]`."""
    logits = reference.network(torch.tensor([ids + made])).logits[0, len(ids) - 1 : -1]
    return logits.double().log_softmax(-1)


def test_a_completion_tells_the_targets_logprobs_whole_and_streamed(client, reference, front):  # noqa: F811
    ids = tokens(front, "import os\n")
    extra = {"return_token_ids": True}
    got = text(client, ids, logprobs=2, temperature=0.8, seed=4, extra_body=extra).choices[0]
    expected = own(reference, ids, got.token_ids)
    assert len(got.logprobs.token_logprobs) == len(got.token_ids) > 4
    for place, token in enumerate(got.token_ids):
        assert got.logprobs.token_logprobs[place] == pytest.approx(
            expected[place, token].item(), abs=1e-4)  # fmt: skip
        best = sorted(got.logprobs.top_logprobs[place].values(), reverse=True)
        assert best == pytest.approx(expected[place].topk(2).values.tolist(), abs=1e-4)
    assert "".join(got.logprobs.tokens) == got.text
    assert got.logprobs.text_offset == [
        sum(map(len, got.logprobs.tokens[:place])) for place in range(len(got.token_ids))
    ]
    chunks = text(client, ids, logprobs=2, temperature=0.8, seed=4, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [each for part in parts if part for each in getattr(part, field)]
        assert joined == getattr(got.logprobs, field), field


def test_a_chat_tells_them_too_and_nothing_unless_asked(client):  # noqa: F811
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "import os"}],
             "temperature": 0, "max_tokens": 8}  # fmt: skip
    got = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3).choices[0]
    assert len(got.logprobs.content) == 8
    for place in got.logprobs.content:
        assert len(place.top_logprobs) == 3
        assert place.logprob == place.top_logprobs[0].logprob, "at temperature 0 the likeliest"
        assert place.bytes is None or bytes(place.bytes).decode() == place.token
    alone = client.chat.completions.create(**asked, logprobs=True).choices[0]
    assert [place.top_logprobs for place in alone.logprobs.content] == [[]] * 8
    assert client.chat.completions.create(**asked).choices[0].logprobs is None
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**asked, top_logprobs=3)
    assert caught.value.param == "top_logprobs"


def test_a_part_of_a_character_has_no_bytes_and_offsets_go_on() -> None:
    told = [(1, Logprob(-1.0, ((2, -0.5),))), (3, Logprob(-2.0))]
    chat = of_chat(told, NAMES).content
    assert [(place.token, place.bytes) for place in chat] == [("a", [97]), ("\ufffd", None)]
    assert [(each.token, each.bytes) for each in chat[0].top_logprobs] == [("bc", [98, 99])]
    found = of_text([(2, Logprob(-1.0)), *told], NAMES, offset=5)
    assert found.text_offset == [5, 7, 8]
    assert found.top_logprobs == [{}, {"bc": -0.5}, {}]
