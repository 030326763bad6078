"""Bad bodies: each is refused with a sentence, and none is an error of ours.

`make fuzz` tries more of them.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.serving.langgraph.runs.test_runs import IN

SEED = 20260121
BODIES = min(520, int(os.environ.get("AGENTRT_EXAMPLES", "80")))

JUNK: list[Any] = [
    None,
    True,
    -1,
    1.5,
    2**70,
    10**400,
    "",
    "x" * 3000,
    "\0",
    "\ud800",
    "../../etc/passwd",
    "' OR 1=1 --",
    [],
    [[]],
    [None],
    {},
    {"": None},
    {"$gt": 1},
    {"a": {"b": {"c": []}}},
    float("nan"),
    float("inf"),
]
RAW = [b"", b"{", b"[1,", b"\xff\xfe", b"nul", b'{"a":1}{', b"[" * 3000, b'"text"', b"3", b"[]"]

_T, _A = str(uuid4()), str(uuid4())
GOOD: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/assistants"): {"graph_id": "steps", "config": {}, "metadata": {}, "name": "n"},
    ("POST", "/assistants/search"): {"limit": 1, "offset": 0, "metadata": {}, "sort_by": "name"},
    ("POST", "/assistants/count"): {"graph_id": "steps"},
    ("PATCH", f"/assistants/{_A}"): {"name": "x", "config": {}, "context": {}},
    ("POST", f"/assistants/{_A}/versions"): {"limit": 1},
    ("POST", f"/assistants/{_A}/latest"): {"version": 1},
    ("POST", "/threads"): {"thread_id": _T, "metadata": {}, "if_exists": "do_nothing"},
    ("POST", "/threads/search"): {"metadata": {}, "values": {}, "status": "idle", "ids": []},
    ("POST", "/threads/count"): {"metadata": {}},
    ("POST", "/threads/prune"): {"thread_ids": [], "strategy": "delete"},
    ("PATCH", f"/threads/{_T}"): {"metadata": {}},
    ("POST", f"/threads/{_T}/state"): {"values": {}, "as_node": "first", "checkpoint": {}},
    ("POST", f"/threads/{_T}/state/checkpoint"): {"checkpoint": {}, "subgraphs": False},
    ("POST", f"/threads/{_T}/history"): {"limit": 1, "before": {}, "metadata": {}},
    ("POST", f"/threads/{_T}/runs"): {
        "assistant_id": "steps",
        "input": IN,
        "config": {"configurable": {}, "tags": [], "recursion_limit": 5},
        "stream_mode": ["values"],
        "multitask_strategy": "enqueue",
        "checkpoint": {},
        "interrupt_before": [],
        "after_seconds": 0,
        "durability": "sync",
    },
    ("POST", f"/threads/{_T}/runs/wait"): {"assistant_id": "ask", "command": {"resume": "x"}},
    ("POST", "/runs/wait"): {"assistant_id": "bare", "input": {"messages": []}, "context": {}},
    ("POST", "/runs/stream"): {"assistant_id": "bare", "input": {}, "stream_mode": "values"},
    ("POST", "/runs"): {"assistant_id": "bare", "input": {}, "on_completion": "delete"},
    ("POST", "/runs/cancel"): {"status": "pending"},
    ("POST", "/runs/crons/search"): {"metadata": {}, "limit": 1, "sort_by": "cron_id"},
    ("POST", "/runs/crons/count"): {"assistant_id": "steps", "enabled": True},
    ("PUT", "/store/items"): {"namespace": ["a"], "key": "k", "value": {}},
    ("DELETE", "/store/items"): {"namespace": ["a"], "key": "k"},
    ("POST", "/store/items/search"): {"namespace_prefix": [], "filter": {}, "limit": 1},
    ("POST", "/store/namespaces"): {"prefix": [], "max_depth": 1},
}


def _another(body: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """A field that there is not."""
    return {**body, random_.choice(["webhook", "ttl", "crons", "Input", "__class__"]): "x"}


def _worse(body: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """Junk in place of a field, or inside one."""
    key = random_.choice(list(body))
    value = body[key]
    if isinstance(value, dict) and value and random_.random() < 0.5:
        return {**body, key: _worse(value, random_)}
    return {**body, key: random_.choice(JUNK)}


def _nested(body: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """Nested deeper than anything is kept."""
    deep: Any = "x"
    for _ in range(random_.randrange(80, 200)):
        deep = {"a": deep} if random_.random() < 0.5 else [deep]
    return {**body, random_.choice(list(body)): deep}


def _poisoned(body: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """With text or a number that no database takes, wherever values are free."""
    poison = random_.choice(["\0", "\ud800", float("nan"), 2**70])
    return {**body, random_.choice(list(body)): {"a": [poison]}}


WAYS: list[Callable[[dict[str, Any], random.Random], dict[str, Any]]] = [
    _another,
    _worse,
    _worse,
    _nested,
    _poisoned,
]


async def test_bad_bodies_are_refused_with_a_sentence(http: httpx.AsyncClient) -> None:
    """Bodies that are valid by chance are accepted; no body causes a server error."""
    random_, refused = random.Random(SEED), 0
    await http.post("/threads", json={"thread_id": _T, "metadata": {"graph_id": "steps"}})
    await http.post("/assistants", json={"graph_id": "steps", "assistant_id": _A})
    for number in range(BODIES):
        (method, path), good = random_.choice(list(GOOD.items()))
        way = random_.choice(WAYS)
        body = json.dumps(way(good, random_)).encode()
        if number % 10 == 0:
            body = random_.choice(RAW)
        answer = await http.request(method, path, content=body, headers=_JSON)
        told = (method, path, body[:300], answer.status_code, answer.text[:300])
        assert answer.status_code < 500, told
        if answer.status_code >= 400:
            refused += 1
            detail = answer.json()["detail"]
            assert isinstance(detail, str), told
            assert 5 < len(detail) < 2000, told
    assert refused > BODIES // 2


_JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"metadata": ', "the body is not valid JSON: "),
        (b'{"metadata": {"a": "\\u0000"}}', "the body cannot be stored: a text contains a NUL"),
    ],
)
async def test_json_that_cannot_be_stored_is_not_called_invalid(
    http: httpx.AsyncClient, body: bytes, message: str
) -> None:
    answer = await http.post("/threads", content=body, headers=_JSON)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(message)


@pytest.mark.parametrize("path", ["/runs/wait", "/threads", "/assistants/search"])
async def test_a_body_that_is_not_sent_as_json_says_so(http: httpx.AsyncClient, path: str) -> None:
    """As curl sends it without a header."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = await http.post(path, content=b'{"assistant_id": "steps"}', headers=form)
    assert answer.status_code == 422
    assert answer.json() == {
        "detail": "body: must be a JSON object, sent as content-type application/json"
    }


