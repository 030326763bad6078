"""The config and the context of a run's graph: the run's config and context, merged with the config
and the context of the run's assistant.

As with LangGraph's own server, keys that a client sends in the config's ``configurable`` are also
in the context, and the other way round, so that clients need not know which of the two a graph
reads.
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
from agentrt.serving.langgraph.auth.hooks import Requester
from agentrt.serving.langgraph.bodies import Config, is_free
from agentrt.serving.langgraph.database.runs import RunRecord
from agentrt.serving.langgraph.responses import summary

Object = dict[str, Any]
_PLACE = ("thread_id", "checkpoint_id")
"""The configurable keys that name the checkpoint at which a run starts."""


def in_both(config: Mapping[str, Any], context: Mapping[str, Any]) -> tuple[Object, Object]:
    """Return ``config`` and ``context``, each with the keys of the other added to its own keys.

    The config's keys are those of its ``configurable``. Keys that name a thread or a checkpoint are
    not added, and neither are keys of the context that only the server may set.
    """
    own = config.get("configurable") or {}
    of_context = {k: value for k, value in context.items() if is_free(k) and k not in _PLACE}
    configurable = {**of_context, **own}
    of_config = {key: value for key, value in own.items() if key not in _PLACE}
    whole_config = {**config, **({"configurable": configurable} if configurable else {})}
    return whole_config, {**of_config, **context}


def merged(
    config: Mapping[str, Any], context: Mapping[str, Any] | None, assistant: Mapping[str, Any]
) -> tuple[Object, Object]:
    """Return the config and the context of a run, merged with the config and context of its
    assistant. The values of the run replace the values of the assistant; tags are added to the
    assistant's tags.
    """
    base, base_context = in_both(assistant["config"], assistant["context"])
    own, own_context = in_both(config, context or {})
    # langchain_core's merge_configs would sort the tags.
    whole = {**base, **own}
    for key in ("configurable", "metadata"):
        if key in base or key in own:
            whole[key] = {**base.get(key, {}), **own.get(key, {})}
    if "tags" in base or "tags" in own:
        whole["tags"] = list(dict.fromkeys([*base.get("tags", []), *own.get("tags", [])]))
    whole.get("configurable", {}).pop("thread_id", None)
    return whole, {**base_context, **own_context}


CONFIGS = "LANGGRAPH_CONFIG"
"""The environment variable with the configs of graphs, as in LangGraph's own server."""


def graph_configs(text: str | None) -> dict[str, Object]:
    """Read the configs of default assistants, and return them by the names of their graphs.

    ``text`` is the value of the environment variable LANGGRAPH_CONFIG; None if it is not set.
    Raises `ConfigError` for an invalid text.
    """
    if not text:
        return {}
    try:
        configs = TypeAdapter(dict[str, Config]).validate_json(text)
    except ValidationError as error:
        faults = [{**fault, "loc": ("the value", *fault["loc"])} for fault in error.errors()]
        raise ConfigError(
            f"{CONFIGS}: {summary(faults)}; write a JSON object with the config of each graph "
            'under the name of the graph, such as {"agent": {"recursion_limit": 50}}'
        ) from None
    return {name: config.fields_set() for name, config in configs.items()}


def context_for(graph: Graph, context: Mapping[str, Any] | None) -> Any:
    """Return a run's context with only the keys that the context schema of ``graph`` has, or with
    all keys if the graph has no schema.

    An empty context becomes None, unless the schema is a Pydantic model or a dataclass, of which
    LangGraph must create an instance with the default values.
    """
    schema, context = graph.context_schema, context or {}
    if not isinstance(schema, type):
        return dict(context) or None
    names = _names(schema)
    kept = {key: value for key, value in context.items() if names is None or key in names}
    return kept if kept or issubclass(schema, BaseModel) or is_dataclass(schema) else None


def _names(schema: type) -> set[str] | None:
    """Return the keys that a context of this schema may have; None means any key."""
    if issubclass(schema, BaseModel):
        if schema.model_config.get("extra") == "allow":
            return None
        aliases = {str(info.alias) for info in schema.model_fields.values()}
        return set(schema.model_fields) | aliases
    if is_dataclass(schema):
        return {item.name for item in fields(schema)}
    return set(getattr(schema, "__annotations__", ())) or None


def run_config(record: RunRecord) -> RunnableConfig:
    """Return the config of a run's graph. The server's own keys override the keys of clients,
    except ``user_id``, which a client may set.
    """
    config: Object = dict(record.kwargs.get("config") or {})
    about = {
        "run_id": record.run_id,
        "thread_id": record.thread_id,
        "graph_id": record.graph_id,
        "assistant_id": record.assistant_id,
    }
    configurable = {**config.pop("configurable", {}), **about}
    if user := record.kwargs.get("user"):
        configurable = {"user_id": user["langgraph_auth_user_id"], **configurable, **user}
    if record.kwargs.get("strict_resume"):
        configurable[STRICT_RESUME] = True
    metadata = {**config.pop("metadata", {}), **record.metadata, **about}
    metadata["run_attempt"] = record.attempt
    own: RunnableConfig = {
        "run_name": config.pop("run_name", record.graph_id),
        "run_id": UUID(record.run_id),
        "configurable": configurable,
        "metadata": metadata,
    }
    return merge_configs(cast("RunnableConfig", config), own)


# -- arguments of factories ---------------------------------------------------------------


def run_access(record: RunRecord, purpose: Purpose = "threads.create_run") -> Access:
    """Return the arguments for a factory that makes a graph for a run or, with another ``purpose``,
    for reading the run's thread.
    """
    caller = Requester.of_config(record.tenant, record.kwargs.get("user"), None)
    context = dict(record.kwargs.get("context") or {})
    return Access(run_config(record), purpose, context, caller.user)


def caller_access(caller: Requester, purpose: Purpose, config: Mapping[str, Any]) -> Access:
    """Return the arguments for a factory that makes a graph for a request that is not a run, such
    as a request about an assistant with this ``config``.
    """
    configurable = {**(config.get("configurable") or {}), **caller.config()}
    whole = {**config, "configurable": configurable}
    return Access(cast("RunnableConfig", whole), purpose, user=caller.user)
