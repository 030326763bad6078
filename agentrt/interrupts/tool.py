"""Tools, and the interface of the transports that run tools: in a thread, in a process, by MCP or
by MQTT.

`@tool` turns a function into a `Tool`. A new kind of transport is a subclass of `ToolTransport`: in
this package if it is local, in `agentrt.integrations` if it uses a network. `ToolSources` in
`agentrt.cli.tools` makes the transports that the options of the command line name; `toolbox` finds
the transports of other packages.
"""

from __future__ import annotations

import copy
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, NamedTuple, overload

from agentrt.errors import ConfigError, ToolArgumentsError, ToolResultError
from agentrt.former import former_names
from agentrt.interrupts.context import ToolContext
from agentrt.interrupts.schema import ToolSchema, as_json, mistake_in, name_of
from agentrt.request import ToolSpec

Isolation = Literal["thread", "process"]
MAX_BYTES = 8 * 2**20
"""Maximum size of the arguments and of the result of a tool outside this process, in bytes."""


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The options for calls of a tool.

    Attributes:
        timeout: Maximum seconds of each attempt; None means no limit.
        retries: Maximum number of further attempts after a failed attempt. After the death of its
            process, an idempotent tool may be tried two more times.
        concurrency: Maximum number of calls of the tool that run at the same time, over all
            programs.
        idempotent: Whether the tool may run twice for a call without harm. Only an idempotent tool
            is tried again after a timeout or the death of its process, and only an idempotent tool
            may start before the model has finished its answer.
    """

    timeout: float | None = None
    retries: int = 0
    concurrency: int | None = None
    idempotent: bool = False

    def __post_init__(self) -> None:
        for name in ("timeout", "retries", "concurrency"):
            value = getattr(self, name)
            if not (isinstance(value, Real) or (value is None and name != "retries")):
                raise ConfigError(f"a tool's {name} must be a number, got {value!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"a tool's timeout must be above 0 seconds, got {self.timeout}")
        if self.retries < 0:
            raise ConfigError(f"a tool's retries must be at least 0, got {self.retries}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"a tool's concurrency must be at least 1, got {self.concurrency}")


class Tool:
    """A tool: a function of this process, or a tool that ``transport`` reaches.

    ``spec`` describes the tool to a model; None for a function without a JSON schema. ``name`` is
    the tool's name for programs and models, and ``remote`` its name at the transport. The two names
    differ if models do not accept the remote name, or if several tools have this name. Calling a
    `Tool` only calls its function: no program records the call.
    """

    def __init__(
        self,
        name: str,
        *,
        function: Callable[..., Any] | None = None,
        spec: ToolSpec | None = None,
        result_schema: Mapping[str, Any] | None = None,
        options: ToolOptions | None = None,
        transport: ToolTransport | None = None,
        isolation: Isolation = "thread",
        schema: ToolSchema | None = None,
        remote: str | None = None,
    ) -> None:
        if function is not None:
            # Before the tool's own attributes are set, because a function may have attributes of
            # the same names. Those of objects and classes could also hide the tool's methods.
            copied = functools.WRAPPER_UPDATES if inspect.isroutine(function) else ()
            functools.update_wrapper(self, function, updated=copied)
        self.name = name
        self.remote = name if remote is None else remote
        self.schema = schema
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.spec = spec
        self.result_schema = result_schema
        self.options = options or ToolOptions()
        self.transport = transport
        self.isolation: Isolation = isolation
        self.spent = 0.0
        """Seconds that `Toolbox.find` took to find the tool. The timeout of the first attempt
        includes this time.
        """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly. Raises `ConfigError` for a tool outside this process."""
        if self.function is None:
            raise ConfigError(
                f"tool {self.name} runs outside this process; call it with ctx.tool()"
            )
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def checked(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check arguments, and return them in the form that the tool takes.

        For a function, arguments are converted to the types of its parameters; for a tool outside
        this process, they are converted to JSON values. Raises `ToolArgumentsError` for arguments
        that are not valid.
        """
        if self.spec is None:
            return arguments
        if self.schema is not None:
            return self.schema.checked(arguments)
        try:
            plain = as_json(arguments)
            wrong = mistake_in(plain, self.spec.parameters)
        except ValueError as error:
            wrong = f"they cannot be written as JSON: {error}"
        if wrong is not None:
            raise ToolArgumentsError(f"tool {self.name}: wrong arguments: {wrong}", name=self.name)
        return plain

    def check_result(self, result: Any) -> None:
        """Raise `ToolResultError` for a result that does not obey the tool's result schema."""
        if self.result_schema is None:
            return
        if (wrong := mistake_in(result, self.result_schema)) is not None:
            raise ToolResultError(f"tool {self.name}: wrong result: {wrong}", name=self.name)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, as a model passes them. A tool outside this process takes
        no arguments by position. Raises `ToolArgumentsError` for arguments by position that the
        tool does not take.
        """
        if self.schema is not None:
            return self.schema.bind(args, kwargs)
        if args:
            message = f"tool {self.name} takes its arguments by name, not by position"
            raise ToolArgumentsError(message, name=self.name)
        return dict(kwargs)

    def takes(self, name: str) -> bool:
        """Return whether the tool has a parameter of this name. For a plain function, only
        parameters without a default count.
        """
        if self.spec is not None:
            return name in self.spec.parameters.get("properties", ())
        try:
            parameter = inspect.signature(self).parameters.get(name)
        except (TypeError, ValueError):  # some built-in functions have no signature
            return False
        return parameter is not None and parameter.default is parameter.empty

    def but(self, **changes: Any) -> Tool:
        """Return a copy of the tool in which these fields of `ToolOptions` are changed.

        Copies with the same ``concurrency`` share this limit. A copy with another ``concurrency``
        has a limit of its own, which only counts the calls with this limit.
        """
        same = copy.copy(self)
        same.options = replace(self.options, **changes)
        return same

    def renamed(self, name: str) -> Tool:
        """Return a copy of the tool with another name for programs and models."""
        same = copy.copy(self)
        same.name = name
        same.spec = None if self.spec is None else replace(self.spec, name=name)
        return same


@former_names(program_id="run_id")
class ToolRequest(NamedTuple):
    """An attempt to run a call of ``tool``.

    ``arguments`` are the arguments by name. If the tool has a schema, they were checked against it.
    ``positional`` has arguments by position, for plain functions only. ``key`` is the same for all
    attempts of a call, so that a transport can recognize a repeated call. ``timeout`` is the
    maximum duration of this attempt in seconds. ``before`` is awaited when the attempt has its
    slots, before the tool is run.
    """

    tool: Tool
    arguments: Mapping[str, Any]
    positional: tuple[Any, ...] = ()
    key: str = ""
    attempt: int = 1
    run_id: str = ""
    tenant: str = "default"
    timeout: float | None = None
    before: Callable[[], Awaitable[None]] | None = None


class ToolTransport(ABC):
    """A transport, which runs tools. All methods must be called from the same event loop.

    ``name`` is the transport's name in the DAG and in messages, such as ``thread``, ``mcp:github``
    or ``mqtt``. At most ``concurrency`` attempts run at the same time. Other attempts wait, and
    their timeouts do not include this wait. If ``keeps_time`` is True, the transport itself ends
    attempts at `ToolRequest.timeout`, with `in_time`.
    """

    name: str
    concurrency: int | None = None
    keeps_time = False

    async def open(self) -> None:  # noqa: B027 - nothing to open is a good default
        """Open the transport. This succeeds even if no server or worker can be reached yet."""

    async def close(self) -> None:  # noqa: B027
        """Close the transport, and leave no task, subscription or process behind. Idempotent."""

    async def tools(self) -> Sequence[Tool]:
        """Return the tools that are offered now. Raises `ToolUnavailableError` if the transport
        cannot be reached.
        """
        return ()

    async def tools_for(self, tenant: str) -> Sequence[Tool]:
        """Return the tools that are offered now to programs of ``tenant``. By default, these are
        the tools of `tools`.
        """
        return await self.tools()

    async def more(self, tenant: str) -> bool:
        """Wait for tools that may be announced later, and return whether any were announced.

        A transport that always knows all its tools returns False at once.
        """
        return False

    def drain(self) -> None:  # noqa: B027
        """Stop waiting for workers that have not connected yet, because the programs are about to
        end. Attempts that are running continue.
        """

    @abstractmethod
    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        """Run an attempt, and return its result.

        Callers cancel this coroutine at a timeout. The transport must then stop the work, wherever
        the work runs, and the coroutine must not end before all its work in this process has ended.
        Raises a `ToolError`, or the error of the function.
        """


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
    """Turn a function into a tool. The tool's schema is made from the function's signature and
    docstring.

    ``name`` is by default the function's name. With ``isolation="process"`` the function runs in a
    worker process, which is killed at a timeout or a cancellation. `ToolOptions` describes the
    other options. Raises `ConfigError` for a function whose parameters have no JSON schema, for
    invalid options, and for a function that a worker process cannot import.
    """
    if function is not None:
        return tool()(function)
    if isolation not in ("thread", "process"):
        raise ConfigError(f"a tool's isolation must be 'thread' or 'process', not {isolation!r}")
    chosen = ToolOptions(**options)

    def decorate(decorated: Callable[..., Any]) -> Tool:
        schema = ToolSchema(decorated, name)
        if isolation == "process" and not _is_importable(decorated):
            raise ConfigError(
                f"tool {schema.name} cannot run in a process, because the process cannot import "
                "it; define the function at the top level of a file"
            )
        return Tool(
            schema.name,
            function=decorated,
            spec=schema.spec(),
            options=chosen,
            isolation=isolation,
            schema=schema,
        )

    return decorate


def _is_importable(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__qualname__", "<none>")
    return all(part.isidentifier() for part in name.split("."))


def as_tool(function: Callable[..., Any] | Tool) -> Tool:
    """Return a `Tool` unchanged; turn a plain function into a tool without a schema. An object with
    an attribute ``name`` has this name.
    """
    if isinstance(function, Tool):
        return function
    if not callable(function):
        raise ConfigError(
            f"{function!r:.80} cannot be called as a tool; pass a function, a Tool or the name of "
            "a tool"
        )
    name = getattr(function, "__dict__", {}).get("name")
    return Tool(name if isinstance(name, str) else name_of(function), function=function)
