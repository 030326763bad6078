"""Graphs and programs as agents, by the official client of the Agent2Agent protocol (A2A)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.helpers import get_artifact_text, get_data_parts, get_message_text, new_data_part
from a2a.types import (
    AgentInterface,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from langgraph.graph import START, StateGraph
from langgraph_sdk.client import LangGraphClient
from typing_extensions import TypedDict

from agentrt.serving.langgraph import api_with
from agentrt.serving.langgraph.auth.hooks import load_auth
from tests.serving.langgraph.graphs import GATES, TURN_S, all_graphs
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.langgraph.test_auth import HOOKS
from tests.serving.tenants.plain_keys import PlainKeys

COMPLETED = TaskState.TASK_STATE_COMPLETED
WAITS = TaskState.TASK_STATE_INPUT_REQUIRED


@asynccontextmanager
async def agent(
    it: Serving, name: str, *, streaming: bool = False, key: str = "", version: str = "1.0"
) -> AsyncIterator[Client]:
    """The client of one agent, from its card."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=TURN_S, headers=headers) as http:
        config = ClientConfig(streaming=streaming, httpx_client=http)
        if version != "1.0":
            config.supported_protocol_bindings = ["JSONRPC"]
        card = (await http.get(f"{it.url}/a2a/{name}")).json()
        url = card["supportedInterfaces"][0]["url"]
        client = await create_client(url, config)
        if version != "1.0":
            old = AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
            own: Any = client
            own._card.ClearField("supported_interfaces")
            own._card.supported_interfaces.append(old)
            del http.headers["A2A-Version"]
            client = await create_client(own._card, config)
        yield client


def message(*parts: Any, task: str = "", context: str = "") -> Message:
    """Texts and objects of a user."""
    made = [Part(text=one) if isinstance(one, str) else new_data_part(one) for one in parts]
    return Message(
        role=Role.ROLE_USER,
        parts=made,
        message_id=str(uuid4()),
        task_id=task,
        context_id=context,
    )


async def told(client: Client, *parts: Any, task: str = "", **terms: Any) -> list[StreamResponse]:
    """The answer to a message: all events, or one task."""
    request = SendMessageRequest(
        message=message(*parts, task=task, context=terms.pop("context", "")),
        configuration=SendMessageConfiguration(**terms),
    )
    async with asyncio.timeout(TURN_S):
        return [one async for one in client.send_message(request)]


async def sent(client: Client, *parts: Any, task: str = "", **terms: Any) -> Task:
    (one,) = await told(client, *parts, task=task, **terms)
    return one.task


async def test_a_card_says_what_an_agent_can_do(it: Serving, http: httpx.AsyncClient) -> None:
    assert it.server is not None
    assistant = await http.get("/assistants/chat")
    key = assistant.json()["assistant_id"]
    for path in (f"/a2a/{key}", "/a2a/chat/.well-known/agent-card.json"):
        card = (await http.get(path)).json()
        assert (card["name"], card["capabilities"]["streaming"]) == ("chat", True)
        assert card["supportedInterfaces"][0]["url"] == f"{it.url}/a2a/{key}"
        assert card["description"] == "takes messages"
        assert "securitySchemes" not in card
    of_root = "/.well-known/agent-card.json"
    assert (await http.get(of_root, params={"assistant_id": key})).json() == card
    unnamed = await http.get(of_root)
    assert (unnamed.status_code, "chat" in unnamed.json()["detail"]) == (422, True)
    assert (await http.get("/a2a/none")).status_code == 422
    assert (await http.get("/a2a/poem")).json()["description"] == "A native program."


async def test_a_server_without_agents_has_no_card(tmp_path: Path) -> None:
    with serving({}, tmp_path / "empty.db") as it:
        async with httpx.AsyncClient(base_url=it.url) as http:
            answer = await http.get("/.well-known/agent-card.json")
    assert answer.status_code == 404
    assert "serves no graphs and no programs" in answer.json()["detail"]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_message_is_a_run_and_its_task_stays(
    it: Serving, client: LangGraphClient, version: str
) -> None:
    async with agent(it, "chat", version=version) as chat:
        task = await sent(chat, "hi")
        (artifact,) = task.artifacts
        thread, _, run = task.id.partition(":")
        state: Any = await client.threads.get_state(thread)
        said = [one["content"] for one in state["values"]["messages"]]
        assert (task.status.state, task.context_id) == (COMPLETED, thread)
        assert [get_message_text(one) for one in task.history] == said
        assert get_artifact_text(artifact) == said[-1]
        assert (await client.runs.get(thread, run))["status"] == "success"
        assert await chat.get_task(GetTaskRequest(id=task.id)) == task
        short = await chat.get_task(GetTaskRequest(id=task.id, history_length=1))
        assert [one.role for one in short.history] == [Role.ROLE_AGENT]
        again = await sent(chat, "more", context=thread)
        assert again.id != task.id
        assert len(again.history) == 4


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_stream_has_an_agents_words_as_they_come(it: Serving, version: str) -> None:
    async with agent(it, "chat", streaming=True, version=version) as chat:
        events = await told(chat, "hi")
        kinds = [one.WhichOneof("payload") for one in events]
        assert (kinds[:2], kinds[-1]) == (["task", "status_update"], "status_update")
        pieces = [one.artifact_update for one in events if one.HasField("artifact_update")]
        assert len(pieces) > 2
        assert [one.append for one in pieces] == [False, *[True] * (len(pieces) - 2), False]
        words = "".join(get_artifact_text(one.artifact) for one in pieces[:-1])
        assert words == get_artifact_text(pieces[-1].artifact)
        assert events[-1].status_update.status.state == COMPLETED


