"""One request to a server with OpenAI's interface, and the times at which its answer comes.

The client runs on the cores of the server that it measures, as a rule: of an event it reads no more than it must.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

import aiohttp
import msgspec
from multidict import CIMultiDict

from pelton.bench.requests import BenchRequest
from pelton.bench.serving.request_errors import RequestError
from pelton.bench.serving.request_result import RequestResult
from pelton.error_text import described, message_of, one_line
from pelton.tokenizer import Tokenizer

MAX_ERROR_BYTES = 64 << 10
"""Of a refusal, read to say what it is."""
KEEP_ALIVE_SECONDS = 3.0
"""Of a connection without a request. Servers close them after some seconds (uvicorn after 5), and a request that is
just being sent then would fail."""
IDLE_SECONDS = 600.0
"""Without anything from the server, once an answer has begun, until it has failed. No server pauses so long."""
DRAIN_SECONDS = 1.0
"""For the end of a stream that says that it is done: only then its connection serves the next request."""
MAX_LINE_BYTES = 4 << 20
"""Of an event."""
_ABNORMAL = ("error", "abort")
"""Reasons of an end that is none."""


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


_NO_DELTA = _Delta()


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class _Answer:
    """What has come of an answer. Times are those of `perf_counter`."""

    __slots__ = ("_last_at", "_pieces", "_result", "_start", "_usage", "has_end", "is_done")

    def __init__(self, result: RequestResult, start: float) -> None:
        self._result = result
        self._start = start
        self._last_at = 0.0
        """The last event with a token; 0 before the first."""
        self.has_end = False
        """Whether the event with the reason of the end has come, which has the last token as a rule."""
        self.is_done = False
        """Whether the stream says that nothing more will come."""
        self._pieces: list[str] = []
        self._usage: _Usage | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a token has come, or the end."""
        return self._last_at > 0.0 or self.has_end

    def add(self, data: bytes, now: float) -> None:
        """The content of an event. Raises RequestError if it tells of a failure, or cannot be read."""
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError("unreadable event", message_of(error)) from None
        if event.error:
            raise RequestError("error event", error_message(event.error))
        if event.usage is not None:
            self._usage = event.usage
        for choice in event.choices or ():
            self._add_choice(choice, now)

    def _add_choice(self, choice: _Choice, now: float) -> None:
        delta = choice.delta or _NO_DELTA
        text = choice.text or delta.content or delta.reasoning or delta.reasoning_content
        if text or choice.token_ids:
            if text:
                self._pieces.append(text)
            if self._last_at:
                self._result.itls.append(now - self._last_at)
            else:
                self._result.ttft = now - self._start
            self._last_at = now
        if choice.finish_reason is not None:
            if choice.finish_reason in _ABNORMAL:
                raise RequestError(f"finish_reason {choice.finish_reason}")
            self.has_end = True
            self._result.e2el = now - self._start
            # Tokens without any text, such as a single special one: nothing was to be seen before.
            self._result.ttft = self._result.ttft or self._result.e2el

    def finish(self) -> None:
        """Put into the result what is known at the end, whether the answer is whole or not."""
        result = self._result
        result.seconds = perf_counter() - self._start
        result.text = "".join(self._pieces)
        if not self.has_end and self._last_at:
            result.e2el = self._last_at - self._start
        usage = self._usage
        if usage is not None:
            result.output_len = usage.completion_tokens or 0
            result.prompt_len = usage.prompt_tokens or result.prompt_len
            if usage.prompt_tokens_details is not None:
                result.cached_len = usage.prompt_tokens_details.cached_tokens or 0


