"""What clients are told when something goes wrong, and what they are not."""

import json
import logging

import pytest
from pydantic import BaseModel, ValidationError

from pelton.core.outputs import CompletionOutput
from pelton.engine.errors import EngineDeadError, QueueFullError
from pelton.server.errors import APIError, check_choice, to_api_error, to_server_error, validation_error
from pelton.server.responses import ErrorResponse

SECRET = "/home/user/model at tcp://10.0.0.1:5555"


def test_the_shape() -> None:
    error = APIError(404, "The model 'x' does not exist.", param="model")
    assert error.body() == {
        "error": {"message": "The model 'x' does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
    }
    assert json.loads(error.body_json()) == error.body()
    ErrorResponse.model_validate(error.body())
    assert str(error) == error.message


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (404, "NotFoundError"),
        (418, "BadRequestError"),
        (500, "InternalServerError"),
        (503, "ServiceUnavailableError"),
        (599, "InternalServerError"),
    ],
)
def test_types(status, name) -> None:
    assert APIError(status, "x").error_type == name
    assert APIError(status, "x", error_type="Mine").error_type == "Mine"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("top_p must be in (0, 1], got 5", "top_p"),
        ("logit_bias of token 5 must be in [-100, 100], got 200", "logit_bias"),
        ("This model's maximum context length is 8 tokens, but the prompt has 9", None),
        ("the prompt is empty; give at least one token", None),
        ("message 0: content is missing", None),
        ("priority is 5, but only scheduling_policy='priority' looks at it", "priority"),
        ("", None),
    ],
)
def test_bad_values(message, param) -> None:
    error = to_api_error(ValueError(message))
    assert (error.status, error.message, error.param) == (400, message, param)


def test_messages_are_not_endless() -> None:
    assert len(to_api_error(ValueError("x" * 100_000)).message) == 2000


def test_a_full_queue() -> None:
    error = to_api_error(QueueFullError("8 requests are waiting", 3))
    assert (error.status, error.headers) == (503, {"Retry-After": "3"})
    assert error.message == "8 requests are waiting"


def test_a_dead_engine() -> None:
    error = to_api_error(EngineDeadError(SECRET))
    assert error.status == 503
    assert SECRET not in error.message


def test_api_errors_stay_as_they_are() -> None:
    error = APIError(413, "too large")
    assert to_api_error(error) is error
    assert to_server_error(error) is error


@pytest.mark.parametrize("translate", [to_api_error, to_server_error])
def test_what_nobody_expected_is_logged_and_not_told(translate, caplog) -> None:
    try:
        raise RuntimeError(SECRET)
    except RuntimeError as raised:
        with caplog.at_level(logging.ERROR, "pelton.server"):
            error = translate(raised)
    assert (error.status, error.error_type) == (500, "InternalServerError")
    assert SECRET not in json.dumps(error.body())
    (record,) = caplog.records
    assert record.name == "pelton.server"
    assert SECRET in caplog.text
    assert "Traceback" in caplog.text


def test_bad_values_are_the_servers_once_a_request_is_accepted(caplog) -> None:
    with caplog.at_level(logging.CRITICAL, "pelton.server"):
        assert to_server_error(ValueError(SECRET)).status == 500


def test_choices_that_did_not_end_by_themselves() -> None:
    for reason in ("stop", "length", None):
        check_choice(CompletionOutput(0, "", [], None, None, reason))
    for reason, status in (("error", 500), ("abort", 503)):
        with pytest.raises(APIError) as raised:
            check_choice(CompletionOutput(0, "", [], None, None, reason, "a\nb"))
        assert raised.value.status == status
        assert raised.value.message.isprintable()


class Sample(BaseModel):
    number: int
    names: list[str]


def test_errors_of_pydantic_and_of_fastapi() -> None:
    with pytest.raises(ValidationError) as raised:
        Sample.model_validate({"number": "x", "names": ["a", 5]})
    error = to_api_error(raised.value)
    assert error.status == 400
    assert error.message.startswith("number must be a valid integer")
    assert error.message.endswith("got 'x' (and 1 more)")
    assert "pydantic" not in error.message
    located = {
        "type": "string_type",
        "loc": ("body", "messages", 3, "content"),
        "msg": "Input should be a valid string",
    }
    error = validation_error([located | {"input": 5}])
    assert (error.message, error.param) == ("messages[3].content must be a string, got 5", "messages")
    broken = {
        "type": "json_invalid",
        "loc": ("body", 7),
        "msg": "JSON decode error",
        "ctx": {"error": "Expecting value"},
    }
    assert validation_error([broken]).message == "the body is not valid JSON: Expecting value"
    assert validation_error([{"type": "missing", "loc": ("body",), "msg": "Field required"}]).message == (
        "the body is missing"
    )
    assert validation_error([]).status == 400
