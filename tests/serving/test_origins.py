"""Which pages and which names of hosts a server takes, with keys and without; in Chromium, too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page

from agentrt import Runtime
from agentrt.errors import AgentrtError
from agentrt.serving.app import opened_app
from agentrt.serving.listen import Listener
from agentrt.serving.observability import api as observability
from agentrt.serving.origins import OriginCheck, Origins, read_cors, read_hosts, read_origins
from agentrt.serving.programs.api import api as programs
from agentrt.serving.server import KeyCheck, Server
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.observability.browser import opened_browser
from tests.serving.tenants.plain_keys import PlainKeys

EVIL = "http://evil.example"
CROSS = {"sec-fetch-site": "cross-site"}
Told = dict[str, str]


def passes(given: Told, *, has_keys: bool = False, is_socket: bool = False, **asked: Any) -> bool:
    """Return whether a request or a WebSocket with these headers is accepted."""
    headers = {"host": "127.0.0.1:8000", **given}
    raw = {key.encode(): value.encode() for key, value in headers.items()}
    check = OriginCheck(Origins(**asked), has_keys=has_keys)
    return check.refusal(raw, is_socket=is_socket) is None


@pytest.mark.parametrize(
    ("host", "asked", "expected"),
    [
        ("localhost:8000", {}, True),
        ("LOCALHOST", {}, True),
        ("agents.localhost:1", {}, True),
        ("127.0.0.2:8000", {}, True),
        ("[::1]:8000", {}, True),
        ("", {}, True),
        ("evil.example", {}, False),
        ("evil.example:8000", {}, False),
        ("localhost.evil.example", {}, False),
        ("127.0.0.1.evil.example", {}, False),
        ("evil.example#localhost", {}, False),
        ("evil.example:8000:8000", {}, False),
        ("[::1", {}, True),
        ("192.168.0.7:8000", {}, False),
        ("192.168.0.7:8000", {"listens": "0.0.0.0"}, True),
        ("[fe80::1]:8000", {"listens": "::"}, True),
        ("evil.example", {"listens": "0.0.0.0"}, False),
        ("agents.lan:80", {"listens": "agents.lan"}, True),
        ("agents.lan:80", {"hosts": ["agents.lan"]}, True),
        ("Agents.LAN.", {"hosts": ["agents.lan"]}, True),
        ("a.agents.lan", {"hosts": ["*.agents.lan"]}, True),
        ("agents.lan", {"hosts": ["*.agents.lan"]}, False),
        ("evilagents.lan", {"hosts": ["*.agents.lan"]}, False),
        ("evil.example", {"hosts": ["*"]}, True),
        ("evil.example", {"has_keys": True}, True),
        ("evil.example", {"has_keys": True, "hosts": ["agents.lan"]}, False),
    ],
)
def test_hosts(host: str, asked: dict[str, Any], expected: bool) -> None:
    assert passes({"host": host}, **asked) is expected


@pytest.mark.parametrize(
    ("headers", "asked", "expected"),
    [
        ({}, {}, True),
        ({"sec-fetch-site": "none"}, {}, True),
        ({"sec-fetch-site": "same-origin"}, {}, True),
        (CROSS, {}, False),
        (CROSS, {"origins": ["*"]}, True),
        (CROSS, {"has_keys": True}, True),
        ({"origin": "http://127.0.0.1:8000"}, {}, True),
        ({"origin": "http://localhost:3000", **CROSS}, {}, True),
        ({"origin": "https://[::1]:3000", **CROSS}, {}, True),
        ({"origin": EVIL, **CROSS}, {}, False),
        ({"origin": EVIL}, {}, False),
        ({"origin": EVIL}, {"has_keys": True}, True),
        ({"origin": EVIL, **CROSS}, {"origins": [EVIL]}, True),
        ({"origin": f"{EVIL}:8000"}, {"origins": [EVIL]}, False),
        ({"origin": EVIL}, {"origins": ["*"]}, True),
        ({"origin": EVIL}, {"cors": {"allow_origins": [EVIL]}}, True),
        ({"origin": EVIL}, {"cors": {"allow_origin_regex": "http://e.*"}}, True),
        ({"origin": "http://localhost"}, {"cors": {"allow_origin_regex": "http://e.*"}}, True),
        ({"origin": "http://localhost.evil.example"}, {}, False),
        ({"origin": "http://127.0.0.1.evil.example"}, {}, False),
        ({"origin": "null"}, {}, False),
        ({"origin": "null"}, {"origins": ["null"]}, True),
        ({"origin": "http://"}, {}, False),
        ({"origin": "http://[x"}, {}, False),
        ({"origin": "HTTP://AGENTS.LOCALHOST:80", "host": "agents.localhost"}, {}, True),
        ({"origin": "http://", "host": ""}, {}, False),
        ({"origin": "https://a.lan", "host": "a.lan"}, {"hosts": ["a.lan"]}, True),
        ({"origin": "http://a.lan:80", "host": "a.lan"}, {"hosts": ["a.lan"]}, True),
        ({"origin": "http://a.lan:81", "host": "a.lan"}, {"hosts": ["a.lan"]}, False),
    ],
)
def test_pages(headers: Told, asked: dict[str, Any], expected: bool) -> None:
    assert passes(headers, **asked) is expected


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize(
    ("headers", "asked", "expected"),
    [
        ({}, {}, True),
        ({"origin": "http://127.0.0.1:8000"}, {}, True),
        ({"origin": EVIL}, {}, False),
        ({"origin": EVIL}, {"origins": [EVIL]}, True),
        ({"origin": EVIL}, {"cors": {"allow_origin_regex": "http://e.*"}}, True),
        ({"origin": EVIL}, {"origins": ["*"]}, True),
        ({"origin": f"{EVIL}:8000"}, {"origins": [EVIL]}, False),
        ({"origin": "null"}, {}, False),
        (CROSS, {}, False),
    ],
)
def test_pages_that_open_websockets(
    headers: Told, asked: dict[str, Any], expected: bool, has_keys: bool
) -> None:
    assert passes(headers, has_keys=has_keys, is_socket=True, **asked) is expected


@pytest.mark.parametrize("given", ["evil.example", "http://", "http://a/b", "http://a b", "/", ""])
def test_an_invalid_origin_is_refused(given: str) -> None:
    with pytest.raises(
        AgentrtError, match=r"--cors-origin .*: invalid origin; use a scheme, a host"
    ):
        read_origins([given])
    assert read_origins(["*", "null", "https://a.example:1"])


@pytest.mark.parametrize("given", ["http://a", "a:80", "a/b", "", "a b", "*a"])
def test_an_invalid_host_is_refused(given: str) -> None:
    with pytest.raises(
        AgentrtError, match=r"--allowed-hosts .*: invalid host name; use a name without scheme"
    ):
        read_hosts([given])
    assert read_hosts(["*", "*.a.lan", "[fe80::1]"]) == ("*", "*.a.lan", "fe80::1")


@pytest.mark.parametrize(
    ("http", "says"),
    [
        ({"cors": 5}, r"http\.cors: Input should be a valid dict"),
        ({"cors": False}, r"http\.cors: Input should be a valid dict"),
        ({"cors": {"origins": []}}, r"http\.cors\.origins: Extra inputs"),
        ({"cors": {"allow_origins": "*"}}, r"allow_origins: Input should be a valid list"),
        ({"cors": {"allow_credentials": 1}}, "allow_credentials: Input should be a valid boolean"),
        ({"cors": {"allow_origin_regex": "("}}, "allow_origin_regex: .*missing"),
    ],
)
def test_invalid_values_of_http_cors(http: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "langgraph.json"
    path.write_text(json.dumps({"http": http}))
    with pytest.raises(AgentrtError, match=says):
        read_cors([path])


def test_http_cors_is_of_one_project(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    sections: list[Any] = [{"cors": {"max_age": 5}}, {}, {"cors": {"max_age": 6}}]
    for path, http in zip(paths, sections, strict=True):
        path.write_text(json.dumps({"http": http}))
    assert read_cors(paths[:2]) == {"max_age": 5}
    assert read_cors(paths[1:2]) == {}
    with pytest.raises(AgentrtError, match=r"several projects have http\.cors"):
        read_cors(paths)


# -- a server --------------------------------------------------------------------------------


@asynccontextmanager
async def serving(
    keys: KeyCheck | None = None, **asked: Any
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("scripted",), keys=keys, origins=Origins(**asked))
        listener = Listener("127.0.0.1", 0)
        async with (
            opened_app(server, [programs, observability]) as app,
            listener.serving(app, server.bounds),
            httpx.AsyncClient(base_url=listener.url, timeout=60) as client,
        ):
            yield server, client


async def test_the_answer_to_a_foreign_page() -> None:
    """Public paths stay open; an error says what to do, in its API's form."""
    async with serving() as (server, client):
        rebound = {"host": "evil.example"}
        for path in ("/health", "/ready", "/dashboard"):
            assert (await client.get(path, headers=rebound | CROSS)).status_code == 200
        for headers in (rebound, {"origin": EVIL}, {"origin": "http://[x"}, CROSS):
            assert (await client.get("/v1/runs", headers=headers)).status_code == 403
        refused = await client.post("/v1/client-runs", headers={"origin": EVIL})
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "foreign_origin"
        assert "--cors-origin ORIGIN" in refused.json()["error"]["message"]
        assert "x-request-id" in refused.headers
        assert "access-control-allow-origin" not in refused.headers
        assert len(server.programs) == 0
        here = {"origin": "http://localhost:3000"}
        made = await client.post("/v1/client-runs", headers=here)
        assert made.status_code == 201
        assert made.headers["access-control-allow-origin"] == here["origin"]
        assert "X-Agentrt-Run" in made.headers["access-control-expose-headers"].split(", ")


