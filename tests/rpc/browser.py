"""A headless Chromium, spoken to over its own DevTools protocol: open a page, ask it things, take a picture."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import connect

LEASH = Path(__file__).parents[2] / "localnet" / "leash.py"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
START_SECONDS = 30.0
CALL_SECONDS = 20.0


def find_browser() -> str | None:
    """Return a Chromium on the PATH, or one that playwright has fetched."""
    for name in NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    cache = Path.home() / ".cache" / "ms-playwright"
    fetched = sorted(path for name in ("chrome", "headless_shell") for path in cache.glob(f"*/*/{name}"))
    return str(fetched[-1]) if fetched else None


class Browser:
    """One browser with one page."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._resources = ExitStack()
        self._last_id = 0
        self.answers: dict[str, bytes] = {}
        """Path -> JSON that stands in for the server's answer."""
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Browser:
        with ExitStack() as resources:
            profile = resources.enter_context(
                tempfile.TemporaryDirectory(prefix="archipelago-browser-", ignore_cleanup_errors=True)
            )
            port = self._start(Path(profile), resources)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=CALL_SECONDS) as answer:
                page = next(each for each in json.load(answer) if each["type"] == "page")
            url = page["webSocketDebuggerUrl"]
            self._socket = resources.enter_context(connect(url, max_size=64 << 20, open_timeout=CALL_SECONDS))
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
            self.call("Fetch.enable", patterns=[{"urlPattern": "*/api/*"}])
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def _start(self, profile: Path, resources: ExitStack) -> int:
        """Start the browser and return the port of its DevTools; it ends with us, however we end."""
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options += ["--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"]
        options += [f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
        leash = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid())]
        process = subprocess.Popen(
            [*leash, self._binary, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
        resources.callback(_stop, process)
        path = profile / "DevToolsActivePort"
        deadline = time.monotonic() + START_SECONDS
        while not (path.exists() and path.read_text().strip()):
            assert process.poll() is None, f"the browser ended with {process.returncode}"
            assert time.monotonic() < deadline, f"the browser wasn't ready after {START_SECONDS:.0f} s"
            time.sleep(0.05)
        return int(path.read_text().split()[0])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one DevTools command and return its result; what happens meanwhile is noted."""
        number = self._send(method, params)
        while True:
            message = json.loads(self._socket.recv(timeout=CALL_SECONDS))
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def open(self, url: str, *, width: int, height: int, is_dark: bool = False) -> None:
        """Go to a page in a window of a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if is_dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url="about:blank")
        self.wait_for("location.href === 'about:blank' && document.readyState === 'complete'")
        self.call("Page.navigate", url=url)
        self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """Return what a piece of JavaScript gives; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 30.0) -> Any:
        """Return the first true value of an expression."""
        deadline = time.monotonic() + seconds
        while True:
            value = self.ask(expression)
            if value:
                return value
            assert time.monotonic() < deadline, f"after {seconds:.0f} s still not: {expression}; {self.complaints}"
            time.sleep(0.05)

    def picture(self, path: Path, *, is_whole: bool = False, quality: int = 0) -> None:
        """Write what is seen, or the whole page, as PNG or, with a quality, JPEG."""
        options: dict[str, Any] = {"format": "jpeg", "quality": quality} if quality else {"format": "png"}
        if is_whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            options |= {"captureBeyondViewport": True, "clip": clip}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": params}))
        return self._last_id

    def _answer(self, paused: dict[str, Any]) -> None:
        body = self.answers.get(urlsplit(paused["request"]["url"]).path)
        if body is None:
            self._send("Fetch.continueRequest", {"requestId": paused["requestId"]})
            return
        answer = {"requestId": paused["requestId"], "responseCode": 200, "body": base64.b64encode(body).decode()}
        self._send("Fetch.fulfillRequest", answer)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Fetch.requestPaused":
                self._answer(params)
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
            case "Log.entryAdded":
                if params["entry"]["level"] == "error":
                    self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
