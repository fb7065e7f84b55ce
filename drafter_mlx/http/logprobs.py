"""What the target thought of each token, in OpenAI's two forms. Pure."""

from collections.abc import Callable, Sequence

import msgspec

from bus.packed import Logprob

Names = Callable[[int], str]
"""The text of one token id."""
Told = Sequence[tuple[int, Logprob | None]]
"""Tokens, each with what the verifier told of it."""


class Likely(msgspec.Struct):
    """One of the likeliest tokens of a place."""

    token: str
    logprob: float
    bytes: list[int] | None
    """None for a token that is no whole characters."""


class Place(Likely):
    """One token of the text."""

    top_logprobs: list[Likely]


class ChatLogprobs(msgspec.Struct):
    """Of a chat's answer."""

    content: list[Place]
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    """Of a completion."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    """Where each token begins, in characters of the tokens before it."""


def of_chat(told: Told, names: Names) -> ChatLogprobs:
    """`chat.completion`'s."""
    return ChatLogprobs([
        Place(*_named(token, known.value, names), [Likely(*_named(*each, names))
                                                   for each in known.top])
        for token, known in told if known is not None
    ])  # fmt: skip


def of_text(told: Told, names: Names, offset: int = 0) -> TextLogprobs:
    """`text_completion`'s, for tokens that begin at character `offset`."""
    found = TextLogprobs([], [], [], [])
    for token, known in told:
        name = names(token)
        if known is not None:
            found.tokens.append(name)
            found.token_logprobs.append(known.value)
            found.top_logprobs.append({names(each): value for each, value in known.top})
            found.text_offset.append(offset)
        offset += len(name)
    return found


def _named(token: int, logprob: float, names: Names) -> tuple[str, float, list[int] | None]:
    name = names(token)
    return name, logprob, None if "\ufffd" in name else list(name.encode())
