"""A hub on this machine: the part of the Hugging Face Hub's interface that downloads use, over real HTTP."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from urllib.parse import unquote, urlsplit

_INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """One repository; every revision has the same files."""

    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=dict)
    """Branch or tag -> commit."""
    token: str | None = None
    """Needed to see a private repository, or to read the files of a gated one."""
    gated: bool = False

    def __post_init__(self) -> None:
        digest = hashlib.sha1(b"".join(name.encode() + content for name, content in sorted(self.files.items())))
        self.revisions.setdefault("main", digest.hexdigest())


@dataclass
class Request:
    method: str
    path: str
    headers: Message


class FakeHub:
    """A context manager: it serves at `url` until the context or `stop` ends it."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.cuts: dict[str, list[int]] = {}
        """File -> for each of its next downloads, the byte of the answer at which the connection breaks."""
        self.listing: list[dict[str, object]] | None = None
        """What every repository says that it has, instead of its files."""
        self.status: int | None = None
        """Answer everything with this status."""
        self.after_request: Callable[[Request], None] = lambda request: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._running = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def add(self, name: str, files: Path | dict[str, bytes], **kwargs: object) -> Repository:
        """A repository with these files, or with those of a folder."""
        if isinstance(files, Path):
            paths = [path for path in files.rglob("*") if path.is_file()]
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in paths}
        self.repositories[name] = Repository(files, **kwargs)  # type: ignore[arg-type]
        return self.repositories[name]

    def downloads(self) -> list[str]:
        """Files whose content was asked for, in order."""
        matches = [_match_file(request) for request in self.requests if request.method == "GET"]
        return [unquote(match[3]) for match in matches if match]

    def __enter__(self) -> "FakeHub":
        self._thread.start()
        self._running = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """From now on nothing listens there."""
        if self._running:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._running = False


def _match_file(request: Request) -> re.Match[str] | None:
    return None if request.path.startswith("/api/") else _FILE.fullmatch(request.path)


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self) -> None:
        self.hub: FakeHub = self.server.hub  # type: ignore[attr-defined]
        request = Request(self.command, urlsplit(self.path).path, self.headers)
        self.hub.requests.append(request)
        if self.hub.status is not None:
            self._send(self.hub.status)
        elif info := _INFO.fullmatch(request.path):
            self._send_info(info[1], unquote(info[2] or "main"))
        elif file := _match_file(request):
            self._send_file(*map(unquote, file.groups()))
        else:
            self._send(404)
        self.hub.after_request(request)

    def _find(self, name: str, revision: str, *, content: bool) -> tuple[Repository, str] | None:
        """The repository and the commit, if whoever asks may know; otherwise the refusal is sent."""
        repository = self.hub.repositories.get(name)
        allowed = repository and repository.token in (None, self.headers.get("Authorization", "")[len("Bearer ") :])
        if repository is None or not (allowed or repository.gated):
            self._send(401, "RepoNotFound")  # to whom has no token, as the real one does
            return None
        if content and not allowed:
            self._send(403, "GatedRepo")
            return None
        commit = repository.revisions.get(revision, revision)
        if commit not in repository.revisions.values():
            self._send(404, "RevisionNotFound")
            return None
        return repository, commit

    def _send_info(self, name: str, revision: str) -> None:
        if found := self._find(name, revision, content=False):
            repository, commit = found
            listing = self.server.hub.listing  # type: ignore[attr-defined]
            siblings = listing or [{"rfilename": file, "size": len(data)} for file, data in repository.files.items()]
            self._send(200, content=json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode())

    def _send_file(self, name: str, revision: str, file: str) -> None:
        found = self._find(name, revision, content=True)
        if found is None:
            return
        repository, commit = found
        if file not in repository.files:
            self._send(404, "EntryNotFound")
            return
        content = repository.files[file]
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if requested := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(requested[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(206, content=content[start:], headers=headers, file=file)
        else:
            self._send(200, content=content, headers=headers, file=file)

    def _send(
        self,
        status: int,
        error: str | None = None,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
        file: str = "",
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if error is not None:
            self.send_header("X-Error-Code", error)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            cuts = self.hub.cuts.get(file)
            self.wfile.write(content[: cuts.pop(0)] if cuts else content)
