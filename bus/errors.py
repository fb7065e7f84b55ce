"""One family of exceptions, and the codes that travel in an `Error` message.

`ProtocolError` is the peer's fault and never stops a daemon. Our own faults are
assertions. What a user can mend is a `DraftbusError` whose text says how.
"""

from enum import StrEnum


class Code(StrEnum):
    """Every error code that may travel. Peers must accept codes they do not know."""

    BAD_MESSAGE = "bad_message"
    TOO_LARGE = "too_large"
    NOT_GREETED = "not_greeted"
    PROTOCOL_MISMATCH = "protocol_mismatch"
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    UNKNOWN_SESSION = "unknown_session"
    UNKNOWN_STRATEGY = "unknown_strategy"
    STRATEGY_FAILED = "strategy_failed"
    EMPTY_PROMPT = "empty_prompt"
    PROMPT_TOO_LONG = "prompt_too_long"
    TOKEN_OUT_OF_RANGE = "token_out_of_range"
    BAD_PARAMS = "bad_params"
    NOT_SHARED = "not_shared"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"


class DraftbusError(Exception):
    """Anything draftbus raises on purpose; its text is one line that says what to do."""


class ProtocolError(DraftbusError):
    """The peer broke a rule. Answered with an `Error` message, never fatal here."""

    def __init__(self, code: Code, message: str, session: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.session = session


class Refused(DraftbusError):
    """The verifier answered with an `Error` that a retry cannot mend."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"the verifier refused ({code}): {message}")
        self.code = code


class StrategyFailed(DraftbusError):
    """A strategy, which may be anybody's code, raised or returned nonsense."""


class Unreachable(DraftbusError):
    """No verifier answered before the deadline."""


class BadSetup(DraftbusError):
    """A flag, path, address or model that cannot be used as given."""