async def test_a_task_is_followed_and_cancelled(it: Serving) -> None:
    gate = str(uuid4())
    async with agent(it, "gate", streaming=True) as gated, agent(it, "gate") as other:
        given = {"gate": gate, "steps": []}
        task = await sent(other, given, return_immediately=True)
        await GATES.reached(gate)
        events = gated.subscribe(SubscribeToTaskRequest(id=task.id))
        async with asyncio.timeout(TURN_S):
            assert (await anext(events)).task.status.state == TaskState.TASK_STATE_WORKING
            stopped = await other.cancel_task(CancelTaskRequest(id=task.id))
            assert stopped.status.state == TaskState.TASK_STATE_CANCELED
            last = [one async for one in events][-1]
        assert last.status_update.status.state == TaskState.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await other.cancel_task(CancelTaskRequest(id=task.id))
        with pytest.raises(UnsupportedOperationError):
            await anext(gated.subscribe(SubscribeToTaskRequest(id=task.id)))


async def test_a_task_that_fails_says_why(it: Serving) -> None:
    async with agent(it, "fail") as fail:
        task = await sent(fail, {"steps": []})
        assert task.status.state == TaskState.TASK_STATE_FAILED
        assert "no such luck" in get_message_text(task.status.message)


async def test_programs_are_agents_too(it: Serving) -> None:
    async with agent(it, "poem") as poem, agent(it, "approval") as approval:
        for message in ("rain", {"topic": "rain"}):
            done = await sent(poem, message)
            (values,) = get_data_parts(done.artifacts[0].parts)
            assert values["topic"] == "rain"
        refused = await sent(poem, {"messages": "rain"})
        assert "'topic' must be str" in get_message_text(refused.status.message)
        refused = await sent(poem, {"of": "rain"})
        assert "'topic' must be str" in get_message_text(refused.status.message)
        asked = await sent(approval, "it")
        assert get_message_text(asked.status.message) == "approve it?"
        answered = await sent(approval, "yes", task=asked.id)
        assert get_artifact_text(answered.artifacts[0]) == "it: yes"


async def test_a_graph_gets_the_message_that_was_sent(client: LangGraphClient, it: Serving) -> None:
    """Whole numbers, which the protocol's types do not have, and files beside a text."""
    picture = Part(raw=b"bytes", media_type="image/png")
    async with agent(it, "chat") as chat:
        given = message("see", {"n": [1, 2.5, {"m": 3}, 1e20]})
        given.parts.append(picture)
        given.parts.append(Part(url="http://127.0.0.1:9/a.pdf", media_type="application/pdf"))
        request = SendMessageRequest(message=given)
        (one,) = [one async for one in chat.send_message(request)]
    thread, _, run = one.task.id.partition(":")
    stored: Any = await client.runs.get(thread, run)
    asked = stored["kwargs"]["input"]
    assert asked == {
        "n": [1, 2.5, {"m": 3}, 1e20],
        "messages": [
            {
                "role": "user",
                "id": given.message_id,
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image", "base64": "Ynl0ZXM=", "mime_type": "image/png"},
                    {
                        "type": "file",
                        "url": "http://127.0.0.1:9/a.pdf",
                        "mime_type": "application/pdf",
                    },
                ],
            }
        ],
    }
    assert isinstance(asked["n"][0], int)


@pytest.mark.parametrize(
    ("name", "parts", "terms", "kind", "says"),
    [
        ("steps", ["hi"], {}, InvalidParamsError, "takes no messages; send a data part with steps"),
        ("steps", [[1]], {}, ContentTypeNotSupportedError, "JSON object"),
        ("chat", ["hi"], {"context": "x"}, InvalidParamsError, "contextId 'x' is not a UUID"),
        ("chat", ["hi"], {"task": "x"}, TaskNotFoundError, "'x' not found"),
        ("chat", ["hi"], {"task": f"{uuid4()}:{uuid4()}"}, TaskNotFoundError, "not found"),
        ("chat", [], {}, InvalidParamsError, "Validation failed"),
    ],
)
async def test_impossible_requests_get_an_error(
    it: Serving, name: str, parts: list[Any], terms: Any, kind: type[A2AError], says: str
) -> None:
    async with agent(it, name) as one:
        with pytest.raises(kind, match=says):
            await sent(one, *parts, **terms)


