"""Drive a headless Chromium that reaches this machine only: pages opened, pressed, read and photographed.

The browser is asked over two pipes (the DevTools protocol, no package needed). Any host but 127.0.0.1 is cut
off twice: its name does not resolve, and its address is behind a proxy that does not exist. The browser's own
log of the network tells which hosts it tried to reach all the same.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Browser", "BrowserError", "chromium"]

HOST = "127.0.0.1"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# For a hang: a loaded machine takes its time.
PATIENCE_S = 600.0
PAUSE_S = 0.1
FORGOTTEN_S = 5.0
CUT_OFF = [
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}",
    # Port 9 answers nobody. Without <-loopback> the names of this machine would go around the proxy.
    f"--proxy-server=http://{HOST}:9",
    f"--proxy-bypass-list=<-loopback>;{HOST}",
]
# Chromium asks its makers for updates and settings; no page does so.
ITS_OWN = (".google.com", ".googleapis.com", ".gvt1.com", ".gstatic.com")
QUIET = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-features=Translate,OptimizationHints,MediaRouter",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
]
# What a page shows, open shadow roots and frames of this machine among it.
DEEP = """
const roots = (root) => [root, ...[...root.querySelectorAll('*')].flatMap((one) => {
  const inner = one.shadowRoot || (one.tagName === 'IFRAME' && one.contentDocument);
  return inner ? roots(inner) : [];
})];
const all = (selector) => roots(document).flatMap((root) => [...root.querySelectorAll(selector)]);
const seen = (one) => (
  one.checkVisibility({visibilityProperty: true}) && one.getBoundingClientRect().width > 0);
