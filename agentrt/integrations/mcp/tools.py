"""The tool transport to an MCP server.

A question that the server asks during a call (an elicitation) becomes a question to a human, asked
by the program that made the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mcp import MCPError
from mcp.client import ClientRequestContext
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    PARSE_ERROR,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp.types import Tool as ListedTool
from pydantic import ValidationError

from agentrt import tracking
from agentrt.errors import (
    InterruptExpiredError,
    QuestionClosedError,
    ToolArgumentsError,
    ToolError,
    ToolFailedError,
    ToolLostError,
    ToolResultError,
    ToolUnavailableError,
    UnknownToolError,
)
from agentrt.graph import Progress
from agentrt.integrations.mcp.config import Server
from agentrt.integrations.mcp.connection import McpConnection, Mode
from agentrt.integrations.mcp.http import CUT_OFF, FORGOTTEN, UNREACHABLE
from agentrt.interrupts import Tool, ToolContext, ToolOptions, ToolRequest, ToolTransport
from agentrt.interrupts.schema import model_name
from agentrt.request import ToolSpec

if TYPE_CHECKING:
    from mcp.client import Client
    from mcp.client.caching import CacheMode

_ACTION = "action"
_ACTIONS = ("accept", "decline", "cancel")


@dataclass(eq=False, slots=True)
class _McpCall:
    """A call in flight. ``error`` is the reason why one of its questions could not be asked."""

    context: ToolContext
    tenant: str
    error: Exception | None = None
    asking: set[asyncio.Task[Any]] = field(default_factory=set)


_CALL: contextvars.ContextVar[_McpCall | None] = contextvars.ContextVar("agentrt_mcp", default=None)


class _Elicitations:
    """The calls in flight on a server. The server's questions are asked by the programs of these
    calls.
    """

    def __init__(self) -> None:
        self._calls: dict[_McpCall, None] = {}

    @contextlib.contextmanager
    def under_way(self, call: _McpCall) -> Iterator[None]:
        """Let the server ask questions for ``call`` during the ``with`` block. At the end of the
        block, the open questions of the call are withdrawn.
        """
        self._calls[call] = None
        token = _CALL.set(call)
        try:
            yield
        finally:
            _CALL.reset(token)
            del self._calls[call]
            for task in call.asking:
                task.cancel()

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        """Ask a human, and return the answer. A withdrawn question is declined. A question is
        cancelled if it timed out, or if it cannot be asked.
        """
        call = self._caller()
        if call is None:
            return ElicitResult(action="cancel")
        task = asyncio.ensure_future(_ask(call.context, params))
        call.asking.add(task)
        try:
            return await task
        except QuestionClosedError:
            return ElicitResult(action="decline")
        except InterruptExpiredError:
            return ElicitResult(action="cancel")
        except Exception as error:  # nobody can be asked: the call reports it at its end
            call.error = error
            return ElicitResult(action="cancel")
        finally:
            call.asking.discard(task)
            task.cancel()

    def _caller(self) -> _McpCall | None:
        """Return the call to which the current question belongs; None if it is unknown.

        Old servers on stdio do not name the call. Then the first call in flight is taken, but only
        if all calls are of the same tenant, because no tenant may see another tenant's question.
        """
        if (call := _CALL.get()) is not None:
            return call
        if len({call.tenant for call in self._calls}) != 1:
            return None
        return next(iter(self._calls))


async def _ask(context: ToolContext, params: ElicitRequestParams) -> ElicitResult:
    if isinstance(params, ElicitRequestURLParams):
        return await _confirm(context, f"{params.message}\n{params.url}")
    schema = params.requested_schema
    if not schema.get("properties"):
        return await _confirm(context, params.message)
    answer = dict(await context.ask(params.message, _declinable(schema)))
    action: Any = "accept" if _ACTION in schema["properties"] else answer.pop(_ACTION, "accept")
    return ElicitResult(action=action, content=answer if action == "accept" else None)


def _declinable(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add a field to a form by which a human can decline. A human who declines may leave out the
    other fields.
    """
    if _ACTION in schema["properties"]:
        return schema
    no = {"properties": {_ACTION: {"enum": list(_ACTIONS[1:])}}, "required": [_ACTION]}
    fields = {**schema["properties"], _ACTION: {"type": "string", "enum": list(_ACTIONS)}}
    whole = {key: value for key, value in schema.items() if key != "required"}
    yes = {"required": list(schema.get("required", ()))}
    return {**whole, "properties": fields, "anyOf": [yes, no]}


