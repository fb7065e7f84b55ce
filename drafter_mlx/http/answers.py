"""What a client is answered: OpenAI's objects, whole or in chunks, with statistics. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from drafter_mlx.http.logprobs import ChatLogprobs, Names, TextLogprobs, Told, of_chat, of_text
from drafter_mlx.stats import Stats

Finish = Literal["stop", "length"]
Numbers = dict[str, Any]


class PromptDetails(msgspec.Struct):
    """How much of a prompt had not to be read."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens read and made. An end id, and those that complete a stop string, are counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class ChatAnswerMessage(msgspec.Struct):
    """The assistant's turn."""

    content: str
    role: Literal["assistant"] = "assistant"


class ChatDelta(msgspec.Struct):
    """More of the assistant's turn."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class _Choice(msgspec.Struct, kw_only=True):
    index: int
    finish_reason: Finish | None = None
    token_ids: list[int] | UnsetType = UNSET
    """On request (`return_token_ids`)."""


class ChatChoice(_Choice, kw_only=True):
    """One of the answers."""

    logprobs: ChatLogprobs | None = None

    message: ChatAnswerMessage


class ChatChunkChoice(_Choice, kw_only=True):
    """A piece of one of the answers."""

    logprobs: ChatLogprobs | None = None

    delta: ChatDelta


class TextChoice(_Choice, kw_only=True):
    """One of the texts, or a piece of it."""

    logprobs: TextLogprobs | None = None

    text: str


class _Answer(msgspec.Struct, kw_only=True):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | UnsetType | None = UNSET
    seed: int | UnsetType = UNSET
    """The seed of the first choice of each prompt."""
    timings: Numbers | UnsetType = UNSET
    """llama.cpp's; in a stream, in the last chunk."""
    metrics: Numbers | UnsetType = UNSET
    """`speculative_decoding` is vLLM's, `draftbus` our own; in a stream, in the last chunk."""


class ChatAnswer(_Answer, kw_only=True):
    """A whole answer."""

    choices: list[ChatChoice]
    object: Literal["chat.completion"] = "chat.completion"


class ChatChunk(_Answer, kw_only=True):
    """One event of a streamed answer."""

    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class Completion(_Answer, kw_only=True):
    """A whole answer to `/v1/completions`, or one event of it."""

    choices: list[TextChoice]
    object: Literal["text_completion"] = "text_completion"


class Model(msgspec.Struct):
    """What is served."""

    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "draftbus"


class Models(msgspec.Struct):
    """The one model, or none while there is no verifier."""

    data: list[Model]
    object: Literal["list"] = "list"


class Health(msgspec.Struct):
    """Requests are served."""

    status: Literal["ok"] = "ok"


