"""Between the words of a request and token ids: the tokenizer, its chat template, its limits."""

import inspect
from typing import Any

from drafter_mlx.http.fields import MAX_CHOICES, ChatMessage
from drafter_mlx.http.problems import Problem, wrong
from drafter_mlx.http.text import Text


class Prompts:
    """One tokenizer (mlx-lm's wrapper) and perhaps a chat template of the user's."""

    def __init__(self, tokenizer: Any, vocab_size: int, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._size = vocab_size
        self._template = {} if chat_template is None else {"chat_template": chat_template}
        self._named = bool(self._template) or tokenizer.has_chat_template
        self._reserved = _reserved()

    def ids(self, text: str, param: str = "prompt", special: bool = True) -> list[int]:
        """The tokens of a text, with those that the model puts in front of one."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise wrong(param, "holds half a surrogate pair, which is no text") from None
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def of_prompt(self, prompt: str | list[Any]) -> list[list[int]]:
        """Each prompt of `/v1/completions`: one text, several, ids, or several lists of ids."""
        if isinstance(prompt, str) or all(type(each) is int for each in prompt):
            prompt = [prompt]
        if len(prompt) > MAX_CHOICES:
            raise wrong("prompt", f"holds {len(prompt)} prompts; the limit is {MAX_CHOICES}")
        if not (all(type(p) is str for p in prompt) or all(type(p) is list for p in prompt)):
            raise wrong("prompt", "mixes texts and token ids")
        found = [self.ids(each) if isinstance(each, str) else each for each in prompt]
        if not all(found):
            raise wrong("prompt", "is empty; give it at least one token", "empty_prompt")
        self.check_ids("prompt", [max(each) for each in found])
        return found

    def check_ids(self, param: str, ids: list[int]) -> None:
        """Problem when one of `ids` is not in the vocabulary."""
        if max(ids, default=0) >= self._size:
            message = f"token id {max(ids)} is outside the vocabulary of {self._size}"
            raise wrong(param, message, "token_out_of_range")

    def of_messages(self, messages: list[ChatMessage], extra: dict[str, Any] | None) -> list[int]:
        """The tokens of a conversation that the assistant is to go on with."""
        if not self._named:
            reason = (
                "the model has no chat template: start the drafter with --chat-template FILE, or "
                "use /v1/completions"
            )
            raise Problem(400, reason, "messages", "no_chat_template")
        if reserved := sorted(self._reserved & set(extra or {})):
            raise wrong(f"chat_template_kwargs.{reserved[0]}", "is not the template's to know")
        try:
            text = self._tokenizer.apply_chat_template(
                [_turn(message) for message in messages],
                tokenize=False, add_generation_prompt=True, **self._template, **(extra or {}),
            )  # fmt: skip
        except Exception as error:  # a template is foreign code, and raises to refuse a turn
            raise wrong("messages", f"the chat template says: {error}", "chat_template") from None
        found = self.ids(text, "messages", special=False)
        if not found:
            raise wrong("messages", "are no token long", "empty_prompt")
        return found

    def decode(self, ids: list[int]) -> str:
        """The text of token ids."""
        self.check_ids("tokens", ids)
        return str(self._tokenizer.decode(ids))

    def name(self, token: int) -> str:
        """The text of one token; U+FFFD stands for a part of a character."""
        return str(self._tokenizer.decode([token]))

    def text(self, prompt: list[int], stops: list[str]) -> Text:
        """An empty text that goes on after `prompt`."""
        return Text(self._tokenizer.detokenizer, prompt, stops)


def _turn(message: ChatMessage) -> dict[str, str]:
    parts = message.content or ""
    content = parts if isinstance(parts, str) else "".join(part.text for part in parts)
    role = "system" if message.role == "developer" else message.role  # templates know no other
    return {"role": role, "content": content} | ({"name": message.name} if message.name else {})


def _reserved() -> set[str]:
    """What a template's renderer takes for itself, and a request may not set."""
    from transformers import PreTrainedTokenizerBase  # loaded with the model, long before

    taken = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    return set(taken) - {"self", "kwargs"}