async def _confirm(context: ToolContext, text: str) -> ElicitResult:
    """Ask a question without a form, which a human accepts or declines."""
    schema: Mapping[str, Any] = {"type": "string", "enum": list(_ACTIONS)}
    return ElicitResult(action=await context.ask(text, schema))


T = TypeVar("T")
_LARGEST = 10 * 1024 * 1024
_AS_JSON = 4
"""Limit of a message, as a multiple of the result's limit: a message has the result twice, as text
and as data, and JSON's escapes make it larger.
"""
_TOO_LARGE = "SSE stream failed"
_CLOSED = ("Connection closed", "SSE stream")
"""Beginnings of the SDK's messages with `CONNECTION_CLOSED`. Servers use this code for errors of
their own, too, because its value -32000 is the first that the protocol leaves to them.
"""
_KEY = "io.agentrt/idempotency-key"
_PAGES = 100
_LONGEST_NAME = 64
"""Maximum number of characters of a tool's name for models."""
_LISTED_WITHIN_S = 30.0


class McpTools(ToolTransport):
    """The transport to the tools of ``server``. A result may have at most ``largest`` characters.

    ``tell`` gets a line when the connection to the server cannot be opened, is lost or is restored,
    and when the server writes the first line to stdout that is not a message. If the server has no
    call in flight and does not list its tools within ``listed_within`` seconds, the connection is
    opened again, which restarts a server that is a command.
    """

    def __init__(
        self,
        server: Server,
        tell: Callable[[str], None],
        *,
        largest: int = _LARGEST,
        mode: Mode = "auto",
        listed_within: float = _LISTED_WITHIN_S,
    ) -> None:
        self.name = f"mcp:{server.name}"
        self._listed_within = listed_within
        self._calls = 0
        self._largest = largest
        self._elicitations = _Elicitations()
        self._connection = McpConnection(
            server, self._elicitations, tell, largest=_AS_JSON * largest, mode=mode
        )

    async def open(self) -> None:
        """Start connecting, without waiting for the connection."""
        self._connection.open()

    def drain(self) -> None:
        self._connection.drain()

    async def close(self) -> None:
        await self._connection.close()

    async def tools(self) -> Sequence[Tool]:
        server, within = self._connection.server.name, self._listed_within
        message = f"MCP server {server!r} cannot list its tools"
        client = await self._connection.client()
        try:
            async with asyncio.timeout(within):
                return self._as_tools(await self._ask(_listed))
        except TimeoutError as error:
            reason = f"it did not list its tools within {within:g} s"
            if self._calls == 0:  # a server that runs a call may be too busy to read
                self._connection.reset(client, reason)
            raise ToolUnavailableError(f"MCP server {server!r}: {reason}") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            wrong = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ToolUnavailableError(f"{message}: its list is not valid: {wrong}") from error
        except MCPError as error:
            raise ToolUnavailableError(f"{message}: {error}") from error

    async def _ask(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        """Run a request on the server. If the server has dropped the session, open a new session
        and run the request there.
        """
        client = await self._connection.client()
        try:
            return await ask(client)
        except MCPError as error:
            if error.code != FORGOTTEN:
                raise
            self._connection.reset(client)
            return await ask(await self._connection.client())
        except RuntimeError as error:  # the SDK's error for a closed client
            if not self._connection.is_over(client):
                raise
            raise MCPError(CONNECTION_CLOSED, "the connection was closed") from error

    def _as_tools(self, listed: Sequence[ListedTool]) -> list[Tool]:
        tools: dict[str, Tool] = {}
        remotes: set[str] = set()
        for tool in listed:
            if tool.name in remotes:  # some servers list a tool twice
                continue
            remotes.add(tool.name)
            usual = name = model_name(tool.name)
            numbers = count(2)
            while name in tools:  # names that differ only in characters that models cannot write
                ending = f"_{next(numbers)}"
                name = usual[: _LONGEST_NAME - len(ending)] + ending
            tools[name] = self._as_tool(name, tool)
        return list(tools.values())

    def _as_tool(self, name: str, listed: ListedTool) -> Tool:
        hints = listed.annotations or ToolAnnotations()
        return Tool(
            name,
            spec=ToolSpec(name, listed.description or listed.title or "", listed.input_schema),
            result_schema=listed.output_schema,
            options=ToolOptions(idempotent=bool(hints.idempotent_hint or hints.read_only_hint)),
            transport=self,
            remote=listed.name,
        )

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        call, tool = _McpCall(context, request.tenant), request.tool
        # The connection's tasks, also those that the SDK starts here, belong to no program.
        with tracking.outside(), self._elicitations.under_way(call), self._counted():
            result = await self._result(request, context)
            if result.is_error:
                if call.error is not None:
                    raise call.error
                await self._check_offered(tool, text_of(result.content))
        return value_of(result, tool.name, self._largest)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a call in flight during the ``with`` block."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    async def _result(self, request: ToolRequest, context: ToolContext) -> CallToolResult:
        name = request.tool.name
        try:
            return await self._ask(lambda client: _called(client, request, context))
        except MCPError as error:
            await self._failed(request.tool, error)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]["msg"]
            message = f"tool {name}: the result is not a valid MCP result: {wrong}"
            raise ToolResultError(message, name=name) from error
        except RuntimeError as error:  # the SDK checks results against the tools' schemas
            raise ToolResultError(f"tool {name}: {error}"[:500], name=name) from error

    async def _failed(self, tool: Tool, error: MCPError) -> NoReturn:
        """Raise the tool error that corresponds to an error of the protocol."""
        name, code = tool.name, error.code
        where = f"tool {name}: {self.name}"
        if code == UNREACHABLE:
            raise ToolUnavailableError(f"{where} cannot be reached: {error}", name=name) from error
        is_closed = code == CONNECTION_CLOSED and error.message.startswith(_CLOSED)
        if is_closed and error.message.startswith(_TOO_LARGE):
            raise ToolResultError(f"{where}: result too large: {error}", name=name) from error
        if code == CUT_OFF:  # the server may be alive
            message = f"{where}: the connection broke during the call: {error}"
            raise ToolLostError(message, name=name) from error
        if is_closed:
            raise ToolLostError(f"{where} died during the call: {error}", name=name) from error
        if code == INVALID_PARAMS:
            await self._check_offered(tool, error.message)
            raise ToolArgumentsError(f"{where}: invalid arguments: {error}", name=name) from error
        if code == PARSE_ERROR:
            raise ToolResultError(f"{where}: {error}", name=name) from error
        await self._check_offered(tool, error.message)
        raise ToolFailedError(f"tool {name} failed: {error}", name=name) from error

    async def _check_offered(self, tool: Tool, complaint: str) -> None:
        """Raise `UnknownToolError` if ``complaint`` names the tool, and the server no longer lists
        it.
        """
        if tool.remote not in complaint:
            return
        try:
            async with asyncio.timeout(self._listed_within):
                listed = await self._ask(partial(_listed, cache_mode="refresh"))
        except (MCPError, ValidationError, ToolError, TimeoutError):
            return  # the first error is more useful
        offered = [each.name for each in listed]
        if tool.remote not in offered:
            names = ", ".join(offered) or "none"
            message = f"{self.name} no longer has a tool {tool.remote!r}; available: {names}"
            raise UnknownToolError(message, name=tool.name)