class Tokens(msgspec.Struct):
    """The token ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: int | None


class Prompt(msgspec.Struct):
    """The text of token ids."""

    prompt: str


@dataclass(frozen=True)
class Ended:
    """One choice that is over."""

    text: str
    told: Told
    """The tokens it was made of."""
    finish: Finish
    stats: Stats


@dataclass(frozen=True)
class Head:
    """What all chunks of one answer share."""

    chat: bool
    id: str
    created: int
    model: str
    fingerprint: str
    seed: int
    each: int = 1
    """Choices of each prompt."""
    with_ids: bool = False
    names: Names | None = None
    """Makes text of single tokens, for logprobs; None where they were not asked for."""

    @property
    def tells(self) -> bool:
        """Whether tokens are told of that have no text yet."""
        return self.with_ids or self.names is not None

    def length(self, told: Told) -> int:
        """Characters of tokens, one by one; 0 where nobody asks, as in chats."""
        if self.names is None or self.chat:
            return 0
        return sum(len(self.names(token)) for token, _ in told)

    def whole(self, ended: Sequence[Ended]) -> ChatAnswer | Completion:
        """The answer that holds all choices, in order."""
        closing = {**self._common(), **self.closing(ended), "usage": self._usage(ended)}
        rest = [(each.text, {"index": i, "finish_reason": each.finish, **self._of(each.told)})
                for i, each in enumerate(ended)]  # fmt: skip
        if self.chat:
            return ChatAnswer(**closing, choices=[
                ChatChoice(message=ChatAnswerMessage(text), **more) for text, more in rest
            ])  # fmt: skip
        return Completion(**closing, choices=[TextChoice(text=text, **more) for text, more in rest])

    def chunk(
        self, index: int, text: str, told: Told, finish: Finish | None = None,
        offset: int = 0, **closing: Any,
    ) -> ChatChunk | Completion:  # fmt: skip
        """A piece of one choice, whose tokens begin at character `offset`."""
        rest = {"index": index, "finish_reason": finish, **self._of(told, offset)}
        if self.chat:
            said = ChatDelta(content=text) if text or not finish else ChatDelta()
            choice = ChatChunkChoice(delta=said, **rest)
            return ChatChunk(**self._common(), **closing, choices=[choice])
        return Completion(**self._common(), **closing, choices=[TextChoice(text=text, **rest)])

    def greeting(self, index: int, **more: Any) -> ChatChunk:
        """What a chat's choice begins with."""
        delta = ChatDelta("assistant", "")
        choice = ChatChunkChoice(index=index, delta=delta, **self._of(()))
        return ChatChunk(**self._common(), **more, choices=[choice])

    def summary(self, ended: Sequence[Ended]) -> ChatChunk | Completion:
        """The chunk without choices that tells the usage."""
        kind = ChatChunk if self.chat else Completion
        return kind(**self._common(), **self.closing(ended), usage=self._usage(ended), choices=[])

    def closing(self, ended: Sequence[Ended]) -> dict[str, Any]:
        """Statistics over all choices; rates are of one text."""
        total = combined([each.stats for each in ended])
        return {"seed": self.seed, "timings": total.timings(), "metrics": total.metrics()}

    def _usage(self, ended: Sequence[Ended]) -> Usage:
        """A prompt counts once, however many choices it has."""
        prompts = [choice.stats for choice in ended[:: self.each]]
        read = sum(stats.prompt_tokens for stats in prompts)
        cached = sum(stats.reused for stats in prompts)
        made = sum(len(choice.told) for choice in ended)
        return Usage(read, made, read + made, PromptDetails(cached))

    def _common(self) -> dict[str, Any]:
        return {"id": self.id, "created": self.created, "model": self.model,
                "system_fingerprint": self.fingerprint}  # fmt: skip

    def _of(self, told: Told, offset: int = 0) -> dict[str, Any]:
        """What was asked for about tokens."""
        found: dict[str, Any] = {}
        if self.with_ids:
            found["token_ids"] = [token for token, _ in told]
        if self.names is not None and told:
            found["logprobs"] = (
                of_chat(told, self.names) if self.chat else of_text(told, self.names, offset)
            )
        return found


def combined(parts: Sequence[Stats]) -> Stats:
    """Counts and times of several texts, added up."""
    if len(parts) == 1:
        return parts[0]
    total = Stats(0)
    for part in parts:
        for field in fields(Stats):
            name = field.name
            setattr(total, name, _added(getattr(total, name), getattr(part, name)))
    total.opened_at = 0.0
    total.prefilled_at = sum(max(0.0, part.prefilled_at - part.opened_at) for part in parts)
    total.ended_at = total.prefilled_at + sum(part.seconds for part in parts)
    return total


def _added(one: Any, other: Any) -> Any:
    match one:
        case bool():
            return one or other
        case dict():
            return {key: one.get(key, 0) + other.get(key, 0) for key in one | other}
        case list():
            long, short = sorted((one, other), key=len, reverse=True)
            return [n + (short[i] if i < len(short) else 0) for i, n in enumerate(long)]
    return one + other
