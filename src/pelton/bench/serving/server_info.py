"""What a server says of itself before a load: that it is ready, and which models it has."""

import asyncio
from dataclasses import dataclass
from logging import getLogger
from time import monotonic

import aiohttp
import msgspec

from pelton.bench.serving.client import refusal_message
from pelton.error_text import described

POLL_SECONDS = 0.2
ANSWER_SECONDS = 10.0
"""A server that is ready tells its models faster than that."""
_SHORTEST_SECONDS = 2.0
"""Such an answer gets, however little patience there is."""
_logger = getLogger(__name__)


class ServerUnavailableError(RuntimeError):
    """The server did not answer, or not as it should."""


class ModelCard(msgspec.Struct):
    """An entry of /v1/models."""

    id: str
    root: str | None = None


class _ModelList(msgspec.Struct):
    data: list[ModelCard]


class _Version(msgspec.Struct):
    version: str


@dataclass(frozen=True)
class ServerInfo:
    """What is known of a server; empty or None where it does not say."""

    models: list[ModelCard]
    header: str | None
    """`Server` of its answers."""
    version: str | None

    def card(self, name: str | None) -> ModelCard | None:
        """Of the model with that name, or of the first one."""
        named = (card for card in self.models if name is None or card.id == name)
        return next(named, None)


async def find_server(session: aiohttp.ClientSession, url: str, *, patience: float) -> ServerInfo:
    """Ask for the models, again and again for `patience` seconds while the server cannot be reached or is not ready.

    Raises ServerUnavailableError if it does not become ready, or refuses the request's key; at once if its address or
    its certificate is not valid.
    """
    deadline = monotonic() + patience
    told = False
    while True:
        try:
            return await _ask(session, url, min(ANSWER_SECONDS, max(deadline - monotonic(), _SHORTEST_SECONDS)))
        except (aiohttp.InvalidURL, aiohttp.ClientSSLError, UnicodeError) as error:
            raise ServerUnavailableError(f"{url} cannot be used: {described(error)}; see --base-url") from None
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            reason = described(error) if str(error) else "no answer in time"
            if monotonic() >= deadline:
                waited = f" after {patience:g} s" if patience else ""
                raise ServerUnavailableError(f"{url} is not ready{waited}: {reason}; see --base-url") from None
        if not told:
            _logger.info("Waiting for %s, at most %g s (--ready-check-timeout-sec): %s", url, patience, reason)
            told = True
        await asyncio.sleep(POLL_SECONDS)


async def _ask(session: aiohttp.ClientSession, url: str, seconds: float) -> ServerInfo:
    """Raises ClientError while the server is not ready, and TimeoutError if it takes longer than `seconds`."""
    async with asyncio.timeout(seconds), session.get(f"{url}/v1/models") as response:
        if response.status >= 500:
            response.raise_for_status()
        content = await response.read()
        if response.status in (401, 403):
            raise ServerUnavailableError(
                f"{url} refuses: {refusal_message(content)} (status {response.status}); set OPENAI_API_KEY, or give "
                "--header"
            )
        header = response.headers.get("Server")
    models = []
    if response.status == 200:
        try:
            models = msgspec.json.decode(content, type=_ModelList).data
        except msgspec.MsgspecError:
            _logger.warning("%s/v1/models is no list of models, and is not used", url)
    return ServerInfo(models, header, await _version(session, url))


async def _version(session: aiohttp.ClientSession, url: str) -> str | None:
    """As vLLM and Pelton tell it; other servers have no such page."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS), session.get(f"{url}/version") as response:
            return msgspec.json.decode(await response.read(), type=_Version).version if response.ok else None
    except (aiohttp.ClientError, OSError, msgspec.MsgspecError):
        return None
