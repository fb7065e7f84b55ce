"""Chat templates: the model's own, the user's, none; and what they refuse."""

import json

import pytest
from mlx_lm.tokenizer_utils import load
from test_http_text import TOKENIZER

from bench.pair import DRAFT
from drafter_mlx.http.fields import ChatMessage, TextPart
from drafter_mlx.http.problems import Problem
from drafter_mlx.http.prompts import Prompts

SIZE = 3072
HI = [ChatMessage("system", "be brief"), ChatMessage("user", "hi")]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The tiny pair's tokenizer without its template."""
    folder = tmp_path_factory.mktemp("bare")
    for file in DRAFT.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load(folder)


def test_a_model_without_a_template_says_how_to_give_one(bare):
    with pytest.raises(Problem, match="--chat-template FILE") as caught:
        Prompts(bare, SIZE).of_messages(HI, None)
    assert (caught.value.status, caught.value.body.error.code) == (400, "no_chat_template")


def test_the_users_template_goes_before_the_models(bare):
    template = "{{ messages[1].content }}{{ mood }}"
    for tokenizer in (bare, TOKENIZER):
        prompts = Prompts(tokenizer, SIZE, template)
        assert prompts.decode(prompts.of_messages(HI, {"mood": "!"})) == "hi!"


def test_developers_speak_as_the_system_and_parts_are_joined():
    prompts = Prompts(TOKENIZER, SIZE)
    said = [ChatMessage("developer", [TextPart("text", "be "), TextPart("text", "brief")]), HI[1]]
    assert prompts.of_messages(said, None) == prompts.of_messages(HI, None)
    assert prompts.decode(prompts.of_messages(HI, None)) == (
        "# system: be brief\n# user: hi\n# assistant:"
    )


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('turns must alternate') }}", "turns must alternate"),
        ("{{ nothing.there }}", "chat template"),
        ("{{", "chat template"),
        ("", "no token"),
    ],
)
def test_a_template_that_refuses_is_the_clients_400(template, said, bare):
    with pytest.raises(Problem, match=said) as caught:
        Prompts(bare, SIZE, template).of_messages(HI, None)
    assert (caught.value.status, caught.value.body.error.param) == (400, "messages")
