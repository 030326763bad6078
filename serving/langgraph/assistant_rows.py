"""Rows of assistants and of their versions: how they are found, written, and shown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.configs import in_both
from agentrt.serving.langgraph.responses import timestamp
from agentrt.serving.langgraph.tables import assistants, matching, versions


def as_json(row: sa.Row[Any], select: list[bodies.AssistantField] | None = None) -> dict[str, Any]:
    """An assistant, or a version of one, as clients see it."""
    one = dict(row._mapping)
    del one["tenant"]
    for key in ("created_at", "updated_at"):
        if key in one:
            one[key] = timestamp(one[key])
    return {key: one[key] for key in select} if select else one


async def add_assistant(
    connection: AsyncConnection, tenant: str, key: str, content: Mapping[str, Any]
) -> None:
    """Write a new assistant and its first version."""
    now = time.time()
    row = {"tenant": tenant, "assistant_id": key, "version": 1, "created_at": now, **content}
    await connection.execute(sa.insert(assistants).values(**row, updated_at=now))
    await connection.execute(sa.insert(versions).values(row))


def changed_settings(
    old: Mapping[str, Any], body: bodies.AssistantPatch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config and the context: what is given of one is in both, and replaces what was there."""
    config, context = old["config"], old["context"]
    if body.config is not None:
        config = body.config.given()
        context = config.get("configurable", context)
    if body.context is not None:
        context = body.context
        if body.config is None:
            config = {**config, "configurable": {}}
    return in_both(config, context)


def set_latest(tenant: str, key: str, content: Mapping[str, Any]) -> sa.Update:
    """Have an assistant be what a version of it is."""
    changed = sa.update(assistants).where(*matching(assistants, tenant, {"assistant_id": key}))
    return changed.values(**content, updated_at=time.time())
