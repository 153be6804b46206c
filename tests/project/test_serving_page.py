"""docs/serving.md and docs/command-line.md speak of flags, paths, fields and metrics that there are."""

import re
from pathlib import Path

from pelton.cli import run_batch, serve
from pelton.config.serving import ServeConfig
from pelton.server.app import create_app
from pelton.server.metrics import HELP
from pelton.server.not_supported import NOT_SUPPORTED
from pelton.server.protocol import ChatCompletionRequest, CompletionRequest
from tests.support.fake_async_llm import FakeAsyncLLM

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serving.md").read_text()
OTHERS_FLAGS = {
    "--data-parallel-backend", "--enable-log-requests", "--enable-reasoning", "--exclude-tools-when-tool-choice-none",
    "--guided-decoding-backend", "--tool-parser-plugin", "--trust-remote-code",
}  # fmt: skip
"""vLLM's, in the table of differences."""


def section(title: str, page: str = PAGE) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_flags() -> None:
    known = {flag for action in serve.make_parser()._actions for flag in action.option_strings}
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE))
    assert found - OTHERS_FLAGS <= known
    assert "--api-key-file" in found
    page = section("pelton run-batch", (DOCS / "command-line.md").read_text())
    known = {flag for action in run_batch.make_parser()._actions for flag in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) <= known


def test_endpoints() -> None:
    app = create_app(FakeAsyncLLM(), ServeConfig(enable_admin_endpoints=True))  # type: ignore[arg-type]
    served = {path.replace("{model}", "{name}") for path in app.openapi()["paths"]}
    written = set(re.findall(r"(?<=[TS] )(/[^ `]*)", section("Endpoints").partition("\n\nWith keys")[0]))
    assert served <= written
    assert written - served <= {"/", "/ping", "/openapi.json"}, "those are not in the description"


def test_fields_of_requests() -> None:
    rows = dict(re.findall(r"^\| (both|completions|chat) \| (.*) \|$", section("Fields of requests"), re.MULTILINE))
    written = {name: set(re.findall(r"`([a-z_]+)`", text)) for name, text in rows.items()}
    completions, chat = set(CompletionRequest.model_fields), set(ChatCompletionRequest.model_fields)
    assert written["both"] == completions & chat - {"logprobs"}
    assert written["completions"] == completions - chat | {"logprobs"}
    assert written["chat"] - {"text"} == chat - completions | {"logprobs"}
    refused = section("Fields of requests").partition("Refused with status 400")[2]
    assert set(re.findall(r"`([a-z_]+)`", refused)) <= NOT_SUPPORTED


def test_metrics() -> None:
    """All but those of what is yet to come."""
    rows = section("Metrics").partition("| `vllm:` |")[2]
    written = {name for row in rows.splitlines() for name in re.findall(r"`([a-z0-9_]+)`", row.split(" | ")[0])}
    names = {name for name in HELP if not name.startswith("spec_decode_")}
    gauges_and_histograms = {name for name in written if name in names}
    counters = {name.removesuffix("_total") for name in written - gauges_and_histograms}
    assert gauges_and_histograms | counters == names
