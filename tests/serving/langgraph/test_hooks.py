"""The arguments of authorization hooks, and the effect of their results, on each route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from langgraph_sdk import Auth

from agentrt.serving.langgraph import api_with
from agentrt.serving.observability import api as observability_api
from tests.serving.langgraph.graphs import all_graphs
from tests.serving.langgraph.hook_routes import CRON, OWN, ROUTES, RUN
from tests.serving.langgraph.hooked import FILTERS, HOOKS, OR_SHARED, Client, hooked, usual
from tests.serving.langgraph.serve import serving

NAMES = [f"{method} {path}" for method, path, _, _ in ROUTES]


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with hooked(tmp_path_factory.mktemp("hooks") / "a.db") as client:
        yield client


def things_of(client: Client, **metadata: Any) -> dict[str, str]:
    """A thread, a run in it, an assistant and a cron with these metadata, by their letters."""
    about: dict[str, Any] = {"metadata": metadata}
    thread = client.made("/threads", about, "thread_id")
    later = {**RUN, "after_seconds": 600}
    return {
        "t": thread,
        "r": client.made(f"/threads/{thread}/runs", later, "run_id"),
        "a": client.made("/assistants", {"graph_id": "steps", **about}, "assistant_id"),
        "c": client.made("/runs/crons", {**CRON, **about}, "cron_id"),
    }


def filled(value: Any, things: dict[str, str]) -> Any:
    """An expected value of the table, with ids in the place of their letters."""
    if isinstance(value, str) and value[:1] == "{":
        return UUID(things[value[1]])
    if isinstance(value, list):
        return [filled(one, things) for one in value]
    if isinstance(value, dict):
        return {key: filled(one, things) for key, one in value.items()}
    return value


def ids_in(value: Any, things: dict[str, str]) -> Any:
    """A body with ids in the place of their letters."""
    text = json.dumps(value)
    for letter, key in things.items():
        text = text.replace(f'"{{{letter}}}"', f'"{key}"')
    return json.loads(text)


@pytest.fixture(scope="module")
def own(ann: Client) -> dict[str, str]:
    """Things of ann's that tests do not delete."""
    return things_of(ann, owner="ann")


@pytest.fixture(scope="module")
def hidden(ann: Client) -> dict[str, str]:
    """Things of bob's, which no test may change."""
    return things_of(ann, owner="bob", secret="s3cret")


def things_for(ann: Client, own: dict[str, str], method: str, path: str) -> dict[str, str]:
    """Things for a request, which may delete them; without a run where it needs a thread that
    rests.
    """
    if method == "POST" and path.endswith(("/state", "/cancel", "/copy")):
        things = things_of(ann, owner="ann")
        if not path.endswith("/cancel"):
            ann.ask("DELETE", "/threads/{t}/runs/{r}".format(**things))
        return things
    return things_of(ann, owner="ann") if method == "DELETE" and "{" in path else own


@pytest.mark.parametrize(("method", "path", "body", "expected"), ROUTES, ids=NAMES)
def test_hooks_get_what_langgraphs_own_server_gives_them(
    ann: Client,
    own: dict[str, str],
    method: str,
    path: str,
    body: Any,
    expected: list[tuple[str, dict[str, Any]]],
) -> None:
    things = things_for(ann, own, method, path)
    answer = ann.ask(method, path.format(**things), body)
    assert answer.status_code < 400, answer.text
    for (name, value), (expected_name, expected_value) in zip(HOOKS.got, expected, strict=False):
        wanted = filled(expected_value, things)
        assert (name, {key: value.get(key, "missing") for key in wanted}) == (expected_name, wanted)
    assert len(HOOKS.got) >= len(expected)


def test_a_hook_that_starts_a_run_gets_its_kwargs_and_may_change_them(ann: Client) -> None:
    def change(ctx: Any, value: dict[str, Any]) -> None:
        kwargs = value["kwargs"]
        assert {"input", "command", "stream_mode", "webhook"} <= kwargs.keys()
        assert kwargs["config"]["configurable"]["langgraph_auth_user_id"] == "ann"
        kwargs["config"]["configurable"] |= {"k": 1, "langgraph_auth_user_id": "eve"}
        kwargs["context"]["c"] = 2
        kwargs["input"] = {"steps": ["changed"]}

    answer = ann.ask("POST", "/runs", {**RUN, "after_seconds": 600}, change, "threads.create_run")
    run = answer.json()
    assert run["kwargs"]["config"]["configurable"] == {"k": 1}
    assert run["kwargs"]["context"] == {"c": 2}
    assert run["kwargs"]["input"] == {"steps": ["changed"]}
    assert run["kwargs"]["user"]["langgraph_auth_user_id"] == "ann"
    (got,) = [value for name, value in HOOKS.got if name == "threads.create_run"]
    assert str(got["run_id"]) == run["run_id"]


