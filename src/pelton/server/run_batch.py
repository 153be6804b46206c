"""OpenAI's batch files: requests in lines of JSON, answered by the handlers of the HTTP server, without HTTP."""

import asyncio
import sys
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from pydantic import BaseModel, Field

from pelton.config import EngineArgs, ParallelConfig, ServeConfig
from pelton.engine.async_llm import AsyncLLM
from pelton.engine.errors import EngineDeadError
from pelton.engine.served_model import ServedModel
from pelton.engine.start import connected_llm, engine_processes
from pelton.engine.topology import Topology
from pelton.error_text import shown
from pelton.server.chat import ChatHandler
from pelton.server.completions import CompletionHandler
from pelton.server.errors import APIError, CoreLostError, parse_request, to_api_error
from pelton.server.models import ServedModels
from pelton.server.protocol import ChatCompletionRequest, CompletionRequest
from pelton.server.request_body import parse_body
from pelton.server.request_ids import new_request_id
from pelton.server.responses import ChatCompletionResponse, CompletionResponse
from pelton.server.runner import run
from pelton.server.summary import model_details

MAX_CUSTOM_ID = 512
"""Characters."""
MAX_REPEATS = 2
"""How often a request is repeated whose engine core has failed: it may be the request that makes it fail."""
_ENCODE = msgspec.json.Encoder().encode


@dataclass
class BatchFigures:
    """How a batch went."""

    start: float = field(default_factory=time.perf_counter)
    num_requests: int = 0
    """Lines that are not blank."""
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0

    def report(self) -> str:
        seconds = time.perf_counter() - self.start
        return (
            f"{self.num_requests} requests, {self.num_failed} failed; {self.num_prompt_tokens} prompt tokens, "
            f"{self.num_output_tokens} output tokens in {seconds:.2f} s; "
            f"{self.num_output_tokens / max(seconds, 1e-9):.1f} output tokens/s"
        )


class BatchLine(BaseModel):
    """A line of the input."""

    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_CUSTOM_ID)]
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


@dataclass
class _Job:
    """A request that has been read."""

    number: int
    """Of its line, from 1; blank lines count."""
    size: int
    """Of its line, in bytes."""
    custom_id: str | None = None
    request_id: str = field(default_factory=new_request_id)
    num_choices: int = 1


