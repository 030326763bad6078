"""LangGraph's authentication hooks: who asks, what they may, and what they see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import (
    AuthenticationError,
    NotFoundError,
    PermissionDeniedError,
)

from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.serving.langgraph import api_with
from agentrt.serving.langgraph.auth.hooks import User, load_auth
from tests.serving.langgraph.factories import with_both
from tests.serving.langgraph.graphs import all_graphs
from tests.serving.langgraph.protocol.test_protocol import command, until
from tests.serving.langgraph.runs.test_runs import DONE, IN
from tests.serving.langgraph.serve import Serving, serving

HOOKS = """
from langgraph_sdk import Auth

auth = Auth()
KEYS = {"Bearer a": "ann", "Bearer e": "eve"}


@auth.authenticate
async def authenticate(authorization: str | None, headers: dict) -> Auth.types.MinimalUserDict:
    assert headers.get(b"host") == headers["host"]
    if authorization not in KEYS:
        raise Auth.exceptions.HTTPException(status_code=401, detail="who are you?")
    return {"identity": KEYS[authorization], "permissions": ["p"]}


@auth.on
async def no(ctx, value):
    return ctx.resource == "assistants"


@auth.on.threads
async def own(ctx, value):
    return {"owner": ctx.user.identity}


@auth.on.threads.create
async def mark(ctx, value):
    value["metadata"]["owner"] = ctx.user.identity


@auth.on.threads.create_run
async def start(ctx, value):
    value["metadata"]["by"] = ctx.user.identity
    return {"owner": {"$eq": ctx.user.identity}}


