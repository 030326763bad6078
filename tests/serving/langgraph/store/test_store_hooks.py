"""Authorization hooks of the store: filters on items, and changes of operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.serving.langgraph.hook_routes import OWN
from tests.serving.langgraph.hooked import FILTERS, OR_SHARED, Client, hooked


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with hooked(tmp_path_factory.mktemp("hooks") / "a.db") as client:
        yield client


def put(client: Client, namespace: list[str], key: str, value: Any, returns: Any = None) -> int:
    body = {"namespace": namespace, "key": key, "value": value}
    return client.ask("PUT", "/store/items", body, returns).status_code


def get(client: Client, namespace: str, key: str, returns: Any = None) -> Any:
    answer = client.ask("GET", f"/store/items?namespace={namespace}&key={key}", None, returns)
    return answer.json() and answer.json()["value"]


def keys_of(client: Client, body: dict[str, Any], returns: Any) -> list[str]:
    answer = client.ask("POST", "/store/items/search", body, returns)
    assert answer.status_code == 200, answer.text
    return [one["key"] for one in answer.json()["items"]]


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_of_the_store_is_one_on_the_items_values(ann: Client, name: str) -> None:
    only, folder = FILTERS[name], uuid4().hex
    for number in range(250):
        owner = "ann" if number % 25 == 0 else "bob"
        put(ann, [folder, owner], f"{number:03}", {"owner": owner, "n": number, "s": owner})
    put(ann, [folder, "odd"], "odd", {"owner": ["ann"]})
    wanted = [f"{number:03}" for number in range(225, -1, -25)]
    at = {"namespace_prefix": [folder]}
    assert keys_of(ann, {**at, "limit": 100}, only) == wanted
    assert keys_of(ann, {**at, "limit": 3, "offset": 4}, only) == wanted[4:7]
    assert keys_of(ann, {**at, "filter": {"n": {"$gt": 110}}}, only) == wanted[:5]
    assert keys_of(ann, {**at, "filter": {"owner": "bob"}}, only) == []
    assert keys_of(ann, {**at, "filter": {"s": "ann"}, "limit": 2}, only) == wanted[:2]
    assert get(ann, f"{folder}.bob", "001", only) is None
    assert get(ann, f"{folder}.ann", "025", only)["n"] == 25
    body = {"prefix": [folder]}
    listed = ann.ask("POST", "/store/namespaces", body, only).json()["namespaces"]
    assert listed == [[folder, "ann"]]


@pytest.mark.parametrize("name", FILTERS)
def test_no_write_replaces_or_deletes_what_the_filter_hides(ann: Client, name: str) -> None:
    only, folder = FILTERS[name], uuid4().hex
    put(ann, [folder], "theirs", {"owner": "bob"})
    assert put(ann, [folder], "theirs", {"owner": "ann"}, only) == 403
    assert put(ann, [folder], "mine", {"owner": "bob"}, only) == 403
    assert put(ann, [folder], "mine", {"owner": "ann"}, only) == 204
    assert put(ann, [folder], "mine", {"owner": "ann", "n": 2}, only) == 204
    for key in ("theirs", "mine"):
        ann.ask("DELETE", "/store/items", {"namespace": [folder], "key": key}, only)
    assert get(ann, folder, "theirs") == {"owner": "bob"}
    assert get(ann, folder, "mine") is None


def test_namespaces_with_a_filter_are_those_without_it(ann: Client) -> None:
    """Prefix, suffix, depth, asterisks and pages, where the filter allows all."""
    folder = uuid4().hex
    for names in (["a"], ["a", "x"], ["b", "x"], ["b", "x", "y"], ["bb", "x"]):
        put(ann, [folder, *names], "k", {"owner": "ann"})
    for body in (
        {"prefix": [folder]},
        {"prefix": [folder, "b"]},
        {"prefix": [folder], "suffix": ["x"]},
        {"prefix": ["*", "b"], "suffix": ["x", "*"]},
        {"prefix": [folder], "max_depth": 2},
        {"prefix": [folder], "limit": 2, "offset": 1},
    ):
        plain = ann.ask("POST", "/store/namespaces", body).json()
        assert ann.ask("POST", "/store/namespaces", body, OWN).json() == plain
        assert plain["namespaces"]


def test_all_that_a_hook_changes_of_an_operation_counts(ann: Client) -> None:
    folder = uuid4().hex
    for who in ("ann", "bob"):
        put(ann, [folder, who], "k", {"owner": who})

    def sets(**changes: Any) -> Any:
        return lambda ctx, value: value.update(changes)

    at = {"namespace_prefix": [folder]}
    search = "/store/items/search"
    changed: list[tuple[dict[str, Any], list[str]]] = [
        ({"filter": {"owner": "ann"}}, ["ann"]),
        ({"namespace": [folder, "bob"]}, ["bob"]),
        ({"limit": 1, "offset": 1}, ["ann"]),
    ]
    for changes, expected in changed:
        items = ann.ask("POST", search, at, sets(**changes)).json()["items"]
        assert [one["value"]["owner"] for one in items] == expected
    of_bob: list[dict[str, Any]] = [{"namespace": (folder, "bob")}]
    for changes in [*of_bob, {"suffix": ["bob"], "namespace": (folder,)}]:
        listed = ann.ask("POST", "/store/namespaces", {}, sets(**changes)).json()["namespaces"]
        assert listed == [[folder, "bob"]]
    put(ann, [folder], "a", {"n": 1}, sets(key="b", value={"n": 2}))
    assert get(ann, folder, "a") is None
    assert get(ann, folder, "a", sets(key="b")) == {"n": 2}
    put(ann, [folder], "b", {"n": 3}, sets(value=None))
    assert get(ann, folder, "b") is None


@pytest.mark.parametrize("namespace", ["ann", None, ["ann@x.com"], ["docs.ann"], ["", "a"], [7]])
def test_a_namespace_that_is_none_is_refused(ann: Client, namespace: Any) -> None:
    """A full stop joins labels: ("docs.bob",) would be bob's ("docs", "bob")."""

    def sets(ctx: Any, value: dict[str, Any]) -> None:
        value["namespace"] = namespace

    for method, path, body in (
        ("PUT", "/store/items", {"namespace": ["d"], "key": "k", "value": {}}),
        ("GET", "/store/items?namespace=d&key=k", None),
        ("POST", "/store/items/search", {"namespace_prefix": ["d"]}),
        ("DELETE", "/store/items", {"namespace": ["d"], "key": "k"}),
        ("POST", "/store/namespaces", {"prefix": ["d"]}),
    ):
        if namespace is None and path == "/store/namespaces":
            continue  # no prefix, as LangGraph's own server has it
        answer = ann.ask(method, path, body, sets)
        assert answer.status_code == 422
        assert "authorization hook for store." in answer.text


def test_a_filter_of_the_store_on_postgres(url: str) -> None:
    with hooked(url) as client:
        for who in ("ann", "bob"):
            put(client, ["pg", who], who, {"owner": who, "shared": who == "bob"})
        at = {"namespace_prefix": ["pg"]}
        assert keys_of(client, at, OWN) == ["ann"]
        assert keys_of(client, at, OR_SHARED) == ["bob", "ann"]
        assert get(client, "pg.bob", "bob", OWN) is None
        for only, expected in ((OWN, [["pg", "ann"]]), (None, [["pg", "ann"], ["pg", "bob"]])):
            answer = client.ask("POST", "/store/namespaces", {"prefix": ["pg"]}, only)
            assert answer.json()["namespaces"] == expected