"""


class BrowserError(RuntimeError):
    """A page did not come to what was waited for, or the browser ended."""


def chromium() -> str | None:
    """Return the path of a Chromium on this machine, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless Chromium, with a profile of its own that ends with it.

    Parameters
    ----------
    program : str, optional
        Path of Chromium; looked for if not given.
    size : pair of int
        Width and height of the page in pixels.

    Raises
    ------
    ValueError
        If there is no Chromium.
    """

    def __init__(self, program: str | None = None, *, size: tuple[int, int] = (1500, 1000)) -> None:
        program = program or chromium()
        if program is None:
            raise ValueError(f"Chromium must be installed ({', '.join(NAMES)}); none is on the PATH.")
        self._profile = tempfile.TemporaryDirectory(prefix="fints-browser-", ignore_cleanup_errors=True)
        self._replies: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._open: dict[str, tuple[str, float]] = {}
        self._number = 0
        self._closed = False
        self._network = Path(self._profile.name) / "network.json"
        # What the page asked for and did not get, with the reason.
        self.failed: dict[str, str] = {}
        # The hosts that anything in it, workers of pages too, tried to reach; known once it is closed.
        self.hosts: set[str] = set()
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser reads its orders from file 3 and answers on file 4, whatever their numbers are here.
        script = f'exec 3<&{to_browser} 4>&{from_browser} "$@"'
        command = ["bash", "-c", script, "bash", program, *QUIET, *CUT_OFF, "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [
                *command,
                f"--user-data-dir={self._profile.name}/profile",
                f"--log-net-log={self._network}",
                "about:blank",
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            target = self._ask("Target.createTarget", {"url": "about:blank"}, session="")["targetId"]
            attached = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True}, session="")
            self._session: str = attached["sessionId"]
            for domain in ("Page", "Network", "Runtime"):
                self._ask(f"{domain}.enable")
            self.resize(*size)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, address: str) -> None:
        """Go to an address, also where it differs from the page's by its fragment only.

        Raises
        ------
        BrowserError
            If nothing answers there.
        """
        # A fragment alone would leave the page as it stands.
        self._ask("Page.navigate", {"url": "about:blank"})
        answer = self._ask("Page.navigate", {"url": address})
        if answer.get("errorText"):
            raise BrowserError(f"{address} cannot be opened: {answer['errorText']}.")

    def resize(self, width: int, height: int) -> None:
        """Give the page another size, in pixels."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page, JSON-able.

        It may call ``all(selector)`` (elements, also in frames) and ``seen(element)``.
        """
        body = f"(() => {{ {DEEP} return ({expression}); }})()"
        answer = self._ask("Runtime.evaluate", {"expression": body, "returnByValue": True})
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait(self, expression: str, what: str = "", *, patience: float = PATIENCE_S) -> Any:
        """Return the value of an expression once it is true.

        Raises
        ------
        BrowserError
            If it never is, with what the page shows instead.
        """
        deadline = time.monotonic() + patience
        while not (found := self._value_or_none(expression)):
            if time.monotonic() > deadline:
                raise BrowserError(
                    f"{what or expression} did not come within {patience:.0f} s; the page "
                    f"{self.value('location.href')} shows: {' '.join(self.text().split())[:2000]!r}"
                )
            time.sleep(PAUSE_S)
        return found

    def wait_for_text(self, *texts: str) -> None:
        """Wait until each text can be read in the page.

        Raises
        ------
        BrowserError
            If one never can, with what the page shows instead.
        """
        for text in texts:
            body = "one.body || one"
            said = f"(({body}).innerText || '').replace(/\\s+/g, ' ')"
            shows = f"roots(document).some((one) => {said}.includes({json.dumps(text)}))"
            self.wait(shows, f"the text {text!r}")

    def text(self) -> str:
        """Return what can be read in the page."""
        found: str = self.value("roots(document).map((one) => (one.body || one).innerText || '').join('\\n')")
        return found

    def press(
        self, text: str, selector: str = "a, button, label, [role=tab], [role=button], span, div"
    ) -> None:
        """Press the innermost visible element with this text or label, once it is there and stands still.

        Raises
        ------
        BrowserError
            If there never is one.
        """
        named = json.dumps(text)
        find = f"""all({json.dumps(selector)}).filter((one) => seen(one) && (
          (one.innerText || '').trim() === {named} || one.getAttribute('aria-label') === {named})).at(-1)"""
        place = f"""(() => {{
          const one = {find};
          if (!one) return null;
          one.scrollIntoView({{block: 'center'}});
          const box = one.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        before = None
        deadline = time.monotonic() + PATIENCE_S
        while (here := self.wait(place, f"something to press with the text {text!r}")) != before:
            if time.monotonic() > deadline:
                raise BrowserError(f"{text!r} does not stand still.")
            before = here
            time.sleep(PAUSE_S)
        x, y = here
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {"button": "none" if kind == "mouseMoved" else "left", "clickCount": 1}
            self._ask("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **button})

    def picture(self, *, patience: float = 30.0) -> bytes:
        """Return the page as PNG, once nothing is being fetched and two pictures in a row are alike.

        A page that never stands still is photographed when `patience`, in seconds, has run out.
        """
        before, deadline = b"", time.monotonic() + patience
        while True:
            now = time.monotonic()
            # What a page has not taken for so long it has forgotten.
            idle = all(now - began > FORGOTTEN_S for _, began in list(self._open.values()))
            shot = base64.b64decode(self._ask("Page.captureScreenshot", {"format": "png"})["data"])
            if (idle and shot == before) or now > deadline:
                return shot
            before = shot
            time.sleep(10 * PAUSE_S)

    def close(self) -> None:
        """End the browser, read its network log, and remove its profile; once is enough."""
        if self._closed:
            return
        self._closed = True
        for ending in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, ending)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=30)
                break
        os.close(self._write)
        if self._network.is_file():
            log = self._network.read_text(encoding="utf-8", errors="replace")
            found = re.findall(r'"url":"(?:https?|wss?)://([^"/:]+)', log)
            self.hosts = {host for host in found if not host.endswith(ITS_OWN)}
        self._profile.cleanup()

    def _value_or_none(self, expression: str) -> Any:
        """Return a value, None while the page changes under the question."""
        try:
            return self.value(expression)
        except BrowserError:
            if self._process.poll() is not None:
                raise
            return None

    def _ask(self, method: str, params: dict[str, Any] | None = None, *, session: str | None = None) -> Any:
        self._number += 1
        number = self._number
        reply = self._replies[number] = queue.Queue()
        order: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session is None:
            order["sessionId"] = self._session
        try:
            os.write(self._write, json.dumps(order).encode() + b"\0")
            answer = reply.get(timeout=PATIENCE_S)
        except (OSError, queue.Empty) as error:
            code = self._process.poll()
            raise BrowserError(
                f"Chromium did not answer {method}"
                + (f": it ended with {code}." if code is not None else ".")
            ) from error
        finally:
            del self._replies[number]
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message')}")
        return answer["result"]

    def _listen(self) -> None:
        with os.fdopen(self._read, "rb", buffering=0) as stream:
            left = b""
            while piece := stream.read(1 << 20):
                *messages, left = (left + piece).split(b"\0")
                for message in messages:
                    self._hear(json.loads(message))
        for reply in list(self._replies.values()):
            reply.put({"error": {"message": "Chromium has ended"}})

    def _hear(self, message: dict[str, Any]) -> None:
        if "id" in message:
            if reply := self._replies.get(message["id"]):
                reply.put(message)
            return
        facts = message.get("params", {})
        match message["method"]:
            case "Network.requestWillBeSent":
                # Without a loader it is a worker's script, whose end is told to the worker.
                if facts["loaderId"]:
                    self._open[facts["requestId"]] = facts["request"]["url"], time.monotonic()
            case "Network.loadingFinished":
                self._open.pop(facts["requestId"], None)
            case "Network.loadingFailed":
                if request := self._open.pop(facts["requestId"], None):
                    self.failed[request[0]] = facts["errorText"]
