"""What clients ask of the store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agentrt.serving.langgraph.bodies import Body, Label, Limit, Object, Offset

Namespace = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^.]+$")]],
    Field(max_length=32),
]


class ItemPut(Body):
    """An item for the store."""

    namespace: Namespace = Field(min_length=1)
    key: Label
    value: Object
    index: Literal[False] | list[str] | None = None


class ItemDelete(Body):
    """An item that is to be forgotten."""

    namespace: Namespace = Field(default_factory=list)
    key: Label


class ItemSearch(Body):
    """Which items of the store."""

    namespace_prefix: Namespace = Field(default_factory=list)
    filter: Object | None = None
    limit: Limit = 10
    offset: Offset = 0


class NamespaceSearch(Body):
    """Which namespaces of the store."""

    prefix: Namespace | None = None
    suffix: Namespace | None = None
    max_depth: int | None = Field(default=None, ge=1, le=32)
    limit: Limit = 100
    offset: Offset = 0
