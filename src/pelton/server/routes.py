"""What is answered at each path."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from pelton import __version__
from pelton.config.serving import ServeConfig
from pelton.error_text import shown
from pelton.server.chat import ChatHandler
from pelton.server.completions import CompletionHandler
from pelton.server.errors import APIError, to_api_error
from pelton.server.metrics import CONTENT_TYPE, render_metrics
from pelton.server.models import ServedModels
from pelton.server.openapi import Responses, error_responses, event_stream, json_body
from pelton.server.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from pelton.server.request_body import read_request
from pelton.server.responses import (
    ChatCompletionResponse,
    CompletionResponse,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeResponse,
)
from pelton.server.sse_response import EventStreamResponse, run_until_disconnected
from pelton.server.tokens import TokenHandler

if TYPE_CHECKING:
    from pelton.engine.async_llm import AsyncLLM

_Body = TypeVar("_Body", bound=BaseModel)
_T = TypeVar("_T")

RANK_HEADER = "X-data-parallel-rank"
_BODY_ERRORS = error_responses(400, 401, 404, 413, 415, 500, 503)
_EMPTY: dict[str, Any] = {"content": {}}


def _add_get(router: APIRouter, path: str, endpoint: Any, responses: Responses, **options: Any) -> None:
    """HEAD as well, which is in no description of GET."""
    router.add_api_route(path, endpoint, responses=responses, **options)
    router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


class Routes:
    """The routes of one model."""

    def __init__(self, llm: "AsyncLLM", config: ServeConfig) -> None:
        self._llm = llm
        self._metrics_prefix = config.metrics_prefix
        self._models = ServedModels.of(llm.model_name, config.served_model_name, llm.max_model_len)
        templates: dict[str, Any] = {
            "chat_template": config.chat_template,
            "trust_request_chat_template": config.trust_request_chat_template,
        }
        self._chat = ChatHandler(
            llm,
            self._models,
            tool_call_parser=config.tool_call_parser,
            enable_auto_tool_choice=config.enable_auto_tool_choice,
            **templates,
        )
        self._completions = CompletionHandler(llm, self._models)
        self._tokens = TokenHandler(llm, self._models, **templates)

    def add_to(self, router: APIRouter, *, admin: bool) -> None:
        """`admin`: with those that only administrators should reach."""
        self._add_generation(router)
        self._add_models(router)
        self._add_state(router)
        if admin:
            self._add_administration(router)

    def _add_generation(self, router: APIRouter) -> None:
        routes = [
            ("/v1/chat/completions", self.create_chat_completion, ChatCompletionRequest, ChatCompletionResponse),
            ("/v1/completions", self.create_completion, CompletionRequest, CompletionResponse),
            ("/tokenize", self.tokenize, TokenizeRequest, TokenizeResponse),
            ("/detokenize", self.detokenize, DetokenizeRequest, DetokenizeResponse),
        ]
        for path, endpoint, request, response in routes:
            answer: dict[str, Any] = {"model": response}
            if path.startswith("/v1"):
                answer |= event_stream("The answer, or with `stream` its events.")
            router.add_api_route(
                path,
                endpoint,
                methods=["POST"],
                responses={200: answer, **_BODY_ERRORS},
                openapi_extra=json_body(request),
            )

    def _add_models(self, router: APIRouter) -> None:
        of_list: Responses = {200: {"model": ModelList}, **error_responses(401, 500)}
        _add_get(router, "/v1/models", self.list_models, of_list)
        of_card: Responses = {200: {"model": ModelCard}, **error_responses(401, 404, 500)}
        _add_get(router, "/v1/models/{model:path}", self.show_model, of_card)

    def _add_state(self, router: APIRouter) -> None:
        no_content: Responses = {200: _EMPTY, 503: {"description": "The engine cannot serve."}}
        _add_get(router, "/health", self.health, no_content, response_class=Response)
        router.add_api_route("/ping", self.health, methods=["GET", "HEAD", "POST"], include_in_schema=False)
        _add_get(router, "/version", self.version, {})
        _add_get(router, "/load", self.load, error_responses(401))
        text: Responses = {200: {"content": {CONTENT_TYPE.partition(";")[0]: {"schema": {"type": "string"}}}}}
        _add_get(router, "/metrics", self.metrics, {**text, **error_responses(500, 503)}, response_class=Response)

    def _add_administration(self, router: APIRouter) -> None:
        plain: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
        routes: list[tuple[str, Any, Responses]] = [
            ("/reset_prefix_cache", self.reset_prefix_cache, {200: _EMPTY}),
            ("/start_profile", self.start_profile, {200: _EMPTY}),
            ("/stop_profile", self.stop_profile, plain),
        ]
        for path, endpoint, answer in routes:
            router.add_api_route(
                path,
                endpoint,
                methods=["POST"],
                responses={**answer, **error_responses(401, 409, 500, 503)},
                response_class=Response,
            )

    async def create_chat_completion(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await self._read(request, ChatCompletionRequest)
        return await self._create(request, self._chat, body)

    async def create_completion(self, request: Request) -> Response:
        """Complete a prompt, or several."""
        body = await self._read(request, CompletionRequest)
        return await self._create(request, self._completions, body)

    async def tokenize(self, request: Request) -> Response:
        """Make tokens of a text, or of a conversation."""
        body = await self._read(request, TokenizeRequest)
        return _json(await _answer(request, self._tokens.tokenize(body)))

    async def detokenize(self, request: Request) -> Response:
        """Make text of tokens."""
        body = await self._read(request, DetokenizeRequest)
        return _json(await _answer(request, self._tokens.detokenize(body)))

    async def list_models(self) -> Response:
        """The names of the model that is served."""
        return _json(self._models.cards())

    async def show_model(self, model: str) -> Response:
        """One of these names."""
        return _json(self._models.card(model))

    async def health(self) -> Response:
        """Status 200 if the engine can serve, 503 if not; no body."""
        return Response(status_code=200 if self._llm.is_healthy else 503)

    async def version(self) -> dict[str, str]:
        """Pelton's version."""
        return {"version": __version__}

    async def load(self) -> dict[str, int]:
        """How many requests are being answered."""
        return {"server_load": self._llm.num_unfinished_requests}

    async def metrics(self) -> Response:
        """Figures for Prometheus."""
        metrics = await self._llm.get_metrics()
        for metric in metrics:
            metric.labels = {**metric.labels, "model_name": self._models.name}
        page = render_metrics(metrics, self._metrics_prefix)
        return Response(page, headers={"Content-Type": CONTENT_TYPE})

    async def reset_prefix_cache(self) -> Response:
        """Forget all prefixes; no body."""
        if not await self._llm.reset_prefix_cache():
            raise APIError(409, "The prefix cache is in use; try again when no request is running")
        return Response()

    async def start_profile(self) -> Response:
        """Begin to measure where Python's time goes in the engine cores; no body."""
        try:
            await self._llm.start_profile()
        except ValueError as error:
            raise APIError(409, str(error)) from None
        return Response()

    async def stop_profile(self) -> Response:
        """End the measurement: the functions that took most time, by engine core."""
        try:
            profiles = await self._llm.stop_profile()
        except ValueError as error:
            raise APIError(409, str(error)) from None
        text = "\n".join(f"Engine core {rank}\n{profile}" for rank, profile in sorted(profiles.items()))
        return Response(text, media_type="text/plain")

    async def _create(
        self,
        request: Request,
        handler: ChatHandler | CompletionHandler,
        body: Any,  # of the kind that the handler takes
    ) -> Response:
        state = request.state
        # An id in the body is the handler's business, unless the header has one.
        request_id = state.given_request_id or (state.request_id if body.request_id is None else None)
        work = handler.create(body, request_id=request_id, data_parallel_rank=_given_rank(request))
        answer = await _answer(request, work)
        if isinstance(answer, CompletionResponse) and len(answer.choices) > 1:
            return Response(await asyncio.to_thread(answer.to_json), media_type="application/json")
        return _json(answer) if isinstance(answer, BaseModel) else EventStreamResponse(answer)

    @staticmethod
    async def _read(request: Request, model: type[_Body]) -> _Body:
        return await read_request(request, model)


async def _answer(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """What a handler makes of a request, as long as the client waits for it. Raises APIError for bad requests."""
    try:
        return await run_until_disconnected(request.receive, work)
    except ValueError as error:
        raise to_api_error(error) from None


def _given_rank(request: Request) -> int | None:
    """The engine core that a client asks for. Raises APIError if it is no number."""
    given = request.headers.get(RANK_HEADER)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise APIError(400, f"The header {RANK_HEADER} must be the rank of an engine core, got {shown(given)}")
    return int(given)
