"""A server's process, for tests that ask it over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from agentrt.serving.tenants import new_key

START_S = 300.0
WAIT_S = 60.0


class Serving:
    """The command, and where it serves."""

    def __init__(
        self, process: subprocess.Popen[bytes], url: str, keys: tuple[str, str], log: Path
    ) -> None:
        self.process, self.url, self.log = process, url, log
        self.key, self.operators_key = keys
        headers = {"authorization": f"Bearer {self.key}"}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=WAIT_S)

    def wait_until(self, condition: Any) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "it did not come to that"
            time.sleep(0.05)  # another process: it is asked, not told

    def session(self, name: str) -> dict[str, Any]:
        stands: dict[str, Any] = self.http.get(f"/v1/client-runs/{name}").json()
        return stands

    def programs(self) -> dict[str, dict[str, Any]]:
        """The live programs of the key's tenant by id, in the order in which they began."""
        listed = self.http.get("/v1/runs", params={"limit": 1000}).json()["runs"]
        return {one["id"]: one for one in listed}


def operators_key(file: Path) -> str:
    key = new_key(file, "boss")
    content = json.loads(file.read_text(encoding="utf-8"))
    content["tenants"]["boss"]["operator"] = True
    file.write_text(json.dumps(content), encoding="utf-8")
    return key


def url_of(process: subprocess.Popen[bytes], log: Path, serving: str = "tiny, greet") -> str:
    deadline = time.monotonic() + START_S
    while True:
        text = log.read_text(encoding="utf-8", errors="replace")
        found = re.search(rf"serving {serving} at (http://\S+)", text)
        if found:
            return found[1]
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