@pytest.mark.parametrize("method", [["message/send"], {}, None, 1])
async def test_a_method_that_is_no_text_is_an_invalid_request(
    http: httpx.AsyncClient, method: Any
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
    answer = await http.post("/a2a/chat", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, -32600)


async def test_the_conversion_of_parts_is_limited(it: Serving) -> None:
    """The server under test fails a request that holds its event loop."""
    async with agent(it, "steps") as steps:
        with pytest.raises(A2AError, match="413"):
            await sent(steps, {"steps": [1] * 21_000})
        task = await sent(steps, {"steps": ["x" * 1000] * 100})
        (part,) = task.artifacts[0].parts
        assert (part.media_type, len(json.loads(part.text)["steps"])) == (
            "application/json",
            103,
        )
    async with agent(it, "bare") as bare:
        said = [{"role": "user", "content": str(n)} for n in range(1100)]
        task = await sent(bare, {"messages": said})
        assert len(task.history) == 1000
        short = await bare.get_task(GetTaskRequest(id=task.id, history_length=2))
        assert short.history == task.history[-2:]


class Value(TypedDict):
    value: Any


def nested(levels: int, *, in_lists: bool) -> Any:
    """A number in so many lists or objects."""
    value: Any = 1
    for _ in range(levels):
        value = [value] if in_lists else {"in": value}
    return value


@pytest.mark.parametrize(
    ("odd", "is_text"),
    [
        pytest.param(2**60 + 1, True, id="integer"),
        pytest.param(nested(30, in_lists=True), True, id="lists"),
        pytest.param(nested(38, in_lists=False), True, id="objects"),
        pytest.param(nested(29, in_lists=False), False, id="fewer objects"),
    ],
)
async def test_json_that_a_data_part_would_change_is_a_text(
    tmp_path: Path, odd: Any, is_text: bool
) -> None:
    builder = StateGraph(Value).add_node("make", lambda _: {"value": odd})
    builder.add_edge(START, "make")
    with serving({"make": builder}, tmp_path / "a.db") as it:
        async with agent(it, "make") as make:
            task = await sent(make, {"value": 1})
            (part,) = task.artifacts[0].parts
            assert (part.media_type == "application/json") == is_text
            value = json.loads(part.text) if is_text else get_data_parts([part])[0]
            assert value == {"value": odd}


async def test_unsupported_methods_are_refused(it: Serving) -> None:
    async with agent(it, "chat") as chat, agent(it, "ask") as ask:
        task = await sent(chat, "hi")
        with pytest.raises(TaskNotFoundError, match="belongs to another assistant"):
            await ask.get_task(GetTaskRequest(id=task.id))
        config = TaskPushNotificationConfig(task_id=task.id, url="http://127.0.0.1:9")
        with pytest.raises(PushNotificationNotSupportedError):
            await chat.create_task_push_notification_config(config)
        with pytest.raises(PushNotificationNotSupportedError):
            await sent(chat, "hi", task_push_notification_config=config)
        with pytest.raises(UnsupportedOperationError, match="contextId"):
            await chat.list_tasks(ListTasksRequest())


async def test_tasks_are_visible_only_to_their_tenant(tmp_path: Path) -> None:
    """The requests come from the tenant, another tenant, an operator, and without a key."""
    with serving(all_graphs(), tmp_path / "a.db", keys=PlainKeys()) as it:
        async with agent(it, "chat", key="ann") as ann, agent(it, "chat", key="root") as root:
            task = await sent(ann, "hi")
            assert task.status.state == COMPLETED
            assert (await sent(root, "hi")).status.state == COMPLETED
            with pytest.raises(TaskNotFoundError):
                await root.get_task(GetTaskRequest(id=task.id))
            with pytest.raises(TaskNotFoundError):
                await root.cancel_task(CancelTaskRequest(id=task.id))
            with pytest.raises(InvalidParamsError, match="not found"):
                await sent(root, "hi", context=task.context_id)
        async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
            assert (await http.get("/.well-known/agent-card.json")).status_code == 401
            assert (await http.post("/a2a/chat", json={})).status_code == 401


async def test_authentication_hooks_are_called(tmp_path: Path) -> None:
    (tmp_path / "auth.py").write_text(HOOKS)
    project = tmp_path / "langgraph.json"
    project.write_text('{"auth": {"path": "./auth.py:auth"}}')
    with serving(all_graphs(), tmp_path / "a.db", api_with(load_auth(project))) as it:
        async with agent(it, "chat", key="a") as ann, agent(it, "chat", key="e") as eve:
            task = await sent(ann, "hi")
            assert (await ann.get_task(GetTaskRequest(id=task.id))).status.state == COMPLETED
            with pytest.raises(TaskNotFoundError):
                await eve.get_task(GetTaskRequest(id=task.id))
            with pytest.raises(A2AError, match="not found"):
                await sent(eve, "hi", context=task.context_id)
        async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
            assert (await http.post("/a2a/chat", json={})).status_code == 401