async def test_every_field_that_is_not_supported_is_named(http: httpx.AsyncClient) -> None:
    for (method, path), good in GOOD.items():
        answer = await http.request(method, path, json={**good, "feedback_keys": ["x"]})
        assert answer.status_code == 422, (method, path)
        assert answer.json()["detail"] == "feedback_keys: not supported here"


async def test_bad_queries_are_refused(http: httpx.AsyncClient) -> None:
    for query in (
        "limit=0",
        "limit=100000",
        "offset=-1",
        "status=lost",
        "select=secret",
        "limit=x",
        f"offset={10**30}",
    ):
        answer = await http.get(f"/threads/{_T}/runs?{query}")
        assert answer.status_code == 422, query
        assert query.partition("=")[0] in answer.json()["detail"]
    for path in (
        "/store/items?key=",
        "/store/items?namespace=a..b&key=k",
        "/assistants/steps/graph?xray=99",
        f"/threads/{_T}/stream?stream_mode=" + "[" * 5000,
    ):
        assert (await http.get(path)).status_code == 422, path


async def test_a_users_own_keys_do_not_pass_for_the_servers(http: httpx.AsyncClient) -> None:
    for key in ("run_id", "checkpoint_ns", "langgraph_auth_user", "__secret", "assistant_id"):
        body = {"assistant_id": "steps", "input": IN, "config": {"configurable": {key: "x"}}}
        answer = await http.post("/runs/wait", json=body)
        assert answer.status_code == 422
        assert key in answer.json()["detail"]
