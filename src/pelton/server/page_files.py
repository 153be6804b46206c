"""The server's own web page: what is served for it, and with which headers."""

from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

# All that the page needs comes from this server. Text of a model can then not load or run anything, whatever it says.
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file of the page: its content type, its bytes, and the other headers of its answer."""

    content_type: str
    content: bytes
    headers: Mapping[str, str]


def page_files() -> dict[str, PageFile]:
    """All files of the page, by the URL path that each is served at: `/` and `/page/NAME`."""
    folder = files("pelton.server") / "page"
    return {
        "/" if entry.name == "index.html" else f"/page/{entry.name}": PageFile(
            CONTENT_TYPES[entry.name.rpartition(".")[2]], entry.read_bytes(), SECURITY_HEADERS
        )
        for entry in folder.iterdir()
    }
