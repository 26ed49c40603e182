"""A real browser: Chromium without a window, driven by its DevTools protocol over two pipes, which needs no library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome-stable"))), None)
PATIENCE = 90.0
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # it only sees the console; root has no sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
)
KEYS = {"Enter": 13, "Tab": 9}


class Browser:
    """One page of one browser. What it logs as an error, and what its CSP refuses, is in `complaints`."""

    def __init__(self, profile: Path):
        assert CHROMIUM is not None
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        # The browser reads at its descriptor 3 and writes at 4; a small program puts them there.
        put = f"import os; os.dup2({reads}, 100); os.dup2({writes}, 101); os.dup2(100, 3); os.dup2(101, 4); "
        put += "import sys; os.execv(sys.argv[1], sys.argv[1:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", put, CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        (target,) = (t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        opened = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = opened["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._in, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError("the browser does not answer")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Log.entryAdded":
            entry = told["params"]["entry"]
            if entry["level"] == "error" and "status of 4" not in entry["text"]:  # refusals are shown on the page
                self.complaints.append(entry["text"])
        elif told.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["params"]["exceptionDetails"]))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true; returns its value."""
        deadline = time.monotonic() + seconds
        while True:
            with suppress(RuntimeError):  # a page that is just being replaced
                if value := self.evaluate(expression):
                    return value
            assert time.monotonic() < deadline, f"{expression} did not hold within {seconds} s:\n{self.text()}"
            time.sleep(0.02)

    def text(self) -> str:
        """What the page says."""
        return str(self.evaluate("document.body.innerText"))

    def sees(self, text: str, seconds: float = PATIENCE) -> None:
        """Wait until the page says something."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})", seconds)

    def open(self, url: str) -> None:
        """Go to an address; with a fragment that differs alone, within the page."""
        self.ask("Page.navigate", url=url)

    def type(self, selector: str, text: str) -> None:
        """Type into a field, in the place of what it has."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        self.ask("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key."""
        code = KEYS.get(key, ord(key[0].upper()))
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        shown = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 and not modifiers else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **common, **shown)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector: str, text: str = "") -> None:
        """Click with the mouse on the first element that the selector finds and that has that text."""
        find = (
            f"[...document.querySelectorAll({json.dumps(selector)})].find((e) => e.getClientRects().length &&"
            f" !e.disabled && e.textContent.trim().startsWith({json.dumps(text)}))"
        )
        self.wait(f"Boolean({find})")
        self.evaluate(f"{find}.scrollIntoView({{block: 'center'}})")
        x, y = self.evaluate(
            f"(() => {{ const b = {find}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def look(self, width: int = 1200, height: int = 800, *, dark: bool = False) -> None:
        """How large the window is, and which colours its user prefers."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """What is seen now, as PNG."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._session = None
        with suppress(RuntimeError, OSError):
            self.ask("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
