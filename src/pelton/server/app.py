"""The HTTP application."""

from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pelton import __version__
from pelton.config.serving import ServeConfig
from pelton.error_text import shown
from pelton.server.errors import APIError
from pelton.server.middleware import BodyLimit, ErrorAnswers, KeyCheck, OriginCheck, RequestContext, error_response
from pelton.server.openapi import describe_api
from pelton.server.page_files import PageFile, page_files
from pelton.server.routes import Routes

if TYPE_CHECKING:
    from pelton.engine.async_llm import AsyncLLM


def create_app(llm: "AsyncLLM", config: ServeConfig, *, is_local: bool = False) -> FastAPI:
    """The application for one model. `config.chat_template` must be the text of a template, and `config.api_key` have
    the keys of the file too. `is_local`: only programs of this machine reach the server.

    Raises ValueError if the file's keys are missing.
    """
    if config.api_key_file is not None and not config.api_key:
        raise ValueError(
            f"api_key_file is {shown(config.api_key_file)}, but the keys are not in api_key, so everybody would be let "
            "in; read them first"
        )
    app = FastAPI(
        title="Pelton",
        version=__version__,
        docs_url=None,  # FastAPI's pages load scripts from other servers
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: _answer_http_exception},
    )
    Routes(llm, config).add_to(app.router, admin=config.enable_admin_endpoints)
    app.router.routes.extend(_page_route(path, file) for path, file in page_files().items())
    servers = [{"url": config.root_path}] if config.root_path else None

    @cache
    def openapi() -> dict[str, Any]:
        return describe_api(app, servers, needs_key=bool(config.api_key))

    app.openapi = openapi  # type: ignore[method-assign]
    _add_middleware(app, config, is_local)
    return app


def _add_middleware(app: FastAPI, config: ServeConfig, is_local: bool) -> None:
    """From the innermost to the outermost."""
    app.add_middleware(BodyLimit, max_bytes=config.max_request_bytes)
    app.add_middleware(ErrorAnswers)
    if config.api_key:
        app.add_middleware(KeyCheck, keys=config.api_key)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id"],
        )
    if is_local and not config.api_key:
        app.add_middleware(OriginCheck, allowed=config.allowed_origins)
    app.add_middleware(RequestContext, root_path=config.root_path, log_requests=config.log_requests)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Of paths and methods that do not exist, in the same shape as other errors."""
    assert isinstance(error, HTTPException)
    message = {
        404: "There is nothing at this path; /openapi.json lists the paths",
        405: "This path does not take this method",
    }.get(error.status_code, str(error.detail))
    return error_response(APIError(error.status_code, message), dict(error.headers or {}))


def _page_route(path: str, file: PageFile) -> Route:
    async def respond(_request: Request) -> Response:
        return Response(file.content, media_type=file.content_type, headers=dict(file.headers))

    return Route(path, respond, methods=["GET"], include_in_schema=False)