async def test_every_answer_says_that_it_depends_on_the_origin() -> None:
    """A cache must not give a page the answer to a request without an origin, or the reverse."""
    async with serving() as (_, client):
        for headers in ({}, {"origin": "http://localhost:3000"}, {"origin": EVIL}):
            for path in ("/health", "/v1/runs"):
                answer = await client.get(path, headers=headers)
                assert answer.headers.get_list("vary", split_commas=True) == ["Origin"]


async def test_errors_too_can_be_read_by_pages_that_may() -> None:
    async with serving(PlainKeys(), origins=[EVIL]) as (_, client):
        refused = await client.get("/v1/runs", headers={"origin": EVIL})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == EVIL


# -- a browser -------------------------------------------------------------------------------

ASK = """async ([url, init]) => {
    try {
        const answer = await fetch(url, init);
        return [answer.status, answer.headers.get("x-request-id") !== null];
    } catch (error) { return "blocked"; }
}"""


async def ask(page: Page, url: Any, **init: Any) -> Any:
    return await page.evaluate(ASK, [str(url), init])


async def test_pages_in_a_browser() -> None:
    """A page of a stranger, a page of this machine, and a name that a stranger bound anew."""
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    async with opened_browser(rules, "--disable-features=LocalNetworkAccessChecks") as browser:
        page = await browser.new_page()
        blank = {"content_type": "text/html", "body": "<title>a page</title>"}
        await page.route("**/a-page", lambda route: route.fulfill(**blank))
        key = {"authorization": "Bearer acme"}
        await page.goto(f"{EVIL}/a-page")
        async with serving() as (server, client):
            sessions = client.base_url.join("/v1/client-runs")
            assert await ask(page, sessions, method="POST") == "blocked"
            assert await ask(page, sessions, method="POST", mode="no-cors") == [0, False]
            assert await ask(page, client.base_url.join("/v1/runs")) == "blocked"
            assert await ask(page, sessions, method="DELETE") == "blocked"
            assert len(server.programs) == 0
        async with serving(origins=[EVIL]) as (server, client):
            sessions = client.base_url.join("/v1/client-runs")
            assert await ask(page, sessions, method="POST") == [201, True]
            assert await ask(page, f"{sessions}/none", method="DELETE") == [404, True]
            assert len(server.programs) == 1
        async with serving(PlainKeys()) as (_, client):
            assert await ask(page, client.base_url.join("/v1/runs"), headers=key) == "blocked"
        async with serving(PlainKeys(), origins=["*"]) as (_, client):
            listed = client.base_url.join("/v1/runs")
            assert await ask(page, listed, headers=key) == [200, True]
            assert await ask(page, listed) == [401, True]
        async with serving() as (server, client):
            # The server's own page, under a name of the stranger's.
            rebound = f"{EVIL}:{client.base_url.port}"
            await page.goto(f"{rebound}/dashboard")
            assert await ask(page, f"{rebound}/v1/client-runs", method="POST") == [403, True]
            assert await ask(page, f"{rebound}/programs") == [403, True]
            await page.goto("http://localhost:1/a-page")
            assert await ask(page, client.base_url.join("/v1/runs")) == [200, True]
            assert len(server.programs) == 0
