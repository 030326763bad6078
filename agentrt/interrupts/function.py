"""Functions of this process as tools: the `@tool` decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from agentrt.errors import ConfigError
from agentrt.interrupts.schema import ToolSchema, name_of
from agentrt.interrupts.tool import Isolation, Tool, ToolOptions


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    isolation: Isolation = "thread",
    timeout: float | None = None,
    retries: int = 0,
    concurrency: int | None = None,
    idempotent: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    isolation: Isolation = "thread",
    **options: Any,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Turn a function into a tool with a schema, made of its signature and docstring.

    With ``isolation="process"`` it runs in a worker process, which a timeout or a cancellation
    ends, whatever it is in. The other options are those of `ToolOptions`. Raises `ConfigError`
    for a function that no schema fits.
    """
    if function is not None:
        return tool()(function)
    if isolation not in ("thread", "process"):
        raise ConfigError(f"a tool's isolation can be thread or process, not {isolation!r}")
    chosen = ToolOptions(**options)

    def made(given: Callable[..., Any]) -> Tool:
        schema = ToolSchema(given, name)
        if isolation == "process" and not _is_importable(given):
            raise ConfigError(
                f"tool {schema.name} cannot run in a process of its own: "
                "define it at the top of a file, where the process finds it"
            )
        return Tool(
            schema.name,
            function=given,
            spec=schema.spec(),
            options=chosen,
            isolation=isolation,
            schema=schema,
        )

    return made


def _is_importable(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__qualname__", "<none>")
    return all(part.isidentifier() for part in name.split("."))


def as_tool(given: Callable[..., Any] | Tool) -> Tool:
    """A tool as it is; a plain function as a tool without a schema, which takes what it takes."""
    if isinstance(given, Tool):
        return given
    return Tool(name_of(given), function=given)
