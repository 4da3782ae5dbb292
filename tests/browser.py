"""A headless Chromium spoken to over its debugging pipe: no driver, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

# Text of the page, that inside shadow roots and frames' documents too.
TEXT = """(() => { const found = [];
const walk = node => {
  if (node.nodeType === 3 && node.textContent.trim()) found.push(node.textContent.trim());
  if (node.shadowRoot) walk(node.shadowRoot);
  if (['STYLE', 'SCRIPT'].includes(node.nodeName)) return;
  for (const child of node.childNodes) walk(child); };
walk(document.body); return found.join('\\n'); })()"""


def path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page of 1400 by 900 pixels; close it. Every wait is bounded by ``deadline`` seconds."""

    def __init__(self, profile: Path, deadline: float = 60.0) -> None:
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        script = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
            "--window-size=1400,900", f"--user-data-dir={profile}", "--no-proxy-server", "--disable-background-networking",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", script, path() or "", *flags, "about:blank"], pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._deadline, self._sent, self._read, self._session = deadline, 0, b"", ""
        targets = self._ask("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]

    def open(self, address: str) -> None:
        self._ask("Page.navigate", url="about:blank")  # a new fragment alone would load nothing
        self._ask("Page.navigate", url=address)

    def evaluate(self, script: str) -> Any:
        return self._ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for_text(self, *words: str) -> str:
        """The page's text once all ``words`` are in it. Raises AssertionError where they do not come."""
        end = time.monotonic() + self._deadline
        while True:
            text = self.evaluate(TEXT) or ""
            missing = [word for word in words if word not in text]
            if not missing:
                return text
            assert time.monotonic() < end, f"the page lacks {missing}; it shows: {text[:3000]}"
            time.sleep(0.3)

    def screenshot(self, target: Path) -> None:
        target.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)
        os.close(self._in)
        os.close(self._out)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._sent:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + self._deadline
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser gives no answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has gone"
            self._read += part
        line, _, self._read = self._read.partition(b"\0")
        return json.loads(line)
