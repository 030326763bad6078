"""The routes, over HTTP: lists, graphs, health, metrics, tenants, the page's files."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from agentrt import Context, Runtime, program
from agentrt.cli.execute import dashboard
from agentrt.errors import ConfigError, EngineDiedError
from agentrt.executors.replicas import ReplicaState
from agentrt.serving.background import STUBBORN, Background
from agentrt.serving.observability import api, routes
from agentrt.serving.observability.engines import SnapshotPoller
from agentrt.serving.server import Server
from agentrt.serving.tenants import KeyRing, new_key
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.watchdog import opened_app

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "serving" / "observability" / "page"
gate = asyncio.Event()


@pytest.fixture(autouse=True)
def closed_gate() -> None:
    global gate
    gate = asyncio.Event()


async def until_open() -> None:
    await gate.wait()


@program
async def agent(ctx: Context) -> str:
    first = await ctx.llm("one")
    await asyncio.gather(ctx.llm(first.text), ctx.llm(first.text))
    await ctx.tool(until_open)
    return "done"


@program
async def other(ctx: Context) -> None:
    await ctx.tool(until_open)


class Served:
    """An app with this API alone, a client for it, and its server."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.server = server
        self.runtime = server.runtime
        transport = httpx.ASGITransport(app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def get(self, path: str, key: str = "", **params: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self.client.get(path, params=params or None, headers=headers)

    async def json(self, path: str, key: str = "", **params: Any) -> Any:
        answer = await self.get(path, key, **params)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def served(
    executor: ScriptedExecutor | None = None, keys: KeyRing | None = None
) -> AsyncIterator[Served]:
    async with Runtime(executor or ScriptedExecutor()) as runtime:
        server = Server(runtime, ("scripted",), keys=keys)
        async with opened_app(server, [api]) as app:
            yield Served(app, server)


def made_keys(folder: Path, *tenants: str, operator: str) -> tuple[KeyRing, list[str]]:
    """A key for each tenant, of whom one runs the server."""
    path = folder / "keys.json"
    made = [new_key(path, tenant) for tenant in tenants]
    document = json.loads(path.read_text(encoding="utf-8"))
    document["tenants"][operator]["operator"] = True
    path.write_text(json.dumps(document), encoding="utf-8")
    return KeyRing(path), made


async def in_tools(runtime: Runtime, programs: int) -> None:
    """Until all programs have come to their tool."""
    async with asyncio.timeout(60):
        while sum(run.row.tools for run in runtime.runs.values()) < programs:
            await asyncio.sleep(0)


async def test_programs_are_listed_by_state_type_and_page() -> None:
    async with served() as at:
        runs = [at.runtime.start(agent, session=name) for name in "abc"] + [at.runtime.start(other)]
        await in_tools(at.runtime, 4)
        page = await at.json("/v1/runs")
        assert [one["id"] for one in page["runs"]] == [run.id for run in runs]
        assert {one["state"] for one in page["runs"]} == {"in tool"}
        assert {one["wait"] for one in page["runs"]} == {"until_open"}
        first, report = page["runs"][0], runs[0].report(0)
        assert first["calls"] == report.calls == 3
        assert first["critical_path_s"] == report.critical_path_s
        assert first["output_tokens"] == report.output_tokens
        page = await at.json("/v1/runs", type="agent", limit=2, offset=1)
        assert [one["id"] for one in page["runs"]] == [run.id for run in runs[1:3]]
        assert (page["live"], page["ended"]) == (3, 0)
        assert (await at.json("/v1/runs", state="running"))["live"] == 0
        (found,) = (await at.json("/v1/runs", session=runs[1].row.session))["runs"]
        assert found["id"] == runs[1].id
        gate.set()
        await asyncio.gather(*(run.wait() for run in runs))
        page = await at.json("/v1/runs", state="done", type="agent")
        assert [one["id"] for one in page["recent"]] == [run.id for run in reversed(runs[:3])]
        assert (page["live"], page["ended"]) == (0, 3)


class SilentError(Exception):
    """An error whose own code fails when it has to give its text."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@program
async def fails(ctx: Context) -> None:
    raise SilentError


async def test_an_error_that_has_no_text_breaks_no_list() -> None:
    """The lists and the graph of the run were a 500, for all readers who may see the run."""
    async with served() as at:
        run = at.runtime.start(fails)
        with pytest.raises(SilentError):
            await run.wait()
        text = "SilentError: the error has no text (ZeroDivisionError)"
        [row] = (await at.json("/v1/runs"))["recent"]
        assert (row["id"], row["error"]) == (run.id, text)
        assert (await at.json(f"/v1/runs/{run.id}"))["run"]["error"] == text


async def test_the_former_path_of_runs_works_with_a_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as at:
        run = at.runtime.start(agent)
        await in_tools(at.runtime, 1)
        for path in ("", f"/{run.id}"):
            former, now = await at.get(f"/programs{path}"), await at.get(f"/v1/runs{path}")
            assert former.headers["deprecation"].startswith("@")
            assert former.headers["link"] == '</v1/runs>; rel="successor-version"'
            assert "deprecation" not in now.headers
            rows = (
                former.json()["program" if path else "programs"],
                now.json()["run" if path else "runs"],
            )
            assert [row["id"] if path else row[0]["id"] for row in rows] == [run.id] * 2
    text = "/programs is now /v1/runs; the old path works until version 0.4"
    assert [record.getMessage() for record in caplog.records].count(text) == 1


async def test_a_programs_graph_has_nodes_edges_and_times() -> None:
    async with served() as at:
        run = at.runtime.start(agent)
        await in_tools(at.runtime, 1)
        graph = await at.json(f"/v1/runs/{run.id}")
        assert [node["kind"] for node in graph["nodes"]] == ["call", "call", "call", "tool"]
        assert [node["state"] for node in graph["nodes"]] == ["done"] * 3 + ["running"]
        assert graph["edges"] == [[0, 1], [0, 2], [1, 3], [2, 3]]
        assert graph["critical_path"] == list(run.dag.critical_path().nodes)
        for node in graph["nodes"][:3]:
            assert node["created_at"] < node["ended_at"] <= graph["at"]
            assert len(node["spans"]) == 1
        missing = await at.get("/v1/runs/nobody-7")
        assert missing.status_code == 404
        assert "nobody-7" in missing.json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    ["/v1/runs?limit=0", "/v1/runs?limit=5000", "/v1/runs?offset=x", "/v1/runs?state=runing"],
)
async def test_bad_pages_are_refused(path: str) -> None:
    async with served() as at:
        refused = await at.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")


async def test_a_tenant_sees_its_own_alone(tmp_path: Path) -> None:
    keys, (ann, bob, root) = made_keys(tmp_path, "ann", "bob", "root", operator="root")
    async with served(keys=keys) as at:
        anns = at.runtime.start(agent, tenant="ann")
        bobs = at.runtime.start(other, tenant="bob")
        await in_tools(at.runtime, 2)
        assert [one["id"] for one in (await at.json("/v1/runs", ann))["runs"]] == [anns.id]
        assert [one["id"] for one in (await at.json("/v1/runs", bob))["runs"]] == [bobs.id]
        assert len((await at.json("/v1/runs", root))["runs"]) == 2
        assert (await at.get("/v1/runs")).status_code == 401
        for path in (f"/v1/runs/{bobs.id}", f"/events?program={bobs.id}"):
            assert (await at.get(path, ann)).status_code == 404
        gate.set()
        await asyncio.gather(anns.wait(), bobs.wait())
        assert [one["id"] for one in (await at.json("/v1/runs", ann))["recent"]] == [anns.id]
        assert (await at.get(f"/v1/runs/{bobs.id}", ann)).status_code == 404
        metrics = (await at.get("/metrics", ann)).text
        assert 'tenant="ann"' in metrics
        assert "bob" not in metrics
        assert 'tenant="bob"' in (await at.get("/metrics", root)).text


async def test_without_keys_everybody_sees_all() -> None:
    async with served() as at:
        runs = [at.runtime.start(agent, tenant=tenant) for tenant in ("ann", "bob")]
        await in_tools(at.runtime, 2)
        assert len((await at.json("/v1/runs"))["runs"]) == 2
        gate.set()
        await asyncio.gather(*(run.wait() for run in runs))


async def test_metrics_parse_and_say_what_happened() -> None:
    async with served() as at:
        run = at.runtime.start(agent)
        await in_tools(at.runtime, 1)
        answer = await at.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        mine = (("tenant", "default"), ("type", "agent"))
        assert samples["agentrt_programs", (("state", "in tool"), *mine)] == 1
        assert samples["agentrt_calls_total", mine] == 3
        assert samples["agentrt_output_tokens_total", mine] == run.row.usage.output_tokens
        ready = (("replica", "engine"), ("state", "ready"))
        assert samples["agentrt_replica_state", ready] == 1
        gate.set()
        await run.wait()


class Several(ScriptedExecutor):
    """As many engines as there are states, one in each state."""

    async def snapshot(self) -> Mapping[str, Any]:
        replicas = [{"name": f"r-{state}", "state": state} for state in ReplicaState]
        return {"running": [], "waiting": [], "replicas": replicas}


async def test_each_replica_is_in_one_state() -> None:
    async with served(Several()) as at:
        text = (await at.get("/metrics")).text
    states = [
        (sample.labels["replica"], sample.labels["state"])
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "agentrt_replica_state" and sample.value == 1
    ]
    assert sorted(states) == sorted((f"r-{state}", state) for state in ReplicaState)


class Mortal(ScriptedExecutor):
    """An engine that may be gone."""

    up = True

    def alive(self) -> bool:
        return self.up

    async def snapshot(self) -> Mapping[str, Any]:
        if not self.up:
            raise EngineDiedError("gone")
        return await super().snapshot()


async def test_ready_is_not_health() -> None:
    engine = Mortal()
    async with served(engine) as at:
        assert await at.json("/ready") == {"ready": True, "why": None}
        engine.up = False
        answer = await at.get("/ready")
        assert (answer.status_code, answer.json()["why"]) == (503, "no engine is up")
        answer = await at.get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": "no engine is up"})
        assert (await at.get("/v1/runs")).status_code == 200
        assert (await at.get("/metrics")).status_code == 200
        engine.up = True
        at.server.draining = True
        answer = await at.get("/ready")
        assert (answer.status_code, answer.json()["why"]) == (503, "draining")
        assert await at.json("/health") == {"status": "ok"}


async def test_monitors_may_ask_with_head() -> None:
    engine = Mortal()
    async with served(engine) as at:
        for path in ("/health", "/ready", "/dashboard"):
            assert (await at.client.head(path)).status_code == 200
        engine.up = False
        assert (await at.client.head("/health")).status_code == 503


async def test_ready_says_what_an_engine_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may serve meanwhile."""
    engine = Mortal()
    waits = "replica-1: waiting for a node with room: free is 1 core"
    monkeypatch.setattr(engine, "waits_for", lambda: [waits])
    async with served(engine) as at:
        assert await at.json("/ready") == {"ready": True, "why": None, "waiting": [waits]}
        engine.up = False
        answer = await at.get("/ready")
        assert (answer.status_code, answer.json()["why"]) == (503, f"no engine is up: {waits}")


async def test_ready_reports_failed_background_work() -> None:
    """1. It failed: that is told. 2. It failed again and again: the server is not ready."""
    async with served() as at:
        gates = [asyncio.Event() for _ in range(STUBBORN)]
        failed = iter(gates)

        async def work() -> None:
            await next(failed).wait()
            raise OSError("no space left")

        at.server.background = Background(rest_s=0.0)
        async with at.server.background.doing("sweep", work):
            for gate_ in gates[:-1]:
                gate_.set()
            async with asyncio.timeout(60):
                while at.server.background.failing() == {}:
                    await asyncio.sleep(0)
                answer = await at.json("/ready")
                assert answer["ready"]
                assert answer["failing"] == {"sweep": "OSError: no space left"}
                gates[-1].set()
                while not at.server.background.stubborn():
                    await asyncio.sleep(0)
                refused = await at.get("/ready")
        assert refused.status_code == 503
        assert refused.json()["why"] == "background tasks fail repeatedly: sweep"


class Stuck(ScriptedExecutor):
    """An engine that answers no question after the first."""

    asked = 0

    async def snapshot(self) -> Mapping[str, Any]:
        self.asked += 1
        if self.asked > 1:
            await asyncio.Event().wait()
        return await super().snapshot()


async def test_readers_do_not_wait_for_a_hanging_engine() -> None:
    engine, ticks = Stuck(), iter(range(100))
    poller = SnapshotPoller(engine, lambda: float(next(ticks)), timeout_s=0.01)
    first = await poller.fresh(0.5)
    assert (first.up, engine.asked) == (True, 1)
    assert await poller.fresh(0.5) is first
    assert engine.asked == 2
    assert await poller.fresh(0.5) is first  # it is left alone for a while
    assert engine.asked == 2


# -- the stream --------------------------------------------------------------------------


async def messages(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            yield name, json.loads(line.removeprefix("data:"))


async def test_events_come_over_http_as_they_happen() -> None:
    async with Runtime(ScriptedExecutor()) as runtime, dashboard(runtime) as page:
        url = page.replace("/dashboard", "/events")
        first = runtime.start(other)
        await in_tools(runtime, 1)
        async with httpx.AsyncClient(timeout=60) as client, client.stream("GET", url) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            stream = messages(answer)
            name, body = await anext(stream)
            assert (name, [one["id"] for one in body["programs"]]) == ("snapshot", [first.id])
            second = runtime.start(agent)
            gate.set()
            states: dict[str, str] = {}
            async for name, body in stream:
                assert name == "change"
                states.update({one["id"]: one["state"] for one in body["programs"]})
                if states.get(second.id) == states.get(first.id) == "done":
                    break


async def test_a_line_separator_in_a_session_splits_no_event() -> None:
    async with Runtime(ScriptedExecutor()) as runtime, dashboard(runtime) as page:
        url = page.replace("/dashboard", "/events")
        runtime.start(other, session="a\u2028b")
        await in_tools(runtime, 1)
        async with httpx.AsyncClient(timeout=60) as client, client.stream("GET", url) as answer:
            _, body = await anext(messages(answer))
        assert [row["session"] for row in body["programs"]] == ["a\u2028b"]


async def test_a_draining_server_ends_its_streams() -> None:
    async with served() as at:
        at.server.draining = True
        answer = await asyncio.wait_for(at.get("/events"), 60)
        assert answer.text.startswith("event: snapshot")


class Slow(ScriptedExecutor):
    """An engine that answers its first question when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def snapshot(self) -> Mapping[str, Any]:
        await self.go.wait()
        return await super().snapshot()


async def test_readers_are_bounded_and_counted_before_they_have_their_snapshots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "MOST_READERS", 16)
    engine = Slow()
    async with served(engine) as at:
        at.server.draining = True  # so that a stream ends after its snapshot
        asked = [asyncio.create_task(at.get("/events")) for _ in range(24)]
        for _ in range(1000):
            await asyncio.sleep(0)
        more = await at.get("/events")
        assert (more.status_code, bool(more.headers["retry-after"])) == (503, True)
        engine.go.set()
        statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
        assert (statuses.count(200), statuses.count(503)) == (16, 8)
        assert (await at.get("/events")).status_code == 200


async def test_a_port_in_use_is_reported() -> None:
    async with Runtime(ScriptedExecutor()) as runtime, dashboard(runtime) as page:
        port = int(re.findall(r":(\d+)/", page)[0])
        with pytest.raises(ConfigError, match=rf"--dashboard {port}: .*another port"):
            async with dashboard(runtime, port):
                pass


# -- the page ----------------------------------------------------------------------------


async def test_the_page_and_its_parts_are_served_and_nothing_else() -> None:
    async with served() as at:
        page = await at.get("/dashboard")
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
        parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(parts) >= 4
        for part in parts:
            assert (await at.get(f"/{part}")).status_code == 200, part
        for name in ("routes.py", "..%2Froutes.py", "%2e%2e/routes.py", "nothing.js"):
            assert (await at.get(f"/dashboard/{name}")).status_code == 404, name


def test_the_page_names_no_other_host() -> None:
    chat = PAGE.parents[1] / "chat" / "page"
    for file in (*PAGE.iterdir(), *chat.iterdir()):
        text = file.read_text(encoding="utf-8")
        hosts = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
        assert (file.name, hosts) == (file.name, set())


def test_a_wheel_has_the_page() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    data = settings["tool"]["setuptools"]["package-data"]
    assert data["agentrt.serving.observability"] == ["page/*"]
