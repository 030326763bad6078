"""The config and the context of a run's graph: the run's own over those of its assistant.

A graph finds what clients give in either in both, as with LangGraph's own server: graphs that
read ``config["configurable"]`` and graphs that read ``runtime.context`` have the same clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from pydantic import BaseModel, TypeAdapter, ValidationError

from agentrt.errors import ConfigError
from agentrt.integrations.langgraph.graphs import Access, Graph, Purpose
from agentrt.serving.langgraph._compat import STRICT_RESUME
from agentrt.serving.langgraph.auth.hooks import Caller
from agentrt.serving.langgraph.bodies import Config, is_free
from agentrt.serving.langgraph.database.runs import RunRecord
from agentrt.serving.langgraph.responses import summary

Object = dict[str, Any]
_PLACE = ("thread_id", "checkpoint_id")
"""Configurable keys that say where in its thread a run starts."""


def in_both(config: Mapping[str, Any], context: Mapping[str, Any]) -> tuple[Object, Object]:
    """A config and a context, each with the keys of the other one; its own values are kept."""
    given = config.get("configurable") or {}
    shared = {key: value for key, value in context.items() if is_free(key) and key not in _PLACE}
    configurable = {**shared, **given}
    both = {key: value for key, value in given.items() if key not in _PLACE}
    return {**config, **({"configurable": configurable} if configurable else {})}, {
        **both,
        **context,
    }


def merged(
    config: Mapping[str, Any], context: Mapping[str, Any] | None, assistant: Mapping[str, Any]
) -> tuple[Object, Object]:
    """The config and the context of a run, over those of its assistant."""
    base, base_context = in_both(assistant["config"], assistant["context"])
    given, own_context = in_both(config, context or {})
    # Not langchain_core's merge_configs: that would sort the tags.
    whole = {**base, **given}
    for key in ("configurable", "metadata"):
        if key in base or key in given:
            whole[key] = {**base.get(key, {}), **given.get(key, {})}
    if "tags" in base or "tags" in given:
        whole["tags"] = list(dict.fromkeys([*base.get("tags", []), *given.get("tags", [])]))
    whole.get("configurable", {}).pop("thread_id", None)
    return whole, {**base_context, **own_context}


CONFIGS = "LANGGRAPH_CONFIG"
"""The variable of the environment with the configs of graphs, as LangGraph's own server has it."""


def graph_configs(text: str | None) -> dict[str, Object]:
    """The configs that default assistants have, by their graphs, from the variable's ``text``.
    Raises `ConfigError` for what they cannot be.
    """
    if not text:
        return {}
    try:
        configs = TypeAdapter(dict[str, Config]).validate_json(text)
    except ValidationError as error:
        faults = [{**fault, "loc": ("the value", *fault["loc"])} for fault in error.errors()]
        raise ConfigError(
            f"{CONFIGS}: {summary(faults)}; give the config of each graph by its name, such as "
            '{"agent": {"recursion_limit": 50}}'
        ) from None
    return {name: config.fields_set() for name, config in configs.items()}


def context_for(graph: Graph, given: Mapping[str, Any] | None) -> Any:
    """A run's context as the schema of ``graph`` takes it: the keys that it has.

    LangGraph leaves None as it is; a class gets an empty context, for its defaults.
    """
    schema, given = graph.context_schema, given or {}
    if not isinstance(schema, type):
        return dict(given) or None
    names = _names(schema)
    kept = {key: value for key, value in given.items() if names is None or key in names}
    return kept if kept or issubclass(schema, BaseModel) or is_dataclass(schema) else None


def _names(schema: type) -> set[str] | None:
    """The keys that a context may have; None is any."""
    if issubclass(schema, BaseModel):
        if schema.model_config.get("extra") == "allow":
            return None
        aliases = {str(one.alias) for one in schema.model_fields.values()}
        return set(schema.model_fields) | aliases
    if is_dataclass(schema):
        return {one.name for one in fields(schema)}
    return set(getattr(schema, "__annotations__", ())) or None


def run_config(record: RunRecord) -> RunnableConfig:
    """The config of the run's graph. The server's own keys come last: clients cannot set them."""
    given: Object = dict(record.kwargs.get("config") or {})
    about = {
        "run_id": record.run_id,
        "thread_id": record.thread_id,
        "graph_id": record.graph_id,
        "assistant_id": record.assistant_id,
    }
    configurable = {**given.pop("configurable", {}), **about}
    if user := record.kwargs.get("user"):
        configurable = {"user_id": user["langgraph_auth_user_id"], **configurable, **user}
    if record.kwargs.get("strict_resume"):
        configurable[STRICT_RESUME] = True
    metadata = {**given.pop("metadata", {}), **record.metadata, **about}
    metadata["run_attempt"] = record.attempt
    own: RunnableConfig = {
        "run_name": given.pop("run_name", record.graph_id),
        "run_id": UUID(record.run_id),
        "configurable": configurable,
        "metadata": metadata,
    }
    return merge_configs(cast("RunnableConfig", given), own)


# -- what a factory gets ------------------------------------------------------------------


def run_access(record: RunRecord, purpose: Purpose = "threads.create_run") -> Access:
    """For a run, or for the state that it leaves."""
    caller = Caller.of_config(record.tenant, record.kwargs.get("user"), None)
    context = dict(record.kwargs.get("context") or {})
    return Access(run_config(record), purpose, context, caller.user)


def caller_access(caller: Caller, purpose: Purpose, config: Mapping[str, Any]) -> Access:
    """For a request of a client, about what has this config."""
    configurable = {**(config.get("configurable") or {}), **caller.config()}
    whole = {**config, "configurable": configurable}
    return Access(cast("RunnableConfig", whole), purpose, user=caller.user)
