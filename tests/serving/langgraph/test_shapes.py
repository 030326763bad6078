"""Statuses and shapes, against what was recorded of the reference server.

The tables are facts, written down from traffic of langgraph-api 0.16.7 (`langgraph dev`) with
langgraph-sdk 0.4.14: for each endpoint its status, the keys of its answer, and the types of
their values. A key of ours beyond them is listed in `MORE`. The file is long: it is one table.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio

from tests.serving.langgraph.test_runs import DONE, IN

ANY: Any = object
MAYBE_TEXT = (str, type(None))
Shape = dict[str, Any]

CHECKPOINT: Shape = {"thread_id": UUID, "checkpoint_ns": str, "checkpoint_id": MAYBE_TEXT}
THREAD: Shape = {
    "thread_id": UUID,
    "created_at": str,
    "updated_at": str,
    "state_updated_at": str,
    "metadata": dict,
    "status": str,
    "config": dict,
    "values": ANY,
}
RUN: Shape = {
    "run_id": UUID,
    "thread_id": UUID,
    "assistant_id": UUID,
    "metadata": dict,
    "status": str,
    "kwargs": dict,
    "multitask_strategy": str,
    "created_at": str,
    "updated_at": str,
}
ASSISTANT: Shape = {
    "assistant_id": UUID,
    "graph_id": str,
    "config": dict,
    "context": dict,
    "created_at": str,
    "updated_at": str,
    "metadata": dict,
    "version": int,
    "name": str,
    "description": MAYBE_TEXT,
}
TASK: Shape = {
    "id": str,
    "name": str,
    "path": list,
    "error": MAYBE_TEXT,
    "interrupts": list,
    "checkpoint": ANY,
    "state": ANY,
    "result": ANY,
}
STATE: Shape = {
    "values": ANY,
    "next": list,
    "tasks": [TASK],
    "metadata": dict,
    "created_at": MAYBE_TEXT,
    "checkpoint": CHECKPOINT,
    "parent_checkpoint": ANY,
}
INTERRUPT: Shape = {"value": ANY, "id": str, "response_schema": ANY}
GRAPH: Shape = {"nodes": [{"id": str}], "edges": [{"source": str, "target": str}]}
SCHEMAS: Shape = {
    "graph_id": str,
    "input_schema": ANY,
    "output_schema": ANY,
    "state_schema": ANY,
    "config_schema": ANY,
    "context_schema": ANY,
}
UPDATED: Shape = {"checkpoint": CHECKPOINT, "configurable": CHECKPOINT, "checkpoint_id": str}
DETAIL: Shape = {"detail": str}
MORE = {
    "thread_id": {"interrupts", "error"},
    "run_id": {"cancel_reason"},
    "tasks": {"interrupts", "checkpoint_id", "parent_checkpoint_id"},
}
"""Our further keys of a thread, a run, a state; told by a key that each of them has."""


@dataclass(frozen=True)
class Fact:
    """One request and what was recorded of its answer. In paths and bodies, {t} is a thread
    that has run, {q} one that waits for an answer, {n} a new one; {r} is a run of {t}, {c} a
    checkpoint of it, {a} an assistant, and {x} a UUID that nothing has.
    """

    request: str
    body: Any
    status: int
    shape: Any
    headers: tuple[str, ...] = ()


START = {"assistant_id": "steps", "input": IN}
LATER = {**START, "after_seconds": 3600}
RUN_HEADERS = ("content-location",)
WAIT_HEADERS = ("content-location", "location")
T0 = [
    Fact("GET /ok", None, 200, {"ok": bool}),
    Fact("GET /info", None, 200, {"version": str, "flags": dict}),
    Fact("POST /assistants/search", {}, 200, [ASSISTANT]),
    Fact("GET /assistants/{a}", None, 200, ASSISTANT),
    Fact("GET /assistants/{x}", None, 404, DETAIL),
    Fact("GET /assistants/{a}/graph", None, 200, GRAPH),
    Fact("GET /assistants/steps/graph", None, 200, GRAPH),
    Fact("GET /assistants/{a}/schemas", None, 200, SCHEMAS),
    Fact("GET /assistants/steps/schemas", None, 422, DETAIL),
    Fact("POST /threads", {}, 200, THREAD),
    Fact("POST /threads", {"thread_id": "{t}"}, 409, DETAIL),
    Fact("POST /threads", {"thread_id": "x"}, 422, DETAIL),
    Fact("GET /threads/{t}", None, 200, THREAD),
    Fact("GET /threads/{x}", None, 404, DETAIL),
    Fact("GET /threads/nonsense", None, 422, DETAIL),
    Fact("PATCH /threads/{t}", {"metadata": {"a": 1}}, 200, THREAD),
    Fact("POST /threads/search", {"limit": 3}, 200, [THREAD]),
    Fact("GET /threads/{t}/state", None, 200, STATE),
    Fact("GET /threads/{q}/state", None, 200, STATE),
    Fact("GET /threads/{n}/state", None, 200, STATE),
    Fact("GET /threads/{x}/state", None, 404, DETAIL),
    Fact("POST /threads/{t}/state", {"values": {"steps": ["x"]}}, 200, UPDATED),
    Fact("POST /threads/{t}/state/checkpoint", {"checkpoint": {"thread_id": "{t}"}}, 200, STATE),
    Fact("GET /threads/{t}/state/{c}", None, 200, STATE),
    Fact("POST /threads/{t}/history", {"limit": 5}, 200, [STATE]),
    Fact("POST /threads/{t}/runs", START, 200, RUN, RUN_HEADERS),
    Fact("POST /threads/{x}/runs", START, 404, DETAIL),
    Fact("POST /threads/{t}/runs", {**START, "assistant_id": "no"}, 404, DETAIL),
    Fact("POST /threads/{t}/runs", {"input": {}}, 422, DETAIL),
    Fact("POST /threads/{t}/runs/wait", START, 200, {"steps": [str]}, WAIT_HEADERS),
    Fact(
        "POST /threads/{n}/runs/wait",
        {"assistant_id": "fail", "input": IN},
        200,
        {"__error__": {"error": str, "message": str}},
        WAIT_HEADERS,
    ),
    Fact(
        "POST /threads/{n}/runs/wait",
        {"assistant_id": "ask", "input": IN},
        200,
        {"steps": [str], "__interrupt__": [INTERRUPT]},
        WAIT_HEADERS,
    ),
    Fact("GET /threads/{t}/runs", None, 200, [RUN]),
    Fact("GET /threads/{t}/runs/{r}", None, 200, RUN),
    Fact("GET /threads/{t}/runs/{x}", None, 404, DETAIL),
    Fact("GET /threads/{t}/runs/{r}/join", None, 200, {"steps": [str]}),
    Fact("POST /runs/wait", START, 200, {"steps": [str]}, WAIT_HEADERS),
    Fact("POST /runs", START, 200, RUN, RUN_HEADERS),
    Fact("POST /runs", {**START, "assistant_id": "{x}"}, 404, DETAIL),
    Fact("DELETE /threads/{t}/runs/{r}", None, 204, None),
    Fact("DELETE /threads/{t}", None, 204, None),
    Fact("DELETE /threads/{x}", None, 404, DETAIL),
]


@pytest_asyncio.fixture
async def names(http: httpx.AsyncClient) -> AsyncIterator[dict[str, str]]:
    """What the paths of the facts stand for."""

    async def made(path: str, body: Any) -> Any:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    t, q, n = [(await made("/threads", {}))["thread_id"] for _ in range(3)]
    await made(f"/threads/{t}/runs/wait", START)
    await made(f"/threads/{q}/runs/wait", {"assistant_id": "ask", "input": IN})
    (run,) = (await http.get(f"/threads/{t}/runs")).json()
    state = (await http.get(f"/threads/{t}/state")).json()
    yield {
        "t": t,
        "q": q,
        "n": n,
        "r": run["run_id"],
        "a": run["assistant_id"],
        "c": state["checkpoint"]["checkpoint_id"],
        "x": str(uuid4()),
    }


def filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def fits(value: Any, shape: Any, where: str) -> None:
    """Whether an answer has a shape: its keys, and the types of its values."""
    if isinstance(shape, list):
        assert isinstance(value, list), where
        for number, one in enumerate(value):
            fits(one, shape[0], f"{where}[{number}]")
    elif isinstance(shape, dict):
        assert isinstance(value, dict), where
        assert shape.keys() <= value.keys(), (where, shape.keys() - value.keys())
        for key, inner in shape.items():
            fits(value[key], inner, f"{where}.{key}")
    elif shape is UUID:
        assert str(UUID(value)) == value, where
    else:
        assert isinstance(value, shape), (where, value)


@pytest.mark.parametrize("fact", T0, ids=lambda fact: f"{fact.request} {fact.status}")
async def test_an_endpoint_answers_as_recorded(
    fact: Fact, names: dict[str, str], http: httpx.AsyncClient
) -> None:
    method, _, path = filled(fact.request, names).partition(" ")
    body = None if fact.body is None else json.loads(filled(json.dumps(fact.body), names))
    answer = await http.request(method, path, json=body)
    assert answer.status_code == fact.status, answer.text
    for name in fact.headers:
        assert answer.headers[name].startswith("/threads/")
    if fact.shape is None:
        assert answer.content == b""
    else:
        fits(answer.json(), fact.shape, fact.request)


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/threads/{t}", THREAD),
        ("/threads/{t}/runs/{r}", RUN),
        ("/threads/{t}/state", STATE),
        ("/assistants/{a}", ASSISTANT),
    ],
)
async def test_no_key_is_there_that_is_not_listed(
    path: str, shape: Shape, names: dict[str, str], http: httpx.AsyncClient
) -> None:
    more = MORE.get("run_id" if "run_id" in shape else next(iter(shape)), set())
    more = MORE["tasks"] if "tasks" in shape else more
    answer = (await http.get(filled(path, names))).json()
    assert answer.keys() == shape.keys() | more


async def test_a_run_is_created_pending_and_its_place_is_told(
    names: dict[str, str], http: httpx.AsyncClient
) -> None:
    answer = await http.post(f"/threads/{names['n']}/runs", json=LATER)
    run = answer.json()
    place = f"/threads/{names['n']}/runs/{run['run_id']}"
    assert (run["status"], answer.headers["content-location"]) == ("pending", place)
    cancelled = await http.post(f"{place}/cancel?wait=1&action=interrupt")
    assert (cancelled.status_code, cancelled.json()) == (200, {})
    assert (await http.get(place)).json()["status"] == "interrupted"
    thread = (await http.get(f"/threads/{names['n']}")).json()
    assert (thread["status"], thread["error"]) == ("idle", None)


async def test_a_busy_thread_refuses_with_409(
    names: dict[str, str], http: httpx.AsyncClient
) -> None:
    path = f"/threads/{names['n']}/runs"
    run = (await http.post(path, json=LATER)).json()
    answer = await http.post(path, json={**START, "multitask_strategy": "reject"})
    assert answer.status_code == 409
    fits(answer.json(), DETAIL, path)
    await http.post(f"{path}/{run['run_id']}/cancel?wait=1")


@pytest.mark.parametrize("place", ["/threads/{n}/runs/stream", "/runs/stream"])
async def test_a_stream_is_one_of_events(
    place: str, names: dict[str, str], http: httpx.AsyncClient
) -> None:
    """metadata comes first, ids only when it is resumable; there is no "end"."""
    for resumable in (False, True):
        body = {**START, "stream_mode": ["values", "updates"], "stream_resumable": resumable}
        answer = await http.post(filled(place, names), json=body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["location"] == answer.headers["content-location"] + "/stream"
        blocks = [one.splitlines() for one in answer.text.replace("\r", "").split("\n\n") if one]
        fields = [dict(line.split(": ", 1) for line in block) for block in blocks]
        assert fields[0]["event"] == "metadata"
        fits(json.loads(fields[0]["data"]), {"run_id": UUID, "attempt": int}, "metadata")
        assert {one["event"] for one in fields[1:]} == {"values", "updates"}
        assert all(("id" in one) is resumable for one in fields)
        assert json.loads(fields[-1]["data"])["steps"][-4:] == DONE["steps"]


async def test_a_question_and_its_state(names: dict[str, str], http: httpx.AsyncClient) -> None:
    """A run that asks is a success; its thread is interrupted."""
    (run,) = (await http.get(f"/threads/{names['q']}/runs")).json()
    thread = (await http.get(f"/threads/{names['q']}")).json()
    assert (run["status"], thread["status"]) == ("success", "interrupted")
    state = (await http.get(f"/threads/{names['q']}/state")).json()
    (task,) = state["tasks"]
    fits(task["interrupts"], [INTERRUPT], "interrupts")
    assert task["name"] == "ask"


async def test_the_store_answers_as_recorded(http: httpx.AsyncClient) -> None:
    root = str(uuid4())
    item = {"namespace": [root, "b"], "key": "k", "value": {"n": 1}}
    assert (await http.put("/store/items", json=item)).status_code == 204
    got = await http.get("/store/items", params={"namespace": f"{root}.b", "key": "k"})
    shape = {"namespace": [str], "key": str, "value": dict, "created_at": str, "updated_at": str}
    fits(got.json(), shape, "item")
    found = await http.post(
        "/store/items/search", json={"namespace_prefix": [root], "limit": 1, "offset": 0}
    )
    fits(found.json(), {"items": [shape]}, "items")