# -- the usual owner hook ------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body", "expected"), ROUTES, ids=NAMES)
def test_the_usual_owner_hook_works_on_each_route(
    ann: Client, own: dict[str, str], method: str, path: str, body: Any, expected: Any
) -> None:
    things = things_for(ann, own, method, path)
    answer = ann.ask(method, path.format(**things), body, usual)
    assert answer.status_code < 400, answer.text


def test_the_usual_owner_hook_marks_what_is_made_and_changed(ann: Client) -> None:
    thread = ann.ask("POST", "/threads", {}, usual).json()
    copied = ann.ask("POST", f"/threads/{thread['thread_id']}/copy", None, usual).json()
    other = ann.made("/threads", {}, "thread_id")
    patched = ann.ask(
        "PATCH", f"/threads/{other}", {}, lambda ctx, value: usual(ctx, value) and None
    )
    assistant = ann.ask("POST", "/assistants", {"graph_id": "steps"}, usual).json()
    changed = ann.ask("PATCH", f"/assistants/{assistant['assistant_id']}", {"name": "x"}, usual)
    cron = ann.ask("POST", "/runs/crons", CRON, usual).json()
    run = ann.ask("POST", "/runs", {**RUN, "after_seconds": 600}, usual).json()
    for made in (thread, copied, patched.json(), assistant, changed.json(), cron, run):
        assert made["metadata"]["owner"] == "ann"


@pytest.mark.parametrize("metadata", ["text", {"k": object()}, [1]])
def test_metadata_that_cannot_be_stored_are_an_error_of_the_hook(
    ann: Client, metadata: Any
) -> None:
    def set_metadata(ctx: Any, value: dict[str, Any]) -> None:
        value["metadata"] = metadata

    for path, body in (("/threads", {}), ("/assistants", {"graph_id": "steps"}), ("/runs", RUN)):
        answer = ann.ask("POST", path, body, set_metadata)
        assert answer.status_code == 500
        assert "set metadata" in answer.json()["detail"]


# -- what hooks return ---------------------------------------------------------------------


@pytest.mark.parametrize("returned", [0, {"owner": {"$ne": "bob"}}, {"$or": [OWN]}], ids=str)
def test_a_filter_that_is_not_understood_is_an_error_on_each_route(
    ann: Client, own: dict[str, str], returned: Any
) -> None:
    things, wrong = own, []
    for method, path, body, _ in ROUTES:
        answer = ann.ask(method, path.format(**things), body, lambda ctx, value: returned)
        if answer.status_code != 500 or "authorization hook for" not in answer.text:
            wrong.append((method, path, answer.status_code, answer.text[:100]))
    assert wrong == []


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (AssertionError("not yours"), 403, "not yours"),
        (AssertionError(), 403, "ann may not search"),
        (ValueError("odd"), 400, "odd"),
        (Auth.exceptions.HTTPException(418, "tea"), 418, "tea"),
    ],
)
def test_what_a_hook_raises(ann: Client, error: BaseException, status: int, text: str) -> None:
    HOOKS.raises = error
    try:
        for path in ("/threads/search", "/store/items/search"):
            answer = ann.ask("POST", path, {})
            assert answer.status_code == status
            assert text in answer.text
    finally:
        HOOKS.raises = None


@pytest.mark.parametrize(
    ("path", "body", "hook", "deed"),
    [
        ("/runs/wait", RUN, "threads.create_run", "start runs"),
        ("/store/items/search", {}, "store.search", "search the store"),
        ("/store/namespaces", {}, "store.list_namespaces", "list namespaces of the store"),
        ("/threads/search", {}, "threads.search", "search threads"),
    ],
)
def test_a_refusal_says_in_words_what_the_user_may_not_do(
    ann: Client, path: str, body: Any, hook: str, deed: str
) -> None:
    answer = ann.ask("POST", path, body, False, hook)
    assert answer.status_code == 403
    assert f"ann may not {deed}" in answer.text


def command(method: str, **params: Any) -> dict[str, Any]:
    return {"id": 1, "method": method, "params": params}


