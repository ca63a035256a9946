"""Chromium without a window, driven over its DevTools protocol: type, wait, look."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.support.waiting import wait_until

CHROMIUM: Final = shutil.which("chromium")
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
"""Headless, as root, without a network."""
_DRIVEN: Final = ("--remote-debugging-port=0", "--window-size=1200,800")


class Tab:
    """One page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            said: dict[str, Any] = json.loads(self._socket.recv(30))
            if said.get("id") == self._number:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    @property
    def text(self) -> str:
        """What can be read on the page."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        wait_until(lambda: text in self.text, seconds)

    def type(self, selector: str, text: str) -> None:
        """Write into a field and press Enter."""
        wait_until(lambda: self.evaluate(f"!!document.querySelector({selector!r})"), 60)
        self.evaluate(f"document.querySelector({selector!r}).focus()")
        self.call("Input.insertText", text=text)
        enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", **enter)
        self.call("Input.dispatchKeyEvent", type="keyUp", **enter)

    def click(self, text: str) -> None:
        """Click on the smallest element that says just this."""
        every = "[...document.querySelectorAll('label, button, p')]"
        element = f"{every}.filter(e => e.innerText.trim() === {json.dumps(text)}).pop()"
        wait_until(lambda: self.evaluate(f"!!({element})"), 30)
        self.evaluate(f"({element}).scrollIntoView({{block: 'center'}})")
        middle = "[box.x + box.width / 2, box.y + box.height / 2]"
        x, y = self.evaluate(f"(box => {middle})(({element}).getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def tab(url: str, folder: Path) -> Iterator[Tab]:
    """A browser of its own, with its data in `folder`, at `url`."""
    assert CHROMIUM is not None
    browser = subprocess.Popen(
        [CHROMIUM, *FLAGS, *_DRIVEN, f"--user-data-dir={folder}", url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        told = folder / "DevToolsActivePort"
        port = wait_until(lambda: told.exists() and told.read_text().splitlines()[:1], 60)
        assert isinstance(port, list)
        pages = wait_until(
            lambda: [
                page
                for page in httpx.get(f"http://127.0.0.1:{port[0]}/json/list").json()
                if page["type"] == "page" and page["url"].startswith("http")
            ],
            60,
        )
        with connect(pages[0]["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
            yield Tab(socket)
    finally:
        browser.terminate()
        browser.wait(30)
