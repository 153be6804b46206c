"""The description of the API is true: whatever it allows or forbids, the server answers as it says."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from pelton.config import ServeConfig
from pelton.server.app import create_app
from tests.support.fake_async_llm import FakeAsyncLLM

KEY = "k"
APP = create_app(FakeAsyncLLM(max_model_len=256), ServeConfig(api_key=[KEY], enable_admin_endpoints=True))

load_all_checks()
TRUE_CHECKS = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
        "allow_header_conformance",
        "missing_required_header",
        "ignored_auth",
    ]
)
"""All but those of sequences, and of whether everything that a schema allows is accepted: fields depend on others."""
schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


def test_what_is_described():
    description = APP.openapi()
    assert description["paths"].keys() >= {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/metrics",
        "/tokenize",
    }
    body = description["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "prompt" in description["components"]["schemas"][body["$ref"].rpartition("/")[2]]["properties"]
    assert "text/event-stream" in description["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]
    assert not any("422" in op["responses"] for item in description["paths"].values() for op in item.values())
    assert description["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


def test_without_a_key_the_description_asks_for_none():
    description = create_app(FakeAsyncLLM(), ServeConfig()).openapi()
    assert "securitySchemes" not in description["components"]


@schema.parametrize()
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_answers_are_as_described(case):
    case.call_and_validate(headers={"Authorization": f"Bearer {KEY}"}, checks=TRUE_CHECKS)