async def _called(client: Client, request: ToolRequest, context: ToolContext) -> CallToolResult:
    """Call the tool, and pass on its progress. Raises the SDK's errors."""
    meta: Any = {_KEY: request.key}

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        context.progress(Progress(progress, total, message or ""))

    arguments = dict(request.arguments)
    return await client.call_tool(
        request.tool.remote, arguments, progress_callback=progressed, meta=meta
    )


async def _listed(client: Client, cache_mode: CacheMode = "use") -> list[ListedTool]:
    """List all tools of a server, page by page."""
    tools: list[ListedTool] = []
    cursor: str | None = None
    cursors: set[str] = set()
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode=cache_mode)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or cursor in cursors:  # else the server would list its tools for ever
            break
        cursors.add(cursor)
    return tools


# -- results -------------------------------------------------------------------------------


_AUDIO_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}


def value_of(result: CallToolResult, name: str, largest: int) -> Any:
    """Return the value of a result: its structured content, else its text, else a list of parts in
    OpenAI's form, such as images.

    Raises `ToolFailedError` if the result is an error, and `ToolResultError` if it has more than
    ``largest`` characters.
    """
    if (size := _size(result)) > largest:
        raise ToolResultError(
            f"tool {name}: the result has {size} characters; at most {largest} are allowed",
            name=name,
        )
    if result.is_error:
        message = text_of(result.content) or "the server gave no reason"
        raise ToolFailedError(f"tool {name} failed: {message}", name=name)
    if "structured_content" in result.model_fields_set and result.structured_content is not None:
        return result.structured_content
    parts = [_part(block) for block in result.content]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def text_of(content: list[ContentBlock]) -> str:
    """Return the text blocks of a result, joined by line breaks."""
    return "\n".join(block.text for block in content if isinstance(block, TextContent))


