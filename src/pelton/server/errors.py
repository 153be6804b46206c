"""What went wrong, as clients read it: a status and a body, and nothing of the machine."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pelton.core.outputs import CompletionOutput
from pelton.core.request import CONSTRAINT_FAILED, NO_TOKEN_LEFT
from pelton.engine.errors import SEND_AGAIN, EngineDeadError, QueueFullError
from pelton.error_text import one_line, shown
from pelton.sampling_params import SamplingParams
from pelton.server.not_supported import NOT_SUPPORTED
from pelton.server.protocol import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

_LOGGER = logging.getLogger("pelton.server")

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    431: "RequestTooLargeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
"""vLLM's and OpenAI's names."""
_FIELDS = (
    frozenset(SamplingParams.__struct_fields__)
    .union(*(r.model_fields for r in (CompletionRequest, ChatCompletionRequest, TokenizeRequest, DetokenizeRequest)))
    .union(NOT_SUPPORTED)
)
"""What a message may begin with, if it is about a field."""
_WITH_ENTRIES = frozenset({"response_format", "structured_outputs"})
"""Fields whose entries are like fields of their own."""
_KINDS = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
}
"""What pydantic's errors ask for, in the words of JSON."""
_FIRST_WORD = re.compile(r"([a-z_]+)(\.[a-z_]+)*")
_MAX_MESSAGE = 2000
"""Characters. Templates may refuse with texts of the client's own."""

Model = TypeVar("Model", bound=BaseModel)


class APIError(Exception):
    """What a client gets instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`status`: of HTTP. `param`: the field of the request that the message is about."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type or _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.error_type, "param": self.param, "code": self.status}
        return {"error": error}

    def body_json(self) -> bytes:
        return json.dumps(self.body()).encode()


class CoreLostError(APIError):
    """The engine core that had the request has failed; another attempt may go well."""


def to_api_error(error: BaseException) -> APIError:
    """What a client is told. Errors that nobody expected are logged, and the client learns only that there was one."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, ValidationError):
        return validation_error(error.errors(include_url=False))
    if isinstance(error, ValueError):
        message = str(error)[:_MAX_MESSAGE]
        return APIError(400, message, param=_param_of(message))
    return to_server_error(error)


def to_server_error(error: BaseException) -> APIError:
    """The same for a request that has been accepted, so that nothing can be the client's fault."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, QueueFullError):
        return APIError(503, one_line(str(error)), headers={"Retry-After": str(error.retry_after)})
    if isinstance(error, EngineDeadError):
        return APIError(503, "The engine cannot serve requests at the moment; try again later.")
    _LOGGER.error("a request failed with an error that was not expected", exc_info=error)
    return APIError(500, "The server failed to answer this request; its log says why.")


def check_choice(choice: CompletionOutput) -> None:
    """Raise APIError if a choice did not end by itself."""
    if choice.finish_reason == "error":
        problem = str(choice.stop_reason)
        if problem.startswith(CONSTRAINT_FAILED):
            raise APIError(400, one_line(problem), param="structured_outputs")
        if problem.startswith(NO_TOKEN_LEFT):
            raise APIError(400, one_line(problem))
        kind = CoreLostError if problem.endswith(SEND_AGAIN) else APIError
        raise kind(500, f"The request failed: {one_line(problem)}")
    if choice.finish_reason == "abort":
        raise APIError(503, "The request was cut off, for the server is shutting down; try again later.")


def validation_error(errors: Sequence[Mapping[str, Any]]) -> APIError:
    """Of what pydantic, or FastAPI, found wrong in a request: `errors()` of its exception."""
    if not errors:
        return APIError(400, "The request is not valid.")
    first = errors[0]
    location = [part for part in first["loc"] if part != "[key]"]
    if location[:1] == ["body"]:
        location = location[1:]
    message = _sentence(first, _path(location))
    if len(errors) > 1:
        message += f" (and {len(errors) - 1} more)"
    return APIError(400, message[:_MAX_MESSAGE], param=_field_at(location) or _param_of(message))


def parse_request(model: type[Model], body: bytes | Mapping[str, Any]) -> Model:
    """A request from JSON, or from what JSON holds. Raises APIError that names the field."""
    try:
        return model.model_validate_json(body) if isinstance(body, bytes) else model.model_validate(body)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False)) from None


def _sentence(error: Mapping[str, Any], path: str) -> str:
    """What one of pydantic's errors means."""
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "json_invalid":
        return f"the body is not valid JSON: {one_line(str(context.get('error', error['msg'])))}"
    if kind == "missing":
        return f"{path or 'the body'} is missing"
    if kind in ("value_error", "assertion_error"):
        reason = one_line(str(context["error"])) if "error" in context else one_line(error["msg"])
        return f"{path} {reason}" if path else reason
    subject = path or "the body"
    if kind in ("too_long", "too_short"):
        bound = f"at most {context['max_length']}" if kind == "too_long" else f"at least {context['min_length']}"
        return f"{subject} must have {bound} items, got {context['actual_length']}"
    got = f"got {shown(error.get('input'))}"
    if kind in _KINDS:
        return f"{subject} must be {_KINDS[kind]}, {got}"
    reason = one_line(error["msg"])
    for beginning in ("Input should ", "String should "):
        if reason.startswith(beginning):
            return f"{subject} must {reason.removeprefix(beginning)}, {got}"
    return f"{subject}: {reason}, {got}"


def _path(location: Sequence[Any]) -> str:
    """`messages[3].content`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += ("." if path else "") + one_line(str(part))
    return path


def _field_at(location: Sequence[Any]) -> str | None:
    if not location or location[0] not in _FIELDS:
        return None
    names = list(takewhile(lambda part: isinstance(part, str), location))
    return ".".join(names) if names[0] in _WITH_ENTRIES else str(names[0])


def _param_of(message: str) -> str | None:
    found = _FIRST_WORD.match(message)
    if found is None or found[1] not in _FIELDS:
        return None
    return found[0] if found[1] in _WITH_ENTRIES else found[1]
