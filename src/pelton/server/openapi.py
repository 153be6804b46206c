"""The description of the API at /openapi.json."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from pelton.server.protocol import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from pelton.server.responses import ErrorResponse

_REFERENCE = "#/components/schemas/{model}"
_REQUESTS = (ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest)
_ERRORS = {
    400: "The request is not valid.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    409: "The engine is in no state for it.",
    413: "The body is too large.",
    415: "The content type is not JSON.",
    500: "Something failed in the server.",
    503: "The engine cannot take the request now.",
}

Responses = dict[int | str, dict[str, Any]]


def error_responses(*statuses: int) -> Responses:
    """Descriptions of answers that have the shape of an error."""
    return {status: {"model": ErrorResponse, "description": _ERRORS[status]} for status in statuses}


def json_body(model: type[Any]) -> dict[str, Any]:
    """For a route's `openapi_extra`: it takes a body of this model."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe_api(app: FastAPI, servers: list[dict[str, str]] | None, *, needs_key: bool) -> dict[str, Any]:
    """The whole description. Routes read their bodies themselves, so FastAPI does not know their models."""
    description = get_openapi(title=app.title, version=app.version, routes=app.routes, servers=servers)
    _, definitions = models_json_schema([(model, "validation") for model in _REQUESTS], ref_template=_REFERENCE)
    schemas = description.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions["$defs"])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for operations in description["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI's own checks, which no route uses
            if needs_key and "401" in operation["responses"]:
                operation["security"] = [{"key": []}]
    if needs_key:
        description["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return description


def event_stream(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/event-stream": {}}}
