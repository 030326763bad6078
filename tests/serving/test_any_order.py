"""Two tenants create, change, run, join, cancel, search and delete in any order.

Nothing fails the server, nobody finds what is another's, and nothing runs on at the end.
``AGENTRT_EXAMPLES=20000`` tries more (`make fuzz`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from agentrt import Context, program
from agentrt.serving.langgraph import api as langgraph
from agentrt.serving.observability import api as observability
from agentrt.serving.programs.api import api as programs
from tests.serving.langgraph.graphs import all_graphs
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.tenants.plain_keys import PlainKeys

EXAMPLES = max(3, int(os.environ.get("AGENTRT_EXAMPLES", "100")) // 40)
REQUESTS = 30
TENANTS = ("ann", "eve")
REFUSED = (400, 404, 409, 422, 429, 503, 507)
"""How a request may be refused; docs/tenants.md names the last two."""
GRAPHS = ("steps", "ask", "gate")
STRATEGIES = ("reject", "enqueue", "interrupt", "rollback")


@program
async def asks(ctx: Context, text: str = "?") -> Any:
    return await ctx.human(text)


@program
async def says(ctx: Context, text: str = "!") -> str:
    return text


class Tenants(RuleBasedStateMachine):
    """The objects of two tenants, by owner and path, so that each can request the other's."""

    served: ClassVar[Serving]
    clients: ClassVar[dict[str, httpx.Client]]
    told: ClassVar[set[int]] = set()
    threads: Any = Bundle("threads")
    runs: Any = Bundle("runs")
    assistants: Any = Bundle("assistants")
    items: Any = Bundle("items")
    started: Any = Bundle("started")
    sessions: Any = Bundle("sessions")
    questions: Any = Bundle("questions")
    tenants = st.sampled_from(TENANTS)

    def ask(self, tenant: str, method: str, path: str, body: Any = None, owner: str = "") -> Any:
        """The JSON of a success, else None. ``owner`` is whose it is that the path names."""
        answer = self.clients[tenant].request(method, path, json=body)
        self.told.add(answer.status_code)
        shown = (tenant, owner, method, path, body, answer.status_code, answer.text[:300])
        if owner not in ("", tenant):
            # LangGraph's own server has 409 for a copy of what is not there, null for an item.
            is_absent = "not found" in answer.text or answer.text == "null"
            assert answer.status_code in (404, 422) or is_absent, shown
        if answer.status_code >= 400:
            assert answer.status_code in REFUSED, shown
            return None
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.json() if is_json and answer.content else {}

    @initialize(target=threads)
    def first(self) -> Any:
        made = [self.thread(tenant) for tenant in TENANTS]
        for tenant, thread in made:
            assert self.ask(tenant, "POST", "/threads", {"thread_id": thread}) is None, "a conflict"
        return multiple(*made)

    def thread(self, tenant: str) -> tuple[str, str]:
        made = self.ask(tenant, "POST", "/threads", {"metadata": {"of": tenant}})
        return tenant, made["thread_id"]

    # -- threads -------------------------------------------------------------------------

    @rule(target=threads, tenant=tenants)
    def create_thread(self, tenant: str) -> tuple[str, str]:
        return self.thread(tenant)

    @rule(tenant=tenants, one=threads, how=st.sampled_from(("GET", "PATCH", "DELETE")))
    def thread_itself(self, tenant: str, one: tuple[str, str], how: str) -> None:
        body = {"metadata": {"of": tenant}} if how == "PATCH" else None
        self.ask(tenant, how, f"/threads/{one[1]}", body, one[0])

    @rule(tenant=tenants, one=threads, what=st.sampled_from(("state", "history", "runs")))
    def look_into(self, tenant: str, one: tuple[str, str], what: str) -> None:
        self.ask(tenant, "GET", f"/threads/{one[1]}/{what}", None, one[0])

    @rule(tenant=tenants, one=threads)
    def set_state(self, tenant: str, one: tuple[str, str]) -> None:
        body = {"values": {"steps": [tenant]}, "as_node": "first"}
        self.ask(tenant, "POST", f"/threads/{one[1]}/state", body, one[0])

    @rule(target=threads, tenant=tenants, one=threads)
    def copy_thread(self, tenant: str, one: tuple[str, str]) -> Any:
        made = self.ask(tenant, "POST", f"/threads/{one[1]}/copy", None, one[0])
        return multiple() if made is None else (tenant, made["thread_id"])

    # -- runs ----------------------------------------------------------------------------

    @rule(
        target=runs,
        tenant=tenants,
        one=threads,
        graph=st.sampled_from(GRAPHS),
        how=st.sampled_from(STRATEGIES),
    )
    def start(self, tenant: str, one: tuple[str, str], graph: str, how: str) -> Any:
        given = {"steps": [], "gate": str(uuid4())} if graph == "gate" else {"steps": []}
        body = {"assistant_id": graph, "input": given, "multitask_strategy": how}
        made = self.ask(tenant, "POST", f"/threads/{one[1]}/runs", body, one[0])
        return multiple() if made is None else (tenant, one[1], made["run_id"])

    @rule(tenant=tenants, one=threads, graph=st.sampled_from(("steps", "ask")))
    def run_and_wait(self, tenant: str, one: tuple[str, str], graph: str) -> None:
        body = {"assistant_id": graph, "input": {"steps": []}, "multitask_strategy": "rollback"}
        self.ask(tenant, "POST", f"/threads/{one[1]}/runs/wait", body, one[0])

    @rule(tenant=tenants, one=threads)
    def answer(self, tenant: str, one: tuple[str, str]) -> None:
        body = {
            "assistant_id": "ask",
            "command": {"resume": tenant},
            "multitask_strategy": "reject",
        }
        self.ask(tenant, "POST", f"/threads/{one[1]}/runs/wait", body, one[0])

    @rule(tenant=tenants, one=runs, how=st.sampled_from(("interrupt", "rollback")))
    def cancel(self, tenant: str, one: tuple[str, str, str], how: str) -> None:
        path = f"/threads/{one[1]}/runs/{one[2]}/cancel?wait=1&action={how}"
        self.ask(tenant, "POST", path, None, one[0])

    @rule(tenant=tenants, one=runs, how=st.sampled_from(("GET", "DELETE")))
    def run_itself(self, tenant: str, one: tuple[str, str, str], how: str) -> None:
        self.ask(tenant, how, f"/threads/{one[1]}/runs/{one[2]}", None, one[0])

    @rule(tenant=tenants, one=runs, what=st.sampled_from(("join", "stream")))
    def cancelled_and_joined(self, tenant: str, one: tuple[str, str, str], what: str) -> None:
        """A join of one that waits at its gate would last."""
        path = f"/threads/{one[1]}/runs/{one[2]}"
        self.ask(one[0], "POST", f"{path}/cancel?wait=1", None, one[0])
        self.ask(tenant, "GET", f"{path}/{what}", None, one[0])

    @rule(tenant=tenants, one=runs)
    def cancel_by_body(self, tenant: str, one: tuple[str, str, str]) -> None:
        body = {"thread_id": one[1], "run_ids": [one[2]]}
        self.ask(tenant, "POST", "/runs/cancel", body, one[0])

    # -- assistants and the store --------------------------------------------------------

    @rule(target=assistants, tenant=tenants, graph=st.sampled_from(GRAPHS))
    def create_assistant(self, tenant: str, graph: str) -> tuple[str, str]:
        made = self.ask(tenant, "POST", "/assistants", {"graph_id": graph, "name": tenant})
        return tenant, made["assistant_id"]

    @rule(tenant=tenants, one=assistants, how=st.sampled_from(("GET", "PATCH", "DELETE")))
    def assistant_itself(self, tenant: str, one: tuple[str, str], how: str) -> None:
        body = {"name": "another"} if how == "PATCH" else None
        self.ask(tenant, how, f"/assistants/{one[1]}", body, one[0])

    @rule(tenant=tenants, one=assistants, thread=threads)
    def run_by_assistant(self, tenant: str, one: tuple[str, str], thread: tuple[str, str]) -> None:
        body = {"assistant_id": one[1], "multitask_strategy": "reject"}
        both = {one[0], thread[0]} - {tenant}
        self.ask(tenant, "POST", f"/threads/{thread[1]}/runs", body, both.pop() if both else tenant)

    @rule(target=items, tenant=tenants)
    def put(self, tenant: str) -> tuple[str, str]:
        key = str(uuid4())
        self.ask(tenant, "PUT", "/store/items", {"namespace": ["n"], "key": key, "value": {}})
        return tenant, key

    @rule(tenant=tenants, one=items, how=st.sampled_from(("GET", "DELETE")))
    def item_itself(self, tenant: str, one: tuple[str, str], how: str) -> None:
        if how == "GET":
            self.ask(tenant, "GET", f"/store/items?namespace=n&key={one[1]}", None, one[0])
        else:  # which says nothing of whether there was one
            self.ask(tenant, "DELETE", "/store/items", {"namespace": ["n"], "key": one[1]})

    # -- programs, sessions, questions ---------------------------------------------------

    @rule(target=started, tenant=tenants, name=st.sampled_from(("asks", "says")))
    def start_program(self, tenant: str, name: str) -> tuple[str, str]:
        made = self.ask(tenant, "POST", f"/v1/programs/{name}/runs", {"wait": name == "says"})
        return tenant, f"/v1/programs/{name}/runs/{made['id']}"

    @rule(tenant=tenants, one=started, how=st.sampled_from(("", "/cancel")))
    def program_itself(self, tenant: str, one: tuple[str, str], how: str) -> None:
        self.ask(tenant, "POST" if how else "GET", f"{one[1]}{how}", None, one[0])

    @rule(target=questions, tenant=tenants)
    def open_questions(self, tenant: str) -> Any:
        found = self.ask(tenant, "GET", "/v1/questions")["data"]
        return multiple(*((tenant, one["id"]) for one in found[:3]))

    @rule(tenant=tenants, one=questions)
    def answer_question(self, tenant: str, one: tuple[str, str]) -> None:
        self.ask(tenant, "POST", f"/v1/questions/{one[1]}", {"answer": "yes"}, one[0])

    @rule(target=sessions, tenant=tenants)
    def create_session(self, tenant: str) -> tuple[str, str]:
        return tenant, self.ask(tenant, "POST", "/v1/client-runs", {})["id"]

    @rule(tenant=tenants, one=sessions, how=st.sampled_from(("GET", "DELETE")))
    def session_itself(self, tenant: str, one: tuple[str, str], how: str) -> None:
        self.ask(tenant, how, f"/v1/client-runs/{one[1]}", None, one[0])

    # -- what is everybody's -------------------------------------------------------------

    @rule(tenant=tenants)
    def search(self, tenant: str) -> None:
        """Lists and searches have what is one's own."""
        other = next(one for one in TENANTS if one != tenant)
        for one in self.ask(tenant, "POST", "/threads/search", {"limit": 100}):
            assert one["metadata"]["of"] == tenant
        found = self.ask(tenant, "POST", "/threads/count", {"metadata": {"of": other}})
        assert found == 0
        names = {one["name"] for one in self.ask(tenant, "POST", "/assistants/search", {})}
        assert other not in names
        seen = self.ask(tenant, "GET", "/v1/runs")["runs"]
        assert {one["tenant"] for one in seen} <= {tenant}

    def teardown(self) -> None:
        """All can be stopped and deleted, and then there is nothing left."""
        for tenant in TENANTS:
            self.ask(tenant, "POST", "/runs/cancel", {"status": "all"})
            for kind, key in (("threads", "thread_id"), ("assistants", "assistant_id")):
                while found := self.own(tenant, kind):
                    for one in found:
                        self.ask(tenant, "DELETE", f"/{kind}/{one[key]}", None, tenant)
            for one in self.ask(tenant, "GET", "/v1/client-runs")["data"]:
                self.ask(tenant, "DELETE", f"/v1/client-runs/{one['id']}", None, tenant)
            for one in self.ask(tenant, "GET", "/v1/questions")["data"]:
                self.ask(tenant, "POST", f"/v1/questions/{one['id']}", {"answer": "no"})
        assert self.served.server is not None
        runtime = self.served.server.runtime
        for _ in itertools.takewhile(lambda _: runtime.runs, range(200)):
            self.ask("ann", "GET", "/health")
        left = self.served.call(lambda: [*map(repr, runtime.runs), *map(repr, runtime.table)])
        assert left == []

    def own(self, tenant: str, kind: str) -> list[Any]:
        """The objects that a tenant has made."""
        found = self.ask(tenant, "POST", f"/{kind}/search", {"limit": 100})
        return [one for one in found if one["metadata"].get("created_by") != "system"]


@contextmanager
def server(folder: Path) -> Iterator[Serving]:
    things = {**all_graphs(), "asks": asks, "says": says}
    with serving(
        things, folder / "agentrt.db", langgraph, PlainKeys(), programs, observability
    ) as it:
        yield it


def test_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(tmp_path) as it:
        Tenants.served = it
        Tenants.clients = {
            one: httpx.Client(
                base_url=it.url, headers={"authorization": f"Bearer {one}"}, timeout=60
            )
            for one in TENANTS
        }
        try:
            run_state_machine_as_test(
                Tenants,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=REQUESTS,
                    derandomize=True,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                    phases=[Phase.generate],  # shrunk, a failure would take minutes
                ),
            )
        finally:
            for client in Tenants.clients.values():
                client.close()
    assert {200, 201, 404, 409} <= Tenants.told
