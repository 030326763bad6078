"""The routes and commands that update weights: who may use them, what they answer, and what other
routes say meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from agentrt import Runtime
from agentrt.cli.app import app as command
from agentrt.errors import EngineError, WeightsError
from agentrt.executors.weights import Weights
from agentrt.request.weights import PauseMode
from agentrt.serving import observability
from agentrt.serving.server import Server
from agentrt.serving.tenants import KeyRing, new_key
from agentrt.serving.weights import api
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.watchdog import opened_app


class Trained(ScriptedExecutor):
    """An engine with weights, which can load the folders ``new`` only."""

    def __init__(self) -> None:
        super().__init__(lambda call: "yes")
        self.own, self.is_paused = Weights(), False
        self.modes: list[str] = []

    @property
    def weights(self) -> Weights:
        return self.own

    @property
    def paused(self) -> bool:
        return self.is_paused

    async def pause_generation(self, mode: PauseMode) -> None:
        self.modes.append(mode)
        self.is_paused = True

    async def resume_generation(self) -> None:
        self.is_paused = False

    async def check_weights(self, folder: str) -> str:
        if "none" in folder:
            raise WeightsError(f"weights {folder!r}: no such folder")
        return "mark"

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        if "heavy" in weights.folder:
            raise EngineError("no memory")
        self.own = weights

    async def snapshot(self) -> Any:
        state = {"weights_version": self.own.version, "paused": self.is_paused}
        return {**await super().snapshot(), **state}


@asynccontextmanager
async def served(keys: KeyRing | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with Runtime(Trained()) as runtime:
        server = Server(runtime, ("scripted",), keys=keys)
        async with opened_app(server, [api, observability.api]) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as it:
                yield it


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_an_update_and_what_shows_it(prefix: str) -> None:
    async with served() as client:
        assert (await client.get(f"{prefix}/weight_info")).json()["weight_version"] == "0"
        answer = await client.post(
            f"{prefix}/update_weights", json={"path": "/new", "mode": "wait"}
        )
        assert answer.status_code == 200
        assert answer.json() == {
            "weight_version": "1",
            "version": 1,
            "path": "/new",
            "is_paused": False,
        }
        later = {"path": "/new-2", "version": 40, "max_staleness": 2, "on_stale": "end"}
        assert (await client.post(f"{prefix}/update_weights", json=later)).json()["version"] == 40
        assert (await client.get("/ready")).json()["weights_version"] == 40
        metrics = (await client.get("/metrics")).text
        assert re.search(r'agentrt_weights_version\{replica="engine"\} 40\.0', metrics)


async def test_a_pause_shows_in_ready_and_metrics() -> None:
    async with served() as client:
        assert (await client.post("/pause", params={"mode": "keep"})).json() == {"status": "paused"}
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["why"]) == (503, "generation is paused")
        assert (await client.get("/is_paused")).json()["is_paused"] is True
        metrics = (await client.get("/metrics")).text
        assert re.search(r'agentrt_generation_paused\{replica="engine"\} 1\.0', metrics)
        assert (await client.post("/resume")).json() == {"status": "resumed"}
        assert (await client.get("/ready")).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"path": "/none"}, 400, "no such folder"),
        ({"path": "/heavy"}, 503, "not updated to version 1.*no memory"),
        ({"path": "/new", "mode": "retract"}, 422, "mode"),
        ({"path": "/new", "version": 0}, 422, "version"),
        ({"path": ""}, 422, "path"),
        ({"path": "/new", "max_staleness": -1}, 422, "max_staleness"),
        ({"path": "/new", "update_info": {}}, 422, "update_info"),
        ({}, 422, "path"),
    ],
)
async def test_requests_that_fail_change_nothing(body: Any, status: int, says: str) -> None:
    async with served() as client:
        answer = await client.post("/update_weights", json=body)
        assert answer.status_code in (status, 400)
        assert re.search(says, answer.json()["error"]["message"])
        state = (await client.get("/weight_info")).json()
        assert (state["version"], state["is_paused"]) == (0, False)


async def test_only_operators(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    plain, boss = new_key(path, "plain"), new_key(path, "boss")
    document = json.loads(path.read_text(encoding="utf-8"))
    document["tenants"]["boss"]["operator"] = True
    path.write_text(json.dumps(document), encoding="utf-8")
    async with served(KeyRing(path)) as client:
        for method, route in (
            ("POST", "/update_weights"),
            ("POST", "/v1/update_weights"),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("GET", "/weight_info"),
            ("GET", "/v1/is_paused"),
        ):
            body = {"path": "/new"} if "update" in route else None
            for key, status in ((plain, 403), (boss, 200), ("wrong", 401)):
                answer = await client.request(
                    method, route, json=body, headers={"authorization": f"Bearer {key}"}
                )
                assert answer.status_code == status, (route, key)


def test_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """They send what the routes take, and print one line."""
    loop = asyncio.new_event_loop()

    async def ask(method: str, url: str, **request: Any) -> httpx.Response:
        request = {key: request[key] for key in ("json", "params") if key in request}
        return await client.request(method, url.removeprefix("http://127.0.0.1:8000"), **request)

    opened = served()
    client = loop.run_until_complete(opened.__aenter__())
    monkeypatch.setattr(
        httpx, "request", lambda *args, **options: loop.run_until_complete(ask(*args, **options))
    )

    def run(*args: str) -> tuple[int, str]:
        result = CliRunner().invoke(command, ["weights", *args])
        return result.exit_code, result.output or str(result.exception)

    try:
        assert run("show") == (0, "version 0 (the model's own files)\n")
        assert run("update", "/new", "--mode", "abort", "--version", "3", "--clear-cache") == (
            0,
            "version 3 (/new)\n",
        )
        assert run("pause") == (0, "paused\n")
        assert run("show") == (0, "version 3 (/new); generation is paused\n")
        assert run("resume") == (0, "resumed\n")
        code, text = run("update", "/none")
        assert code != 0
        assert "no such folder" in text
        assert run("update", "/new", "--mode", "other")[0] == 2
    finally:
        loop.run_until_complete(opened.__aexit__(None, None, None))
        loop.close()
