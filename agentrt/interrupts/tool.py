"""A tool, and the seam between it and whoever does its work: a thread, a process, MCP, MQTT.

A transport of a new kind subclasses `ToolTransport`; `toolbox` finds those of other packages.
`@tool` makes a `Tool` of a function.
"""

from __future__ import annotations

import copy
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, overload

from agentrt.errors import ConfigError, ToolArgumentsError, ToolResultError
from agentrt.interrupts.context import ToolContext
from agentrt.interrupts.schema import ToolSchema, as_json, mistake_in, name_of
from agentrt.request import ToolSpec

Isolation = Literal["thread", "process"]
MAX_BYTES = 8 * 2**20
"""The longest arguments and results that a tool takes and gives outside this process."""


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """How calls of a tool are carried out.

    ``timeout`` bounds each attempt (seconds), ``retries`` is how many more attempts a failed one
    gets, ``concurrency`` how many calls run at once over all programs. An ``idempotent`` tool may
    run twice for one call without harm: only such a tool is tried again after its time was over
    or when who ran it died, and it may start while the model still writes.
    """

    timeout: float | None = None
    retries: int = 0
    concurrency: int | None = None
    idempotent: bool = False

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"a tool's timeout must be above 0 seconds, got {self.timeout}")
        if self.retries < 0:
            raise ConfigError(f"a tool's retries must be at least 0, got {self.retries}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"a tool's concurrency must be at least 1, got {self.concurrency}")


class Tool:
    """A tool: a function of this process, or one that ``transport`` reaches.

    ``spec`` describes it to a model; None for a function that no schema fits. ``remote`` is
    what its transport calls it, where a model could not or two transports do. Calling a `Tool`
    calls its function directly, without a program.
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
        """How many seconds of its first attempt's time it took to find it (`Toolbox.find`)."""
        if function is not None:
            functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        if self.function is None:
            raise ConfigError(f"tool {self.name} runs elsewhere: call it with ctx.tool()")
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def checked(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as the tool takes them, from JSON or not: of a function's own types, or,
        for a tool elsewhere, as JSON.

        Raises `ToolArgumentsError` for those that do not fit.
        """
        if self.spec is None:
            return arguments
        if self.schema is not None:
            return self.schema.checked(arguments)
        try:
            plain = as_json(arguments)
            wrong = mistake_in(plain, self.spec.parameters)
        except ValueError as error:
            wrong = f"JSON cannot carry them: {error}"
        if wrong is not None:
            raise ToolArgumentsError(f"tool {self.name}: wrong arguments: {wrong}", name=self.name)
        return plain

    def check_result(self, result: Any) -> None:
        """Raise `ToolResultError` for a result that is not what the tool says it returns."""
        if self.result_schema is None:
            return
        if (wrong := mistake_in(result, self.result_schema)) is not None:
            raise ToolResultError(f"tool {self.name}: wrong result: {wrong}", name=self.name)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name, as a model gives them. Raises `ToolArgumentsError`."""
        if self.schema is not None:
            return self.schema.bind(args, kwargs)
        if args:
            message = f"tool {self.name} takes its arguments by name"
            raise ToolArgumentsError(message, name=self.name)
        return dict(kwargs)

    def takes(self, name: str) -> bool:
        """Whether it has a parameter of this name; of a plain function, one that must be given."""
        if self.spec is not None:
            return name in self.spec.parameters.get("properties", ())
        try:
            parameter = inspect.signature(self).parameters.get(name)
        except (TypeError, ValueError):  # of some built-in functions nothing is known
            return False
        return parameter is not None and parameter.default is parameter.empty

    def but(self, **changes: Any) -> Tool:
        """The same tool with other options."""
        same = copy.copy(self)
        same.options = replace(self.options, **changes)
        return same

    def renamed(self, name: str) -> Tool:
        """The same tool under another name, for programs and models."""
        same = copy.copy(self)
        same.name = name
        same.spec = None if self.spec is None else replace(self.spec, name=name)
        return same


class ToolRequest(NamedTuple):
    """One attempt at a call of ``tool``.

    ``arguments`` go by name, and were checked against the tool's schema if it has one.
    ``positional`` is for plain functions alone. ``key`` is the same for all attempts of one call:
    whoever gets it twice does the work once. ``timeout`` is in seconds, for this attempt.
    ``before`` is awaited when it has its turn, before anything is run.
    """

    tool: Tool
    arguments: Mapping[str, Any]
    positional: tuple[Any, ...] = ()
    key: str = ""
    attempt: int = 1
    program_id: str = ""
    tenant: str = "default"
    timeout: float | None = None
    before: Callable[[], Awaitable[None]] | None = None


class ToolTransport(ABC):
    """Runs tools somewhere. All methods belong to one event loop.

    ``name`` stands in the DAG and in messages: ``thread``, ``mcp:github``, ``mqtt``. At most
    ``concurrency`` attempts run at once; others wait, and that does not count as their time.
    One that ``keeps_time`` ends attempts at `ToolRequest.timeout` by itself, with `in_time`.
    """

    name: str
    concurrency: int | None = None
    keeps_time = False

    async def open(self) -> None:  # noqa: B027 - nothing to open is a good default
        """Get ready. Who does the work may come later, and go: that is no error here."""

    async def close(self) -> None:  # noqa: B027
        """Leave no task, subscription or process behind. Idempotent."""

    async def tools(self) -> Sequence[Tool]:
        """The tools that are offered now. Raises `ToolUnavailableError` if it cannot list them."""
        return ()

    async def tools_for(self, tenant: str) -> Sequence[Tool]:
        """The same for programs of one tenant, where tenants have tools of their own."""
        return await self.tools()

    async def more(self, tenant: str) -> bool:
        """Wait for further tools, where those who offer them may not have been heard of yet."""
        return False

    def drain(self) -> None:  # noqa: B027
        """The programs are to end: from now on, wait for none who might do the work later. What
        was begun goes on.
        """

    @abstractmethod
    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        """Run one attempt and return its result.

        Cancelling the task stops the work, wherever it is, and returns once nothing of it is
        left on this side; whoever calls it bounds its time in this way. Raises a `ToolError`, or
        what the function raised.
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
