"""Handlers over a fake `AsyncLLM`, and what their events say."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from pelton.server.chat import ChatHandler
from pelton.server.completions import CompletionHandler
from pelton.server.errors import parse_request
from pelton.server.models import ServedModels
from pelton.server.protocol import ChatCompletionRequest, CompletionRequest
from pelton.server.streaming import EventStream
from tests.support.fake_async_llm import FakeAsyncLLM

USER = [{"role": "user", "content": "Hi"}]
TIMEOUT = 60
"""Seconds; nothing here waits for time to pass."""


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT))


def served(llm: FakeAsyncLLM, *names: str) -> ServedModels:
    return ServedModels(names or (llm.model_name,), root=llm.model_name, max_model_len=llm.max_model_len)


async def complete(llm: FakeAsyncLLM, *, handler_args: dict[str, Any] | None = None, **fields: Any) -> Any:
    handler = CompletionHandler(llm, served(llm))
    return await _answer(handler, parse_request(CompletionRequest, fields), handler_args)


async def chat(
    llm: FakeAsyncLLM,
    *,
    handler_args: dict[str, Any] | None = None,
    template: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    handler = ChatHandler(llm, served(llm), **(template or {}))
    return await _answer(handler, parse_request(ChatCompletionRequest, {"messages": USER} | fields), handler_args)


async def _answer(handler: Any, request: Any, handler_args: dict[str, Any] | None) -> Any:
    """What a client parses: the response, or the events before the last."""
    answer = await handler.create(request, **(handler_args or {}))
    if isinstance(answer, EventStream):
        return await events(answer)
    return json.loads(answer.model_dump_json())


async def events(stream: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    """All events but the last, which must be `[DONE]`."""
    sent = [event async for event in stream]
    assert sent[-1] == b"data: [DONE]\n\n"
    contents = []
    for event in sent[:-1]:
        assert event.startswith(b"data: {")
        assert event.endswith(b"}\n\n")
        assert event.count(b"\n") == 2
        contents.append(json.loads(event[len("data: ") :]))
    return contents


def texts_of(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """The text of every choice."""
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
    return texts
