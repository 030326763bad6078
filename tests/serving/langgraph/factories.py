"""Functions that make graphs, one for each form that LangGraph's server takes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config, get_store
from langgraph.graph import START, StateGraph
from langgraph_sdk.runtime import ServerRuntime

from tests.serving.langgraph.graphs import Steps

OPENED: list[str] = []
"""What the context managers have opened, and closed."""


def made_for(who: str) -> StateGraph[Any]:
    """A graph of one node, named after somebody, that tells for whom it was made."""

    def tell(state: Steps) -> Steps:
        return {"steps": [f"made for {who}"]}

    return StateGraph(Steps).add_node(who, tell).add_edge(START, who)


def who(config: RunnableConfig) -> str:
    return str(config.get("configurable", {}).get("who", "nobody"))


def plain(config: RunnableConfig) -> Any:
    return made_for(who(config)).compile()


def untyped(settings):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return made_for(who(settings))


def with_default(config: RunnableConfig | None = None) -> Any:
    return made_for(who(config or {}))


async def awaited(config: RunnableConfig) -> Any:
    return made_for(who(config))


@asynccontextmanager
async def managed(config: RunnableConfig) -> AsyncIterator[Any]:
    OPENED.append(f"opened {who(config)}")
    yield made_for(who(config))
    OPENED.append(f"closed {who(config)}")


@contextmanager
def managed_at_once(config: RunnableConfig) -> Iterator[Any]:
    yield made_for(who(config))


async def with_runtime(runtime: ServerRuntime[dict[str, Any]]) -> Any:
    running = runtime.execution_runtime
    return made_for("nobody" if running is None else running.context.get("who", "nobody"))


def with_both(config: RunnableConfig, runtime: ServerRuntime[Any]) -> Any:
    user = None if runtime.user is None else runtime.user.identity
    assert runtime.store is not None
    return made_for(f"{who(config)}, {runtime.access_context}, {user}")


def needs_who(config: RunnableConfig) -> Any:
    return made_for(config["configurable"]["who"])


def by_langgraph(config: RunnableConfig) -> Any:
    """Made with the keys that LangGraph's own server always sets, and with its functions."""
    assert config["tags"] == []
    get_store().put(("made",), "it", {"for": get_config()["configurable"].get("who", "nobody")})
    item = get_store().get(("made",), "it")
    assert item is not None
    assert config["configurable"].get("who", "nobody") == item.value["for"]
    return made_for(item.value["for"])


@contextmanager
def managed_with_store(runtime: ServerRuntime[dict[str, Any]]) -> Iterator[Any]:
    """It uses the store as it begins and as it ends."""
    running = runtime.execution_runtime
    who = "nobody" if running is None else running.context.get("who", "nobody")
    runtime.store.put(("managed",), "it", {"for": who})
    yield made_for(who)
    assert runtime.store.get(("managed",), "it") is not None
    runtime.store.delete(("managed",), "it")


FORMS = {
    "plain": plain,
    "untyped": untyped,
    "with_default": with_default,
    "awaited": awaited,
    "managed": managed,
    "managed_at_once": managed_at_once,
    "with_runtime": with_runtime,
    "by_langgraph": by_langgraph,
    "managed_with_store": managed_with_store,
}
OTHERS = {"with_both": with_both, "needs_who": needs_who}