MORE_ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/threads/{t}?include=ttl", None),
    ("GET", "/threads/{t}/history", None),
    ("GET", "/threads/{t}/state/{r}", None),
    ("POST", "/threads/{t}/state/checkpoint", {"checkpoint": {"checkpoint_ns": ""}}),
    ("GET", "/threads/{t}/stream", None),
    ("GET", "/threads/{t}/runs/{r}/join", None),
    ("GET", "/threads/{t}/runs/{r}/stream", None),
    ("POST", "/threads/{t}/runs", RUN),
    ("POST", "/threads/{t}/runs", {**RUN, "if_not_exists": "create"}),
    ("POST", "/threads/{t}/runs/wait", RUN),
    ("POST", "/threads/{t}/runs/stream", {**RUN, "if_not_exists": "create"}),
    ("POST", "/threads/{t}/commands", command("run.start", **RUN)),
    ("POST", "/threads/{t}/commands", command("state.get")),
    ("POST", "/threads/{t}/commands", command("state.listCheckpoints")),
    ("POST", "/threads/{t}/commands", command("agent.getTree")),
    ("POST", "/threads/{t}/commands", command("input.respond", interrupt_id="i", response=1)),
    ("GET", "/assistants/{a}/graph", None),
    ("GET", "/assistants/{a}/subgraphs", None),
    ("GET", "/a2a/{a}/.well-known/agent-card.json", None),
    ("POST", "/threads/{t}/runs/crons", CRON),
    ("POST", "/runs/crons", {**CRON, "assistant_id": "{a}"}),
    ("POST", "/runs/wait", {**RUN, "assistant_id": "{a}"}),
    ("POST", "/runs/cancel", {"thread_id": "{t}", "run_ids": ["{r}"]}),
]


@pytest.mark.parametrize("name", FILTERS)
def test_no_route_shows_or_changes_what_the_filter_hides(
    ann: Client, hidden: dict[str, str], name: str
) -> None:
    wrong = []
    routes = [(method, path, body) for method, path, body, _ in ROUTES if "{" in path]
    for method, path, body in routes + MORE_ROUTES:
        answer = ann.ask(method, path.format(**hidden), ids_in(body, hidden), FILTERS[name])
        found_nothing = answer.status_code in (404, 409) or "not found" in answer.text
        if not found_nothing or "s3cret" in answer.text:
            wrong.append((method, path, answer.status_code, answer.text[:100]))
    assert wrong == []
    for kept in ("/threads/{t}", "/threads/{t}/runs/{r}", "/assistants/{a}", "/runs/crons/{c}"):
        assert ann.ask("GET", kept.format(**hidden)).status_code == 200


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    ("path", "key"), [("/threads", "t"), ("/assistants", "a"), ("/runs/crons", "c")]
)
def test_searches_and_counts_find_what_the_filter_shows(
    ann: Client, path: str, key: str, name: str
) -> None:
    tag = uuid4().hex
    mine, other = (things_of(ann, owner=who, tag=tag) for who in ("ann", "bob"))
    answer = ann.ask("POST", f"{path}/search", {"metadata": {"tag": tag}}, FILTERS[name])
    assert mine[key] in answer.text
    assert other[key] not in answer.text
    counted = ann.ask("POST", f"{path}/count", {"metadata": {"tag": tag}}, FILTERS[name])
    assert counted.json() == 1


def test_or_shows_what_is_shared(ann: Client) -> None:
    shared = things_of(ann, owner="bob", shared=True)
    for path in ("/threads/{t}", "/assistants/{a}", "/runs/crons/{c}", "/threads/{t}/runs/{r}"):
        answer = ann.ask("GET", path.format(**shared), None, OR_SHARED)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "key", "body"),
    [
        ("/threads", "thread_id", {}),
        ("/assistants", "assistant_id", {"graph_id": "steps"}),
    ],
)
def test_an_id_that_is_taken_shows_nothing_of_its_owner(
    ann: Client, path: str, key: str, body: dict[str, Any]
) -> None:
    hidden = ann.made(path, {**body, "metadata": {"owner": "bob", "secret": "s3cret"}}, key)
    again = {**body, key: hidden, "if_exists": "do_nothing"}
    answer = ann.ask("POST", path, again, OWN)
    assert answer.status_code == 409
    assert "s3cret" not in answer.text
    mine = ann.made(path, {**body, "metadata": OWN}, key)
    answer = ann.ask("POST", path, {**again, key: mine}, OWN)
    assert answer.json()[key] == mine


