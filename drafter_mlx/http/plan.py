"""From a request's body to the texts it asks for."""

import secrets
from dataclasses import replace

import strategies
from bus.errors import BadSetup
from bus.packed import MAX_TOKENS, Ids
from drafter_mlx.config import Drafts
from drafter_mlx.http.fields import MAX_CHOICES, ChatBody, CompletionBody, logprobs_of, sampling_of
from drafter_mlx.http.problems import wrong
from drafter_mlx.http.prompts import Prompts
from drafter_mlx.http.work import Choice
from drafter_mlx.request import Request
from strategies.drafting import OPTIONS

DEFAULT_TOKENS = 16
"""Of a completion, as OpenAI's; a chat's answer goes on to the model's limit."""
_NAMES = ("drafting", "acceptance")


def choices_of(
    body: ChatBody | CompletionBody, prompts: Prompts, defaults: Drafts
) -> tuple[list[Choice], int]:
    """Every text, prompt by prompt, and the seed of each prompt's first. Problem (400)."""
    drafts = _drafts(body, defaults)
    prompts.check_ids("stop_token_ids", body.stop_token_ids or [])
    prompts.check_ids("logit_bias", [*dict(body.biases)])
    if isinstance(body, ChatBody):
        each = [prompts.of_messages(body.messages, body.chat_template_kwargs)]
        longest = MAX_TOKENS
    else:
        each, longest = prompts.of_prompt(body.prompt), DEFAULT_TOKENS
    if len(each) * body.choices > MAX_CHOICES:
        raise wrong("n", f"{len(each)} prompts with {body.choices} choices each are over the limit "
                    f"of {MAX_CHOICES} texts")  # fmt: skip
    told = logprobs_of(body)
    seed = secrets.randbits(31) if body.seed is None else body.seed
    return [
        Choice(
            Request(
                Ids(ids), sampling_of(body, seed + i, longest), drafts.acceptance, logprobs=told
            ),
            drafts,
            prompts.text(ids, body.stops),
        )
        for ids in each
        for i in range(body.choices)
    ], seed


def _drafts(body: ChatBody | CompletionBody, defaults: Drafts) -> Drafts:
    names = {name: getattr(body, name) for name in _NAMES if getattr(body, name)}
    options = {name: getattr(body, name) for name in OPTIONS if getattr(body, name)}
    drafts = replace(defaults, **names, options=replace(defaults.options, **options))
    try:
        strategies.load("drafting", drafts.drafting)
    except BadSetup as error:
        raise wrong("drafting", str(error), "unknown_strategy") from None
    return drafts