def _size(result: CallToolResult) -> int:
    """Return the number of characters of a result's blocks, or of its structured content as JSON,
    whichever is larger, because most servers send the same content in both forms.
    """
    size, content = sum(map(_length, result.content)), result.structured_content
    # Many servers wrap a text. It counts without this wrapping and without JSON's escapes.
    if content is None or content == {"result": text_of(result.content)}:
        return size
    return max(size, len(json.dumps(content, ensure_ascii=False, separators=(",", ":"))))


def _length(block: ContentBlock) -> int:
    match block:
        case TextContent(text=data) | ImageContent(data=data) | AudioContent(data=data):
            return len(data)
        case EmbeddedResource(resource=BlobResourceContents(blob=data)):
            return len(data)
        case EmbeddedResource(resource=TextResourceContents(text=data)):
            return len(data)
        case ResourceLink(uri=uri, description=description):
            return len(str(uri)) + len(description or "")
    return 0


def _part(block: ContentBlock) -> dict[str, Any]:
    match block:
        case TextContent(text=text):
            return {"type": "text", "text": text}
        case ImageContent(data=data, mime_type=mime) | AudioContent(data=data, mime_type=mime):
            return _binary(data, mime, "")
        case ResourceLink(uri=uri, description=description):
            return {"type": "text", "text": f"{uri} {description or ''}".strip()}
        case EmbeddedResource(resource=BlobResourceContents(blob=blob, mime_type=mime, uri=uri)):
            return _binary(blob, mime or "application/octet-stream", str(uri))
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return {"type": "text", "text": text}
    raise AssertionError(f"unknown content block of type {block.type}")


def _binary(data: str, mime: str, uri: str) -> dict[str, Any]:
    """Return the part of an image, a sound or a file, whose ``data`` is in base64."""
    kind, _, subtype = mime.partition("/")
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}
    if kind == "audio":
        sound = {"data": data, "format": _AUDIO_FORMATS.get(subtype, subtype)}
        return {"type": "input_audio", "input_audio": sound}
    name = uri.rpartition("/")[2] or "file"
    return {"type": "file", "file": {"filename": name, "file_data": f"data:{mime};base64,{data}"}}