def test_an_assistant_is_run_only_by_those_who_may_read_it(ann: Client) -> None:
    """Its config may be secret. Every user may read the assistant of a graph."""
    hidden = {"graph_id": "steps", "metadata": {"owner": "bob", "created_by": "system"}}
    assistant = ann.made("/assistants", hidden, "assistant_id")
    for path, body in (
        ("/runs", RUN),
        ("/runs/wait", RUN),
        ("/runs/batch", RUN),
        ("/runs/crons", CRON),
        (f"/threads/{uuid4()}/commands", RUN),
        (f"/a2a/{assistant}", None),
    ):
        own: Any = {**(body or {}), "assistant_id": assistant}
        if path.endswith("batch"):
            own = [own]
        if path.endswith("commands"):
            own = {"id": 1, "method": "run.start", "params": own}
        if body is None:
            part = {"kind": "text", "text": "hi"}
            message = {"role": "user", "messageId": "m", "kind": "message", "parts": [part]}
            own = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "message/send",
                "params": {"message": message},
            }
        answer = ann.ask("POST", path, own, {"owner": "ann"}, "assistants.read")
        assert f"{assistant}' not found" in answer.text
        refused = ann.ask("POST", path, own, False, "assistants.read")
        assert "may not read assistants" in refused.text
    assert ann.ask("POST", "/runs/wait", RUN, False, "assistants.read").status_code == 200


def test_a_run_makes_no_thread_that_its_user_would_not_see(ann: Client) -> None:
    """1. Where the filter names the user, the thread gets that. 2. Else the run is refused."""
    for filters in (OWN, OR_SHARED, {"$or": [{"shared": True}, {"people": {"$contains": "ann"}}]}):
        body = {**RUN, "if_not_exists": "create", "after_seconds": 600}
        thread = str(uuid4())
        assert ann.ask("POST", f"/threads/{thread}/runs", body, filters).status_code == 200
        seen = ann.ask("GET", f"/threads/{thread}", None, filters)
        assert "shared" not in seen.json()["metadata"]
    thread = str(uuid4())
    unknown = {"$or": [{"shared": True}, {"org": "x"}]}
    refused = ann.ask("POST", f"/threads/{thread}/runs", body, unknown, "threads.create_run")
    assert refused.status_code == 403
    assert "create the thread first" in refused.text
    assert ann.ask("GET", f"/threads/{thread}").status_code == 404
    assert ann.ask("POST", "/runs/wait", RUN, unknown).status_code == 200


def test_crons_of_a_thread_are_found_by_those_who_find_the_thread(ann: Client) -> None:
    tag = uuid4().hex
    hidden = things_of(ann, owner="bob")
    cron = {**CRON, "metadata": {"tag": tag}}
    ann.made(f"/threads/{hidden['t']}/runs/crons", cron, "cron_id")
    free = ann.made("/runs/crons", cron, "cron_id")
    search = {"metadata": {"tag": tag}}
    found = ann.ask("POST", "/runs/crons/search", search, OWN, "threads.search").json()
    assert [one["cron_id"] for one in found] == [free]
    assert ann.ask("POST", "/runs/crons/count", search, OWN, "threads.search").json() == 1


def test_the_runs_of_a_status_are_stopped_where_the_filter_allows_their_threads(
    ann: Client,
) -> None:
    mine, other = things_of(ann, owner="ann"), things_of(ann, owner="bob")
    assert ann.ask("POST", "/runs/cancel", {"status": "pending"}, OWN).status_code == 204
    for things, status in ((mine, "interrupted"), (other, "pending")):
        run = ann.ask("GET", "/threads/{t}/runs/{r}".format(**things)).json()
        assert run["status"] == status


def test_questions_do_not_vanish_where_a_filter_is_not_understood(ann: Client) -> None:
    answer = ann.ask("GET", "/v1/questions", None, {"owner": {"$ne": "ann"}})
    assert answer.status_code == 500
    assert "$ne" in json.dumps(answer.json())


def test_lists_of_programs_show_no_texts_of_other_users(tmp_path: Path) -> None:
    """1. Not in `/programs`, nor in `/events`. 2. Without hooks they do."""
    cases: list[tuple[Auth | None, bool]] = [(Auth(), False), (None, True)]
    for hooks, shown in cases:
        with (
            serving(
                all_graphs(), tmp_path / f"{shown}.db", api_with(hooks), None, observability_api
            ) as it,
            httpx.Client(base_url=it.url, timeout=60) as http,
        ):
            for graph in ("ask", "fail"):
                http.post("/runs/wait", json={**RUN, "assistant_id": graph})
            programs = http.get("/v1/runs").json()["recent"]
            texts = [str(programs)]
            texts += [http.get(f"/v1/runs/{program['id']}").text for program in programs]
            with http.stream("GET", "/events") as events:
                texts.append(next(part for part in events.iter_text() if "snapshot" in part))
            assert len(programs) == 2
            for secret in ("which way?", "no such luck"):
                assert any(secret in text for text in texts) is shown
