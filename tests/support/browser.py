"""A headless Chromium, driven over the DevTools protocol through a pair of pipes."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome-stable", "google-chrome")
TIMEOUT = 60.0
"""Seconds; longer than anything here takes on a busy machine."""

_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-proxy-server",
)
_KEYS = {"Enter": ("Enter", 13, "\r"), "Tab": ("Tab", 9, ""), "Escape": ("Escape", 27, "")}
_SHIFT = 8


def find_browser() -> str | None:
    """The path of the first Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(Exception):
    """The browser refused a command, a script in it failed, or it did not answer in time."""


class Browser:
    """A context manager: the browser runs until its end."""

    def __init__(self, path: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="pelton-browser-", ignore_cleanup_errors=True)
        self._log = Path(self._profile.name, "stderr")
        child_in, self._write_fd = _pipe()
        self._read_fd, child_out = _pipe()
        flags = [*_FLAGS, f"--user-data-dir={self._profile.name}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        self._process_id = os.posix_spawn(
            path,
            [path, *flags, "about:blank"],
            dict(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(self._log), os.O_WRONLY | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, child_in, 3),
                (os.POSIX_SPAWN_DUP2, child_out, 4),
            ],
            setpgroup=0,
        )
        os.close(child_in)
        os.close(child_out)
        self._buffer = b""
        self._next_id = 0
        self._on_event: dict[str, Callable[[str, dict[str, Any]], None]] = {}

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process_id, signal.SIGKILL)
        os.waitpid(self._process_id, 0)
        os.close(self._write_fd)
        os.close(self._read_fd)
        self._profile.cleanup()

    def open(self, url: str, *, width: int = 1280, height: int = 800) -> "Tab":
        """A new tab, with storage of its own, that has loaded `url`. Width and height are CSS pixels."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session, context)
        self._on_event[session] = tab.note_event
        for domain in ("Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height)
        tab.load(url)
        return tab

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends a command and waits for its result."""
        self._next_id += 1
        message = {"id": self._next_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._write_fd, rest) :]
        deadline = time.monotonic() + TIMEOUT
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._next_id:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            if handler := self._on_event.get(answer.get("sessionId", "")):
                handler(answer.get("method", ""), answer.get("params", {}))

    def _receive(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_fd], [], [], max(0.0, deadline - time.monotonic()))
            news = os.read(self._read_fd, 1 << 16) if ready else b""
            if not news:
                log = self._log.read_text(errors="replace")[-2000:]
                raise BrowserError(f"no answer to {method}: the browser {'ended' if ready else 'is silent'}\n{log}")
            self._buffer += news
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


class Tab:
    """One page. Selectors are those of CSS."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.problems: list[str] = []
        """Uncaught exceptions, and what the browser itself logged as an error, such as blocked scripts."""
        self._browser = browser
        self._session = session
        self._context = context

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def note_event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def close(self) -> None:
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def load(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features: str) -> None:
        """Media features, as in `prefers_color_scheme="dark"`."""
        values = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=values)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if details := answer.get("exceptionDetails"):
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until a JavaScript expression is true."""
        script = f"""new Promise((resolve) => {{
            const end = performance.now() + {TIMEOUT * 500};
            const check = () => {{
                if ({condition}) resolve(true);
                else if (performance.now() > end) resolve(false);
                else setTimeout(check, 10);
            }};
            check();
        }})"""
        try:
            came_true = self.evaluate(script)
        except BrowserError as error:
            if "navigat" not in str(error) and "context" not in str(error):
                raise
            came_true = self.evaluate(script)  # the page was replaced meanwhile
        if not came_true:
            shown = self.evaluate("document.body.innerText")
            raise BrowserError(f"never true: {condition}\nThe page shows:\n{shown}\nProblems: {self.problems}")

    def text(self, selector: str) -> str:
        """What the first match shows."""
        shown: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return shown

    def wait_for_text(self, selector: str, part: str) -> None:
        element = f"document.querySelector({json.dumps(selector)})"
        self.wait_for(f"{element}?.innerText.includes({json.dumps(part)})")

    def click(self, selector: str) -> None:
        """A real click in the middle of the first match, which must be there and not be covered."""
        place = self.evaluate(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{block: "nearest"}});
            const box = element.getBoundingClientRect();
            const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
            return {{x, y, hit: box.width > 0 && element.contains(document.elementFromPoint(x, y))}};
        }})()""")
        if not place.pop("hit"):
            raise BrowserError(f"{selector} cannot be clicked")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        code, number, text = _KEYS[key]
        common = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": _SHIFT if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **({"text": text} if text else {}), **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path) -> None:
        """As PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def _pipe() -> tuple[int, int]:
    """Read and write end, neither of which is one of the numbers that the browser uses."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
