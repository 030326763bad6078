"""All requests of the official clients of several versions, with all options, work."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.langgraph.serve import Serving
from tests.serving.langgraph.versions.merge import REQUESTS

NOT_HERE = ("feedback_keys", "langsmith_tracer", "query")
"""Fields of these clients that are refused by their names: docs/langgraph-reference.md."""
KNOWN = [json.loads(line) for line in REQUESTS.read_text().splitlines()]
PAST = [{"updates": [{"values": {"steps": ["was"]}, "as_node": "first"}]}]


PAGE = Path(__file__).parents[3] / "docs/langgraph-reference.md"


async def _names(http: httpx.AsyncClient, text: str) -> dict[str, str]:
    """Make the objects that a request names."""
    names = {}
    if "{thread}" in text:
        about: dict[str, Any] = {"metadata": {"graph_id": "steps"}}
        if "{checkpoint}" in text or '"command"' in text:
            about["supersteps"] = PAST
        thread = (await http.post("/threads", json=about)).json()["thread_id"]
        names["{thread}"] = thread
    if "{checkpoint}" in text:
        state = (await http.get(f"/threads/{thread}/state")).json()
        names["{checkpoint}"] = state["checkpoint"]["checkpoint_id"]
    if "{assistant}" in text:
        made = await http.post("/assistants", json={"graph_id": "steps"})
        names["{assistant}"] = made.json()["assistant_id"]
    if "{run}" in text:
        body = {"assistant_id": "steps", "input": {"steps": []}, "stream_resumable": True}
        run = (await http.post(f"/threads/{thread}/runs", json=body)).json()["run_id"]
        await http.get(f"/threads/{thread}/runs/{run}/join")
        names["{run}"] = run
    return names


def in_snake(key: str) -> str:
    """The name that Python's client has for a field."""
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key)


def _without(body: Any, left: tuple[str, ...]) -> Any:
    if isinstance(body, list):
        return [_without(one, left) for one in body]
    if not isinstance(body, dict):
        return body
    return {key: value for key, value in body.items() if in_snake(key) not in left}


async def _status(http: httpx.AsyncClient, asked: str, body: Any) -> tuple[int, str]:
    names = await _names(http, text := json.dumps([asked, body]))
    for name, value in names.items():
        text = text.replace(name, value)
    asked, body = json.loads(text)
    method, _, path = asked.partition(" ")
    async with http.stream(method, path, json=body) as answer:
        why = (await answer.aread()).decode() if answer.status_code >= 400 else ""
        return answer.status_code, why


async def test_every_request_is_understood(http: httpx.AsyncClient) -> None:
    """A run that has ended cannot be cancelled; nothing else is refused."""
    turn = asyncio.Semaphore(8)

    async def refusal(one: Any) -> str | None:
        async with turn:
            body = _without(one["body"], (*NOT_HERE, "webhook"))  # no host is named to this server
            status, why = await _status(http, one["asked"], body)
        if status < 400 or (status == 404 and "/cancel" in one["asked"]):
            return None
        return f"{one['asked']} of {', '.join(one['by'])}: {status} {why}"

    refused = await asyncio.gather(*map(refusal, KNOWN))
    assert [one for one in refused if one is not None] == []


def test_the_page_names_the_versions() -> None:
    page = PAGE.read_text()
    versions = {by for one in KNOWN for by in one["by"]}
    assert len(versions) == 8
    for client in ("python", "JavaScript"):
        numbers = sorted(by.partition(" ")[2] for by in versions if by.startswith(client))
        assert ", ".join(numbers) in page


@pytest.mark.parametrize("field", NOT_HERE)
async def test_what_is_not_supported_is_refused_by_its_name(field: str, it: Serving) -> None:
    mine = [one for one in KNOWN if field == "query" or "/store" not in one["asked"]]
    bodies = [one for one in mine if isinstance(one["body"], dict) and field in one["body"]]
    assert bodies
    left = ("webhook", *(name for name in NOT_HERE if name != field))
    async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
        status, why = await _status(http, bodies[0]["asked"], _without(bodies[0]["body"], left))
    assert status == 422
    assert field in why
    assert "not supported" in why