@auth.on.crons
async def own_crons(ctx, value):
    if ctx.action == "create":
        value["metadata"]["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.store
async def scope(ctx, value):
    if value["namespace"][:1] != (ctx.user.identity,):
        value["namespace"] = (ctx.user.identity, *value["namespace"])
"""


def a_project(folder: Path, hooks: str = HOOKS, auth: Any = None) -> Path:
    (folder / "hooks.py").write_text(hooks)
    project = folder / "langgraph.json"
    section = {"path": "./hooks.py:auth"} if auth is None else auth
    project.write_text(json.dumps({"graphs": {}, "auth": section}))
    return project


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("auth")
    auth = load_auth(a_project(folder))
    with serving(
        {**all_graphs(), "with_both": with_both}, folder / "agentrt.db", api_with(auth)
    ) as it:
        yield it


def of(it: Serving, key: str | None) -> LangGraphClient:
    return get_client(url=it.url, headers={"authorization": key} if key else None)


async def test_nobody_is_let_in_without_a_key(it: Serving) -> None:
    async with of(it, None) as client, of(it, "Bearer x") as other:
        for one in (client, other):
            with pytest.raises(AuthenticationError, match="who are you"):
                await one.threads.create()
        answer = await client.http.client.get("/ok")
        assert answer.status_code == 200


async def test_each_sees_what_the_hooks_let_them(it: Serving) -> None:
    async with of(it, "Bearer a") as ann, of(it, "Bearer e") as eve:
        thread = (await ann.threads.create(metadata={"n": 1}))["thread_id"]
        assert (await ann.threads.get(thread))["metadata"] == {"n": 1, "owner": "ann"}
        assert await ann.runs.wait(thread, "steps", input=IN) == DONE
        (run,) = await ann.runs.list(thread)
        metadata = run["metadata"] or {}
        assert metadata.items() >= {"by": "ann", "owner": "ann", "n": 1}.items()
        assert await eve.threads.search() == []
        for asked in (
            eve.threads.get(thread),
            eve.threads.get_state(thread),
            eve.runs.create(thread, "steps", input=IN),
            eve.runs.get(thread, run["run_id"]),
        ):
            with pytest.raises(NotFoundError):
                await asked


async def test_an_assistants_threads_go_with_it_but_for_those_of_others(it: Serving) -> None:
    """A run that is under way is stopped; threads of other assistants stay."""
    async with of(it, "Bearer a") as ann, of(it, "Bearer e") as eve:
        made = (await ann.assistants.create("ask"))["assistant_id"]
        threads = [(await who.threads.create())["thread_id"] for who in (ann, ann, eve, ann)]
        slept, answered, hers, other = threads
        for client, thread in ((ann, answered), (eve, hers)):
            await client.runs.wait(thread, made, input=IN)
        await ann.runs.wait(other, "ask", input=IN)
        await ann.runs.create(slept, made, input=IN, after_seconds=600)
        await ann.assistants.delete(made, delete_threads=True)
        left = {one["thread_id"] for one in await ann.threads.search(ids=threads)}
        assert left == {other}
        assert (await eve.threads.get(hers))["thread_id"] == hers
        with pytest.raises(NotFoundError):
            await ann.assistants.get(made)


async def test_a_thread_that_a_run_makes_is_its_users_own(it: Serving) -> None:
    async with of(it, "Bearer a") as ann, of(it, "Bearer e") as eve:
        for thread, done in ((str(uuid4()), "create"), (None, "keep")):
            more: Any = {"if_not_exists": done} if thread else {"on_completion": done}
            made = await ann.runs.create(thread, "steps", input=IN, **more)
            assert await ann.runs.join(made["thread_id"], made["run_id"]) == DONE
            with pytest.raises(NotFoundError):
                await eve.threads.get(made["thread_id"])


async def test_runs_by_the_clock_are_their_makers(it: Serving) -> None:
    """1. Hooks let others see no crons. 2. They are asked for each run, as for one of the maker."""
    async with of(it, "Bearer a") as ann, of(it, "Bearer e") as eve:
        thread = (await ann.threads.create())["thread_id"]
        cron: Any = await ann.crons.create_for_thread(
            thread, "steps", schedule="* * * * * *", input=IN
        )
        assert (cron["user_id"], cron["metadata"]) == ("ann", {"owner": "ann"})
        assert await eve.crons.search() == []
        for asked in (
            eve.crons.delete(cron["cron_id"]),
            eve.crons.update(cron["cron_id"], enabled=False),
            eve.crons.create_for_thread(thread, "steps", schedule="@daily"),
        ):
            with pytest.raises(NotFoundError):
                await asked
        while not (found := await ann.runs.list(thread, status="success")):
            await asyncio.sleep(0.02)
        await ann.crons.delete(cron["cron_id"])
        assert (found[-1]["metadata"] or {}).items() >= {"by": "ann"}.items()


async def test_states_say_whose_they_are(it: Serving) -> None:
    """This holds for states of runs, and for states that a user has written."""
    async with of(it, "Bearer a") as ann:
        thread = (await ann.threads.create())["thread_id"]
        await ann.runs.wait(thread, "steps", input=IN)
        await ann.threads.update_state(thread, {"steps": ["mine"]}, as_node="first")
        states = await ann.threads.get_history(thread)
        assert {(one["metadata"] or {})["user_id"] for one in states} == {"ann"}


async def test_events_are_those_of_ones_own_threads(it: Serving) -> None:
    async with of(it, "Bearer a") as ann, of(it, "Bearer e") as eve, of(it, None) as nobody:
        thread, mine, other = str(uuid4()), ann.http.client, eve.http.client
        hearing = asyncio.create_task(until(other, thread, "completed"))
        await command(mine, thread, "run.start", assistant_id="steps", input=IN)
        await until(mine, thread, "completed")
        refused = await command(other, thread, "run.start", assistant_id="steps", input=IN)
        assert "not found" in refused["message"]
        await command(mine, thread, "run.start", assistant_id="steps", input=IN)
        await until(mine, thread, "completed", "completed")
        assert not hearing.done()
        hearing.cancel()
        await asyncio.wait([hearing])
        answer = await nobody.http.client.post(f"/threads/{thread}/commands", json={})
        assert answer.status_code == 401


async def test_a_factory_is_told_the_user(it: Serving) -> None:
    async with of(it, "Bearer a") as ann:
        done: Any = await ann.runs.wait(None, "with_both", input=IN)
        assert done["steps"][-1] == "made for nobody, threads.create_run, ann"
        drawn = await ann.assistants.get_graph("with_both")
        assert drawn["nodes"][1]["id"] == "nobody, assistants.read, ann"


async def test_the_store_is_scoped_by_the_hook(it: Serving) -> None:
    async with of(it, "Bearer a") as ann, of(it, "Bearer e") as eve:
        await ann.store.put_item(["notes"], "k", {"of": "ann"})
        assert (await ann.store.get_item(["notes"], "k"))["namespace"] == ["ann", "notes"]
        assert await eve.store.get_item(["notes"], "k") is None
        assert (await eve.store.search_items([]))["items"] == []


async def test_a_hook_that_says_false_refuses(tmp_path: Path) -> None:
    hooks = """
from langgraph_sdk import Auth

auth = Auth()


@auth.on.threads.create
async def no(ctx, value):
    return False
"""
    auth = load_auth(a_project(tmp_path, hooks))
    with serving(all_graphs(), tmp_path / "a.db", api_with(auth)) as it:
        async with get_client(url=it.url) as client:
            with pytest.raises(PermissionDeniedError, match="may not create threads"):
                await client.threads.create()
            assert await client.threads.search() == []


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        ("authenticate(): return {}", "returned a user without identity"),
        ("authenticate(): return {'identity': 'ann', 'permissions': 5}", "the permissions 5"),
        ("authenticate(): return {'identity': 'ann', 'permissions': 'p'}", "the permissions 'p'"),
        ("authenticate(colour): return 'ann'", "has the unknown parameters colour"),
    ],
)
async def test_an_authenticate_hook_that_is_wrong_is_a_fault_of_the_server(
    tmp_path: Path, hook: str, says: str
) -> None:
    hooks = f"from langgraph_sdk import Auth\nauth = Auth()\n@auth.authenticate\nasync def {hook}\n"
    auth = load_auth(a_project(tmp_path, hooks))
    with serving(all_graphs(), tmp_path / "a.db", api_with(auth)) as it:
        async with httpx.AsyncClient(base_url=it.url) as http:
            for path in ("/threads/00000000-0000-4000-8000-000000000000", "/v1/questions"):
                answer = await http.get(path)
                assert answer.status_code == 500
                assert says in answer.text


@dataclass(slots=True)
class Slotted:
    identity: str
    org: str
    role: str | None = None


class Named(NamedTuple):
    identity: str
    org: str


def test_a_user_is_a_name_a_mapping_or_an_object() -> None:
    class Person:
        identity = "ann"
        role = "boss"

    assert User("ann").identity == "ann"
    assert User({"identity": "ann", "org": 1})["org"] == 1
    assert User(Person()).role == "boss"
    for user in (Slotted("ann", "o1"), Named("ann", "o1")):
        assert User(user).to_json() == {"identity": "ann", "org": "o1", "permissions": []}
    assert User({"identity": "ann"}).to_json() == {"identity": "ann", "permissions": []}
    with pytest.raises(ConfigError, match="without identity"):
        User({})
    with pytest.raises(KeyError):
        User("ann")["org"]


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        ("./hooks.py:auth", "must have the form"),
        ({"path": "hooks.py"}, "does not name an existing file"),
        ({"path": "./nowhere.py:auth"}, "does not name an existing file"),
        ({"path": "./hooks.py:KEYS"}, "is not a langgraph_sdk.Auth"),
        ({"path": "./hooks.py:auth", "openapi": {}}, "openapi are not supported"),
    ],
)
def test_an_auth_section_that_cannot_be_is_told(tmp_path: Path, auth: Any, message: str) -> None:
    with pytest.raises(ProgramLoadError, match=message):
        load_auth(a_project(tmp_path, auth=auth))


def test_hooks_that_raise_while_they_load_are_told(tmp_path: Path) -> None:
    with pytest.raises(ProgramLoadError, match="raised ZeroDivisionError"):
        load_auth(a_project(tmp_path, "1 / 0"))