class Client:
    """Sends requests to one URL."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, timeout: float) -> None:
        """`timeout`: seconds for a whole answer."""
        self._session = session
        self._url = url
        self._timeout = timeout

    async def send(self, body: bytes, result: RequestResult, epoch: float) -> None:
        """Send a request and wait for its answer.

        The result is filled as the answer comes; `error` says at the end if it is not whole. `epoch` is the time of
        `perf_counter` that `start_time` counts from. `output_len` stays 0 if the server tells no usage.
        """
        start = perf_counter()
        result.start_time = start - epoch
        answer = _Answer(result, start)
        try:
            async with asyncio.timeout(self._timeout):
                await self._exchange(body, answer)
        except TimeoutError:
            result.error = f"timeout: no whole answer after {self._timeout:g} s"
        except RequestError as error:
            result.error = str(error)
        except (aiohttp.ClientError, OSError) as error:
            result.error = f"{_kind_of(error)}: {described(error)}"
        finally:
            answer.finish()

    async def _exchange(self, body: bytes, answer: _Answer) -> None:
        async with self._session.post(self._url, data=body, allow_redirects=False) as response:
            if response.status != 200:
                content = await _beginning(response.content)
                raise RequestError(f"HTTP {response.status}", refusal_message(content) or (response.reason or ""))
            await _read_stream(response.content, answer)
            if not answer.has_end:
                raise RequestError("no end", f"the stream ended without finish_reason ({response.content_type})")


async def _read_stream(content: aiohttp.StreamReader, answer: _Answer) -> None:
    """Until the stream ends, or says that it is done and does not end soon. Raises RequestError if it stalls."""
    try:
        async with asyncio.timeout(None) as idle:
            await _read_events(content, answer, idle)
    except TimeoutError:
        if not idle.expired():
            raise  # the time for a whole answer is up
        raise RequestError("stalled", f"nothing came for {IDLE_SECONDS:g} s") from None
    if answer.is_done:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while await content.readany():
                    pass


async def _read_events(content: aiohttp.StreamReader, answer: _Answer, idle: asyncio.Timeout) -> None:
    """What arrived together has one time. Data of several lines, which nobody sends here, is refused as unreadable."""
    loop = asyncio.get_running_loop()
    rest = b""
    while not answer.is_done and (piece := await content.readany()):
        now = perf_counter()
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        if len(rest) > MAX_LINE_BYTES:
            raise RequestError("unreadable event", f"a line has more than {MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:") and not answer.is_done:
                answer.add(line[5:].strip(), now)
        if answer.has_begun:
            idle.reschedule(loop.time() + IDLE_SECONDS)
    if rest.startswith(b"data:") and not answer.is_done:
        answer.add(rest[5:].strip(), perf_counter())


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < MAX_ERROR_BYTES and (piece := await content.readany()):
        pieces.append(piece)
    return b"".join(pieces)


def _kind_of(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return "cannot connect"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "stream cut"
    return "connection lost"


def refusal_message(content: bytes) -> str:
    """What a body says that comes with an error's status: OpenAI's error, or text."""
    try:
        body = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return one_line(content.decode(errors="replace"))
    return error_message(body.get("error", body) if isinstance(body, dict) else body)


def error_message(error: Any) -> str:
    """Of OpenAI's error object, or of whatever there is in its place."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return one_line(error["message"])
    return one_line(error if isinstance(error, str) else msgspec.json.encode(error).decode())


def request_body(
    request: BenchRequest, fields: Mapping[str, Any], *, is_chat: bool, tokenizer: Tokenizer | None
) -> bytes:
    """A request for a stream, with usage at its end.

    In a chat, a prompt is the user's message; of token ids, their text by the tokenizer. Raises ValueError for messages
    where there is no chat.
    """
    asked: dict[str, Any]
    if is_chat:
        asked = {"messages": request.messages or [{"role": "user", "content": _text(request, tokenizer)}]}
    elif request.prompt is None:
        raise ValueError("the dataset has messages, which are only for a chat; use --backend openai-chat")
    else:
        asked = {"prompt": request.prompt}
    asked |= {"max_tokens": request.output_len, "stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode({**asked, **fields})


def _text(request: BenchRequest, tokenizer: Tokenizer | None) -> str:
    if isinstance(request.prompt, str):
        return request.prompt
    assert request.prompt is not None
    assert tokenizer is not None, "whoever made the ids has one"
    return tokenizer.decode(request.prompt)


def open_session(headers: Iterable[tuple[str, str]] = ()) -> aiohttp.ClientSession:
    """Without limits of its own to the number of connections, nor to the time of an answer.

    These headers win over its own, whatever the case of their names; a name may come several times.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
    # Compressed events would be kept back until there are enough of them.
    merged = CIMultiDict(headers)
    merged.setdefault("Content-Type", "application/json")
    merged.setdefault("Accept-Encoding", "identity")
    return aiohttp.ClientSession(
        connector=connector,
        headers=merged,
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=1 << 20,
    )
