"""The whole server: the page's client works, bugs stay inside, and nothing is left of a load."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY

from agentrt.request import Call
from agentrt.serving.frontend.conversations import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.serving.frontend.test_identity import ask
from tests.serving.local import Held, LocalServer, open_server

pytestmark = pytest.mark.engine

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "serve.md").read_text("utf-8")
APIS = [CHAT, COMPLETIONS, MESSAGES, RESPONSES]
CLIENTS = 12


async def test_the_page_shows_a_client_that_works() -> None:
    code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]
    async with open_server(lambda call: "Hello!") as local:
        said: list[str] = []
        code = code.replace("http://127.0.0.1:8000", local.url)
        await asyncio.to_thread(exec, code, {"print": said.append})
        assert said == ["Hello!"]


@pytest.mark.parametrize("path", APIS)
async def test_a_bug_is_a_500_without_internal_details(path: str) -> None:
    def bug(call: Call) -> str:
        raise RuntimeError("secret")

    async with open_server(bug) as local:
        for stream in (False, True):
            answer = await local.client.post(path, json={**ask(path, "hi"), "stream": stream})
            assert answer.status_code == (200 if stream else 500)
            assert "the server failed" in answer.text
            assert "secret" not in answer.text
        assert not any(row.calls for row in local.runtime.table)


async def test_keys_and_request_ids_are_those_of_this_server_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    async with open_server(flags=("--enable-request-id-headers",)) as local:
        answer = await local.client.post(CHAT, json=ask(CHAT, "hi"))
        assert answer.status_code == 200
        assert len(answer.headers.get_list("x-request-id")) == 1


async def test_the_load_is_the_number_of_requests_in_flight() -> None:
    async def load(local: LocalServer) -> object:
        answer = await local.client.get("/load")
        return answer.json()

    async with open_server(kind=Held, flags=("--enable-server-load-tracking",)) as local:
        assert await load(local) == {"server_load": 0}
        async with asyncio.TaskGroup() as group:
            group.create_task(local.chat("hi"))
            await local.engine.began.wait()
            assert await load(local) == {"server_load": 1}
            local.engine.go.set()
        while await load(local) != {"server_load": 0}:  # vLLM counts down after the answer is sent
            pass


async def test_vllm_collects_no_request_metrics() -> None:
    async with open_server() as local:
        await local.chat("hi")
        found = {metric.name: metric for metric in REGISTRY.collect()}
        assert not found["http_requests"].samples


async def test_a_load_leaves_no_state() -> None:
    """A dozen clients, two programs each, in all APIs: then all is as it was before."""
    tls = httpx.create_ssl_context()  # made once: it takes longer than all else
    async with open_server() as local:

        async def client(name: str) -> None:
            # One for each: a pool of many connections is slow.
            async with httpx.AsyncClient(base_url=local.url, verify=tls, timeout=60) as own:
                for number, path in enumerate(APIS):
                    said = {"x-agentrt-run": f"{name}-{number % 2}"}
                    for stream in (False, True):
                        body: Any = {**ask(path, "hello"), "stream": stream}
                        answer = await own.post(path, json=body, headers=said)
                        assert answer.status_code == 200
                for number in range(2):
                    await own.delete(f"/v1/client-runs/{name}-{number}")

        await client("first")
        tasks = len(asyncio.all_tasks())
        await asyncio.gather(*(client(f"c{n}") for n in range(CLIENTS)))
        assert len(local.engine.calls) == (CLIENTS + 1) * 8
        assert len(local.runtime.table) == len(local.runtime.runs) == 0
        assert local.server.tenants.calls("default") == 0
        assert (await local.runtime.executor.snapshot())["tenants"] == {}
        await local.until(lambda: len(asyncio.all_tasks()) <= tasks)
        await local.until(lambda: len(local.engine.ended) == (CLIENTS + 1) * 2)
