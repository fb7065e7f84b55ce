"""What a message must hold to be acted on; ProtocolError says what it does not."""

from bus.errors import Code, ProtocolError
from bus.messages import PROTOCOL, Draft, Hello, Limits, Open
from bus.packed import MAX_NODES


def check_hello(hello: Hello, model: str, tokenizer_digest: bytes, vocab_size: int) -> None:
    """Its drafter speaks our protocol, and numbers tokens as `model` does."""
    if hello.protocol != PROTOCOL:
        raise ProtocolError(
            Code.PROTOCOL_MISMATCH,
            f"the verifier speaks protocol {PROTOCOL}, the drafter {hello.protocol}: "
            "install the same draftbus release on both sides",
        )
    if hello.tokenizer_digest != tokenizer_digest or hello.vocab_size != vocab_size:
        raise ProtocolError(
            Code.TOKENIZER_MISMATCH,
            f"{hello.model!r} ({hello.vocab_size} ids) and {model!r} ({vocab_size} "
            "ids) number their tokens differently: use a draft of the target's model family",
        )


def check_open(opened: Open, limits: Limits, vocab_size: int) -> None:
    """A session can be started like this."""
    if not opened.prompt:
        raise ProtocolError(Code.EMPTY_PROMPT, "the prompt has no tokens", opened.session)
    if len(opened.prompt) >= limits.max_model_len:
        raise ProtocolError(
            Code.PROMPT_TOO_LONG,
            f"the prompt has {len(opened.prompt)} tokens and the verifier takes at most "
            f"{limits.max_model_len - 1}: shorten it, or raise --max-model-len there",
            opened.session,
        )
    if len(opened.committed) > opened.sampling.max_tokens:
        raise ProtocolError(
            Code.BAD_PARAMS, "more was committed than max_tokens allows", opened.session
        )
    named = max(*opened.prompt, *opened.committed, *opened.sampling.named, 0)
    _check_id("token", named, vocab_size, opened.session)


def check_draft(draft: Draft, vocab_size: int) -> None:
    """Its nodes can be placed."""
    lengths = {len(draft.tokens), len(draft.confidence), len(draft.parents or draft.tokens)}
    if len(lengths) != 1:
        raise ProtocolError(
            Code.BAD_MESSAGE, "tokens, confidence and parents differ in length", draft.session
        )
    if max(draft.parents, default=0) > MAX_NODES + len(draft.more):
        raise ProtocolError(
            Code.BAD_MESSAGE, "a parent names an anchor that is not there", draft.session
        )
    _check_id("drafted", max(draft.tokens, default=0), vocab_size, draft.session)
    anchors = range(MAX_NODES + 1, MAX_NODES + 1 + len(draft.more))
    for place, tokens, _ in draft.proposals:
        if place > len(draft.tokens) and place not in anchors:
            raise ProtocolError(
                Code.BAD_MESSAGE, "a proposal stands at a place that is not there", draft.session
            )
        _check_id("proposed", max(tokens), vocab_size, draft.session)


def _check_id(kind: str, largest: int, vocab_size: int, session: int) -> None:
    if largest >= vocab_size:
        raise ProtocolError(
            Code.TOKEN_OUT_OF_RANGE,
            f"{kind} id {largest} is outside the vocabulary of {vocab_size}",
            session,
        )
