"""Runs that wait say that they live: streams by comments, results in one piece by newlines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.langgraph.graphs import GATES, all_graphs
from tests.serving.langgraph.serve import serving

SOON_S = 0.02


@pytest.mark.parametrize("path", ["/runs/stream", "/runs/wait"])
async def test_a_run_that_waits_says_that_it_lives(path: str, tmp_path: Path) -> None:
    sign = b": waiting\n\n" if path.endswith("stream") else b"\n"
    gate = f"alive at {path}"
    with serving(all_graphs(), tmp_path / "agentrt.db") as it:
        assert it.server is not None
        it.server.keep_alive_s = SOON_S
        body: dict[str, Any] = {"assistant_id": "gate", "input": {"gate": gate}}
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(base_url=it.url, timeout=60) as http,
            http.stream("POST", path, json=body) as answer,
        ):
            assert answer.status_code == 200
            parts, came = answer.aiter_raw(), b""
            while came.count(sign) < 3:
                came += await anext(parts)
            GATES.open(gate)
            came += b"".join([part async for part in parts])
    if path.endswith("wait"):
        assert json.loads(came)["gate"] == gate
    else:
        assert b"event: values" in came
        assert b": ping" not in came


@pytest.mark.parametrize("method", ["SendMessage", "message/send"])
async def test_a_message_to_an_agent_that_waits_says_that_it_lives(
    method: str, tmp_path: Path
) -> None:
    """The answer is that of a message that does not wait, behind newlines."""
    gate = f"alive by {method}"
    part = {"data": {"gate": gate, "steps": []}}
    message: dict[str, Any] = {"messageId": "1", "role": "ROLE_USER", "parts": [part]}
    headers = {"a2a-version": "1.0"}
    if method == "message/send":
        message |= {"kind": "message", "role": "user", "parts": [{"kind": "data", **part}]}
        headers = {}
    with serving(all_graphs(), tmp_path / "agentrt.db") as it:
        assert it.server is not None
        it.server.keep_alive_s = SOON_S
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"message": message}}
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(base_url=it.url, timeout=60, headers=headers) as http,
            http.stream("POST", "/a2a/gate", json=body) as answer,
        ):
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
            parts, came = answer.aiter_raw(), b""
            while came.count(b"\n") < 3:
                came += await anext(parts)
            GATES.open(gate)
            came += b"".join([part async for part in parts])
    result = json.loads(came)["result"]
    task = result.get("task", result)
    assert task["status"]["state"] in ("TASK_STATE_COMPLETED", "completed")
