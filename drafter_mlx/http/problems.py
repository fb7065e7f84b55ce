"""What a client is told when a request cannot be served: OpenAI's error body. Pure."""

from typing import Any

import msgspec

from bus.errors import BadSetup, Code, DraftbusError, Refused, StrategyFailed

RETRY_AFTER_S = 1
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
}
_REFUSALS = {
    Code.PROMPT_TOO_LONG: (400, "prompt", "context_length_exceeded"),
    Code.EMPTY_PROMPT: (400, "prompt", "empty_prompt"),
    Code.TOKEN_OUT_OF_RANGE: (400, None, "token_out_of_range"),
    Code.BAD_PARAMS: (400, None, "bad_params"),
    Code.UNKNOWN_STRATEGY: (400, "acceptance", "unknown_strategy"),
    Code.STRATEGY_FAILED: (400, "acceptance", "strategy_failed"),
    Code.OVERLOADED: (429, None, "overloaded"),
}
"""What a verifier's refusal is over HTTP; any other is its own trouble."""


class ErrorDetail(msgspec.Struct):
    """What was wrong, and where."""

    message: str
    type: str
    param: str | None = None
    """The field that cannot be used."""
    code: str | int | None = None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is none."""

    error: ErrorDetail


class Problem(Exception):
    """An answer that is an error; `status` is HTTP's."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = _TYPES.get(status, "invalid_request_error")
        self.body = ErrorBody(ErrorDetail(message, kind, param, code))

    @property
    def headers(self) -> dict[str, str]:
        """Those that belong to the status."""
        busy = {"Retry-After": str(RETRY_AFTER_S)}
        return {429: busy, 503: busy, 401: {"WWW-Authenticate": "Bearer"}}.get(self.status, {})


def wrong(param: str, message: str, code: str | None = None) -> Problem:
    """The client's fault in field `param`."""
    return Problem(400, f"{param}: {message}", param, code)


def unavailable(reason: str) -> Problem:
    """Nobody's fault; the same request may be served soon."""
    return Problem(503, reason, code=503)


def problem_of(error: DraftbusError) -> Problem:
    """What ended a text, as a client is told."""
    match error:
        case Refused(code=code) if code in _REFUSALS:
            status, param, name = _REFUSALS[Code(code)]
            return Problem(status, str(error), param, name)
        case StrategyFailed():
            return Problem(400, str(error), "drafting", "strategy_failed")
        case BadSetup():
            return Problem(400, str(error))
    return unavailable(str(error))


def encoded(value: Any) -> bytes:
    """JSON in UTF-8."""
    return msgspec.json.encode(value)
