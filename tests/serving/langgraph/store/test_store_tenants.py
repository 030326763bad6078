"""The items of tenants stay apart also where LangGraph's store would mix them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from langgraph.store.base import Item, ListNamespacesOp, Op, Result, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore

from agentrt.errors import ConfigError
from agentrt.serving.langgraph.database import _compat
from agentrt.serving.langgraph.database.storage import open_storage
from agentrt.serving.langgraph.store import TenantStore

TENANTS = ("acme", "acme-corp", "ACME", "acme.eu", "acm%", "a", "tenant:acme")


class LeakyStore(InMemoryStore):
    """A store that finds by the beginning of names, whatever their case, as old versions do."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return [self._leaked(op) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.batch(ops)

    def _leaked(self, op: Op) -> Result:
        if isinstance(op, ListNamespacesOp):
            op = op._replace(match_conditions=None)
        if isinstance(op, SearchOp):
            beginning = ".".join(op.namespace_prefix).lower()
            (items,) = super().batch([op._replace(namespace_prefix=(), limit=1000)])
            assert isinstance(items, list)
            return [
                item
                for item in items
                if isinstance(item, SearchItem)
                and ".".join(item.namespace).lower().startswith(beginning)
            ]
        return super().batch([op])[0]


@pytest.mark.parametrize("tenant", TENANTS)
async def test_a_tenant_gets_only_its_own_items_from_a_store_that_mixes_them(tenant: str) -> None:
    inner = LeakyStore()
    for each in TENANTS:
        await TenantStore(inner, each).aput(("docs",), "k", {"of": each})
        await TenantStore(inner, each).aput(("docs-2",), "k", {"of": each})
    store = TenantStore(inner, tenant)
    items = await store.asearch((), limit=1000)
    assert [(item.namespace, item.value) for item in items] == [
        (("docs",), {"of": tenant}),
        (("docs-2",), {"of": tenant}),
    ]
    assert [one.value for one in store.search((), limit=1000)] == [{"of": tenant}] * 2
    assert [item.namespace for item in await store.asearch(("docs",), limit=1000)] == [("docs",)]
    assert sorted(await store.alist_namespaces(limit=1000)) == [("docs",), ("docs-2",)]
    item = await store.aget(("docs",), "k")
    assert isinstance(item, Item)
    assert item.value == {"of": tenant}


async def test_the_installed_stores_find_whole_labels_in_their_case(tmp_path: Path) -> None:
    """The stores are used without agentrt's check of tenants."""
    async with open_storage(f"sqlite:{tmp_path / 'a.db'}") as storage:
        for name in ("docs", "docs-2", "DOCS", "do"):
            await storage.store.aput((name, "x"), "k", {})
        assert [one.namespace[0] for one in await storage.store.asearch(("docs",))] == ["docs"]


@pytest.mark.parametrize("is_postgres", [False, True])
async def test_a_suffix_matches_no_label_of_the_tenant(
    tmp_path: Path, url: str, is_postgres: bool
) -> None:
    async with open_storage(url if is_postgres else f"sqlite:{tmp_path / 'a.db'}") as storage:
        store = TenantStore(storage.store, "t")
        for namespace in (("a",), ("a", "b"), ("a", "b", "c")):
            await store.aput(namespace, "k", {})
        for suffix, namespaces in (
            (("*", "a"), []),
            (("tenant:t", "a"), []),
            (("*", "b"), [("a", "b")]),
            (("*", "*"), [("a", "b"), ("a", "b", "c")]),
            (("*",), [("a",), ("a", "b"), ("a", "b", "c")]),
        ):
            assert await store.alist_namespaces(suffix=suffix) == namespaces
        assert await store.alist_namespaces(prefix=("a",), suffix=("*", "c")) == [("a", "b", "c")]


async def test_an_item_may_have_any_short_lifetime(url: str) -> None:
    """PostgreSQL's store writes a short time as 6e-08, which PostgreSQL does not read."""
    async with open_storage(url) as storage:
        store = TenantStore(storage.store, "t")
        await store.aput(("short",), "k", {"a": 1}, ttl=1e-9)
        item = await store.aget(("short",), "k")
        assert item is not None
        assert item.value == {"a": 1}


@pytest.mark.parametrize("version", ["3.0.4", "3.1.0", "3.1.1rc1", "2.0.11"])
async def test_a_version_that_mixes_namespaces_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(_compat, "version", lambda package: version)
    with pytest.raises(ConfigError, match=rf"sqlite {version} returns items of other .* install"):
        async with open_storage(f"sqlite:{tmp_path / 'a.db'}"):
            pass


async def test_a_version_of_postgres_that_mixes_namespaces_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_compat, "version", lambda package: "3.1.0")
    with pytest.raises(ConfigError, match=r"install langgraph-checkpoint-postgres>=3.1.1"):
        async with open_storage(url):
            pass
