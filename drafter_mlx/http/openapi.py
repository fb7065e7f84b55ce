"""The API's own document, made from the Structs that read and write it. Pure."""

from typing import Any

import msgspec

from drafter_mlx.http import answers, fields
from drafter_mlx.http.problems import ErrorBody

_REF = "#/components/schemas/{name}"
_STRUCTS = (
    fields.ChatBody, fields.CompletionBody, fields.TokenizeBody, fields.DetokenizeBody,
    answers.ChatAnswer, answers.ChatChunk, answers.Completion, answers.Models, answers.Model,
    answers.Health, answers.Tokens, answers.Prompt, ErrorBody,
)  # fmt: skip
_ERRORS = {
    "400": "A field is wrong; `param` names it.",
    "401": "No key, or another.",
    "403": "Asked by a page of another site.",
    "404": "Another model is served.",
    "413": "The body is too large.",
    "429": "The queue is full.",
    "503": "The model is being loaded, or there is no verifier.",
}


def document(version: str) -> dict[str, Any]:
    """OpenAPI 3.1."""
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template=_REF)
    for name in ("ChatBody", "CompletionBody"):
        components[name]["properties"].update(_unsupported())
    return {
        "openapi": "3.1.0",
        "info": {"title": "draftbus", "version": version},
        "paths": {
            "/v1/chat/completions": _post("ChatBody", "ChatAnswer", "ChatChunk"),
            "/v1/completions": _post("CompletionBody", "Completion", "Completion"),
            "/tokenize": _post("TokenizeBody", "Tokens"),
            "/detokenize": _post("DetokenizeBody", "Prompt"),
            "/v1/models": _get("What is served.", "Models"),
            "/v1/models/{model}": {
                **_get("One model.", "Model", "401", "403", "404"),
                "parameters": [{"name": "model", "in": "path", "required": True,
                                "schema": {"type": "string"}}],
            },
            "/health": _get("Whether requests are served.", "Health", "403", "503"),
            "/metrics": _get("Prometheus metrics.", None),
            "/openapi.json": _get("This document.", {"type": "object"}),
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }  # fmt: skip


def _unsupported() -> dict[str, Any]:
    """Properties of which only the values that ask for nothing are taken."""
    refused = {
        name: {"enum": [None, *values], "default": None, "description": "Not supported."}
        for name, values in fields.NEUTRAL.items()
        if name in fields.Known.__struct_fields__
    }
    accepted = {"description": "Accepted; changes nothing."}
    return {**refused, **dict.fromkeys(fields.IGNORED, accepted)}


def _post(body: str, answer: str, event: str | None = None) -> dict[str, Any]:
    content = _json(answer)
    if event is not None:
        content["text/event-stream"] = {"schema": _event(event)}
    return {
        "post": {
            "requestBody": {"required": True, "content": _json(body)},
            "responses": {"200": {"description": "Done.", "content": content}, **_errors(*_ERRORS)},
        }
    }


def _event(name: str) -> dict[str, Any]:
    """One server-sent event of a streamed answer."""
    either = {"anyOf": [{"$ref": _REF.format(name=each)} for each in (name, "ErrorBody")]}
    chunk = {"type": "string", "contentMediaType": "application/json", "contentSchema": either}
    data = {"anyOf": [{"const": "[DONE]", "description": "The last event."}, chunk]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _get(summary: str, answer: str | dict[str, Any] | None, *errors: str) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}} if answer is None else _json(answer)
    done = {"200": {"description": summary, "content": content}}
    return {
        "get": {"summary": summary, "responses": {**done, **_errors(*(errors or ("401", "403")))}}
    }


def _json(answer: str | dict[str, Any]) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=answer)} if isinstance(answer, str) else answer
    return {"application/json": {"schema": schema}}


def _errors(*codes: str) -> dict[str, Any]:
    return {code: {"description": _ERRORS[code], "content": _json("ErrorBody")} for code in codes}