class BatchRunner:
    """Keeps a bounded number of requests in the engine, and reads on as they finish.

    `max_in_engine` counts choices, so that a request with `n` of them counts `n` times, for each of its prompts.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        models: ServedModels,
        write: Callable[[bytes], None],
        *,
        max_in_engine: int,
        max_line_bytes: int,
        chat_template: str | None = None,
        trust_request_chat_template: bool = False,
        tool_call_parser: str = "auto",
        enable_auto_tool_choice: bool = True,
        on_answered: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`write` takes a line of the output. Lines of more than `max_line_bytes` are refused. `on_answered` is called
        with the bytes of each line that was answered.

        Raises ValueError for a chat template that cannot be read.
        """
        self.figures = BatchFigures()
        self._llm = llm
        self._write = write
        self._on_answered = on_answered
        chat = ChatHandler(
            llm,
            models,
            chat_template=chat_template,
            trust_request_chat_template=trust_request_chat_template,
            tool_call_parser=tool_call_parser,
            enable_auto_tool_choice=enable_auto_tool_choice,
        )
        self._endpoints: dict[str, tuple[type[CompletionRequest] | type[ChatCompletionRequest], Any]] = {
            "/v1/chat/completions": (ChatCompletionRequest, chat),
            "/v1/completions": (CompletionRequest, CompletionHandler(llm, models)),
        }
        self._max_in_engine = max_in_engine
        self._max_line_bytes = max_line_bytes
        self._num_in_engine = 0
        self._has_left = asyncio.Event()
        """Set when a request has left the engine."""
        self._custom_ids: set[str] = set()

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Answer every line, each as soon as its answer is there.

        Raises EngineDeadError if no engine core is left, and what `write` and `lines` raise.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                number = 0
                async for text in lines:
                    number += 1
                    await self._wait_for_room()
                    self._take(tasks, number, text.removeprefix(BOM_UTF8) if number == 1 else text)
                    await asyncio.sleep(0)  # a file has always another line, and answers want to be written
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _wait_for_room(self) -> None:
        while self._num_in_engine >= self._max_in_engine:
            self._has_left.clear()
            await self._has_left.wait()

    def _take(self, tasks: asyncio.TaskGroup, number: int, text: bytes) -> None:
        if not text.strip():
            return
        self.figures.num_requests += 1
        job = _Job(number, len(text) + 1)
        try:
            request, handler = self._read(job, text)
        except APIError as error:
            self._refuse(job, error)
            return
        self._num_in_engine += job.num_choices
        tasks.create_task(self._answer(job, request, handler))

    def _read(self, job: _Job, text: bytes) -> tuple[CompletionRequest | ChatCompletionRequest, Any]:
        """The request of a line, and what answers it. Raises APIError."""
        if len(text) > self._max_line_bytes:
            raise APIError(413, f"it has more than {self._max_line_bytes} bytes, which is the limit; split the request")
        try:
            content = parse_body(text)
        except ValueError as error:
            raise APIError(400, f"it is not a valid JSON object: {error}") from None
        if isinstance(content.get("custom_id"), str):
            job.custom_id = content["custom_id"][:MAX_CUSTOM_ID]
        line = parse_request(BatchLine, content)
        if line.custom_id in self._custom_ids:
            job.custom_id = None  # readers look answers up by it
            raise APIError(400, f"custom_id {shown(line.custom_id)} is that of an earlier line; give each its own")
        self._custom_ids.add(line.custom_id)
        if line.url not in self._endpoints:
            raise APIError(404, f"url must be one of {', '.join(self._endpoints)}, got {shown(line.url)}")
        kind, handler = self._endpoints[line.url]
        request = parse_request(kind, line.body)
        if request.stream:
            raise APIError(400, "stream is true, but a batch has whole answers only; leave it out", param="stream")
        job.num_choices = request.num_choices
        if isinstance(request, CompletionRequest):
            job.num_choices *= len(request.prompts)
        return request, handler

    async def _answer(self, job: _Job, request: CompletionRequest | ChatCompletionRequest, handler: Any) -> None:
        try:
            response = await self._create(job, request, handler)
        except EngineDeadError:
            raise
        except Exception as error:  # whatever it is, it is this line's, and the others go on
            self._refuse(job, to_api_error(error))
        else:
            self.figures.num_prompt_tokens += response.usage.prompt_tokens
            self.figures.num_output_tokens += response.usage.completion_tokens
            self._put(job, 200, msgspec.Raw(response.model_dump_json().encode()), None)
        finally:
            self._num_in_engine -= job.num_choices
            self._has_left.set()

    async def _create(
        self, job: _Job, request: CompletionRequest | ChatCompletionRequest, handler: Any
    ) -> CompletionResponse | ChatCompletionResponse:
        request_id = job.request_id if request.request_id is None else None
        num_repeats = 0
        while True:
            try:
                response: CompletionResponse | ChatCompletionResponse
                response = await handler.create(request, request_id=request_id)
                return response
            except EngineDeadError:
                await self._llm.wait_until_up()
            except CoreLostError:
                num_repeats += 1
                if num_repeats > MAX_REPEATS:
                    raise

    def _refuse(self, job: _Job, error: APIError) -> None:
        self.figures.num_failed += 1
        error = APIError(
            error.status, f"line {job.number}: {error.message}", error_type=error.error_type, param=error.param
        )
        self._put(job, error.status, error.body(), error.body()["error"])

    def _put(self, job: _Job, status: int, body: Any, error: dict[str, Any] | None) -> None:
        response = {"status_code": status, "request_id": job.request_id, "body": body}
        answer = {
            "id": f"batch_req_{uuid4().hex}",
            "custom_id": job.custom_id,
            "response": response,
            "error": error,
        }
        self._write(_ENCODE(answer) + b"\n")
        self._on_answered(job.size)


def run_batch(
    args: EngineArgs,
    serve: ServeConfig,
    parallel: ParallelConfig,
    lines: AsyncIterator[bytes],
    write: Callable[[bytes], None],
    *,
    max_line_bytes: int,
    on_ready: Callable[[], None],
    on_answered: Callable[[int], None],
) -> BatchFigures:
    """Start an engine on this machine, answer every line, and end it.

    `on_ready` is called before the first line is read; `BatchRunner` has more on the other arguments, and on what may
    be raised besides a ValueError for a model or arguments that cannot be used.
    """
    num_ranks = parallel.data_parallel_size
    topology = Topology(num_ranks=num_ranks, num_local_ranks=num_ranks)
    progress = sys.stderr.isatty()

    async def answer_all() -> BatchFigures:
        model = ServedModel(args, progress=progress)
        async with connected_llm(args, model, connections) as llm:
            print(*model_details(llm, model.checkpoint), sep="\n", file=sys.stderr)
            runner = BatchRunner(
                llm,
                ServedModels.of(llm.model_name, serve.served_model_name, llm.max_model_len),
                write,
                max_line_bytes=max_line_bytes,
                max_in_engine=2 * num_ranks * args.scheduler.max_num_seqs,
                chat_template=serve.chat_template,
                trust_request_chat_template=serve.trust_request_chat_template,
                tool_call_parser=serve.tool_call_parser,
                enable_auto_tool_choice=serve.enable_auto_tool_choice,
                on_answered=on_answered,
            )
            on_ready()
            await runner.run(lines)
        return runner.figures

    with engine_processes(args, topology, progress=progress) as connections:
        return run(answer_all())
