"""What a client may ask for, field by field, with the ranges. Pure.

The API's document is made from these Structs. To support one more field, give it
a line in `_Body` (`sampling_of` passes on whatever `Sampling` knows by that name)
and take it out of NEUTRAL.
"""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from bus.messages import Name, Sampling, Top
from bus.packed import MAX_BIAS, MAX_BIASES, MAX_TOKENS, Biases, Ids
from drafter_mlx.http.problems import Problem, wrong
from drafter_mlx.rows import Children, Count

MAX_CHOICES = 64
"""Texts that one request may ask for."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""Known fields that are not supported, with the values (beside null) that ask for nothing."""
IGNORED = (
    "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user",
)  # fmt: skip
"""Known fields that cannot change the text."""

_KINDS: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(Sampling)}
MaxTokens, Temperature = _KINDS["max_tokens"], _KINDS["temperature"]
TopP, MinP = _KINDS["top_p"], _KINDS["min_p"]
Repetition, Penalty = _KINDS["repetition_penalty"], _KINDS["presence_penalty"]
TopK = Annotated[int, Meta(ge=-1, le=MAX_TOKENS, description="0 or -1 keeps all tokens.")]
Seed = Annotated[
    int, Meta(ge=0, le=(1 << 63) - 1, description="Choice i of a prompt uses seed + i.")
]
TokenId = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
TokenName = Annotated[str, Meta(pattern="^(0|[1-9][0-9]{0,8})$", description="A token id.")]
LogitBias = Annotated[
    dict[TokenName, Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]], Meta(max_length=MAX_BIASES)
]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
Known = msgspec.defstruct(
    "Known", [(name, Any, None) for name in (*NEUTRAL, *IGNORED)], kw_only=True
)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is to be."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Accepted; nothing is obfuscated."""


class _Body(Known, forbid_unknown_fields=True, kw_only=True):  # type: ignore[valid-type, misc]
    model: str | None = None
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: Repetition | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    drafting: Name | None = None
    acceptance: Name | None = None
    num_draft_tokens: Count | None = None
    window: Count | None = None
    branches: Children | None = None
    step_nodes: Count | None = None

    @property
    def choices(self) -> int:
        """Texts for each prompt."""
        return self.n or 1

    @property
    def biases(self) -> Biases:
        return Biases((int(token), bias) for token, bias in (self.logit_bias or {}).items())

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def usage_wanted(self) -> bool:
        """Whether a stream is to end with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(_Body, kw_only=True):
    """Continue a prompt. Token ids are taken as they are."""

    logprobs: Top | None = None
    """So many likeliest tokens beside each one of the text."""
    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One turn. What is null here is what an answer's message may bring along."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Meta(max_length=0)] | None = None


class ChatBody(_Body, kw_only=True):
    """Answer a conversation, by the model's own chat template."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def logprobs_of(body: _Body) -> int | None:
    """How many likeliest tokens to tell of beside each one; None for no logprobs at all."""
    if isinstance(body, ChatBody):
        if body.top_logprobs and not body.logprobs:
            raise wrong("top_logprobs", "only with logprobs = true")
        return body.top_logprobs or 0 if body.logprobs else None
    assert isinstance(body, CompletionBody)
    return body.logprobs


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Token ids."""

    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]
    model: str | None = None


Body = TypeVar("Body", bound=msgspec.Struct)


def parse(raw: bytes, kind: type[Body]) -> Body:
    """The request in a body of JSON. Problem (400) names what is wrong with it, and where."""
    try:
        body = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _located(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}", code="invalid_json") from None
    for name, neutral in NEUTRAL.items():
        value = getattr(body, name, None)
        if value is not None and not any(_same(value, known) for known in neutral):
            raise wrong(name, "not supported, leave it out", "unsupported_parameter")
    if getattr(body, "stream_options", None) is not None and not body.stream:  # type: ignore
        raise wrong("stream_options", "only with stream = true")
    return body


def _same(value: Any, known: Any) -> bool:
    """Equal as JSON: to Python, false is 0."""
    return value == known and isinstance(value, bool) == isinstance(known, bool)


def _located(reason: str) -> Problem:
    """A Problem out of msgspec's words."""
    what, _, path = reason.partition(" - at `$")
    place = path.rstrip("`").lstrip(".")
    if named := re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", what):
        place = f"{place}.{named[2]}".lstrip(".")
        what = "no such field" if named[1] == "contains unknown" else "has to be given"
    return wrong(place, what) if place else Problem(400, f"the body: {what}")


def sampling_of(body: _Body, seed: int, default_tokens: int) -> Sampling:
    """What the text depends on, for the choice with this seed."""
    given = {name: value for name in _KINDS if (value := getattr(body, name, None)) is not None}
    longest = getattr(body, "max_completion_tokens", None) or body.max_tokens or default_tokens
    return Sampling(**{
        "temperature": 1.0, **given, "max_tokens": longest, "seed": seed % (1 << 64),
        "top_k": max(0, body.top_k or 0), "stop_ids": Ids(body.stop_token_ids or ()),
        "logit_bias": body.biases,
    })  # fmt: skip
