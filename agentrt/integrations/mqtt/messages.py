"""The messages of docs/mqtt.md: JSON objects of bounded size, checked, never unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
from agentrt.interrupts import Tool, ToolOptions
from agentrt.request import ToolSpec

MAX_BYTES = 1 << 20
"""The largest message that is sent or read."""
_LONGEST_ERROR = 4000
_ERRORS: Mapping[str, type[ToolError]] = {
    "unknown": UnknownToolError,
    "arguments": ToolArgumentsError,
    "result": ToolResultError,
    "unavailable": ToolUnavailableError,
    "lost": ToolLostError,
    "expired": InterruptExpiredError,
    "closed": QuestionClosedError,
}


class _Part(BaseModel):
    """An object in a message. What else is in it is ignored, for versions to come."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class OfferedTool(_Part):
    """A tool that a worker offers: its description for models, and its options."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.:@-]{1,128}$")
    description: str = ""
    parameters: dict[str, Any]
    result: dict[str, Any] | None = None
    timeout: float | None = Field(None, gt=0)
    retries: int = Field(0, ge=0)
    concurrency: int | None = Field(None, ge=1)
    idempotent: bool = False

    @classmethod
    def of(cls, tool: Tool) -> Self:
        """The tool as a worker announces it."""
        assert tool.spec is not None
        options = tool.options
        return cls(
            name=tool.name,
            description=tool.spec.description,
            parameters=dict(tool.spec.parameters),
            result=None if tool.result_schema is None else dict(tool.result_schema),
            timeout=options.timeout,
            retries=options.retries,
            concurrency=options.concurrency,
            idempotent=options.idempotent,
        )

    def tool(self) -> Tool:
        """The tool as it is called. Workers keep to its concurrency by themselves."""
        options = ToolOptions(self.timeout, self.retries, idempotent=self.idempotent)
        spec = ToolSpec(self.name, self.description, self.parameters)
        return Tool(self.name, spec=spec, result_schema=self.result, options=options)


class Announcement(_Part):
    """What a worker offers."""

    tools: tuple[OfferedTool, ...]
    concurrency: int = Field(1, ge=1)
    draining: bool = False


class Request(_Part):
    """A call. ``key`` is the same for all attempts; ``reply_to`` and ``id`` stand for the
    response topic and the correlation data where a client or worker has MQTT 3 alone.
    """

    tool: str
    key: str = Field(min_length=1, max_length=256)
    arguments: dict[str, Any]
    attempt: int = Field(1, ge=1)
    program: str = ""
    tenant: str = "default"
    reply_to: str = ""
    id: str = ""


class Cancel(_Part):
    """A call whose result nobody wants any more."""

    key: str
    attempt: int = 1


class Failure(_Part):
    """Why a call has no result."""

    kind: Literal[
        "failed", "unknown", "arguments", "result", "unavailable", "lost", "expired", "closed"
    ]
    message: str
    type: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """What went wrong, for whoever called."""
        kind = next((kind for kind, one in _ERRORS.items() if isinstance(error, one)), "failed")
        type_name = getattr(error, "type", "") or type(error).__name__
        return cls(kind=kind, type=type_name, message=str(error)[:_LONGEST_ERROR])  # type: ignore[arg-type]

    def error(self, tool: str) -> ToolError:
        """The same as an error of the program."""
        if self.kind in _ERRORS:
            return _ERRORS[self.kind](self.message, name=tool)
        what = f"{self.type}: {self.message}" if self.type else self.message
        return ToolFailedError(f"tool {tool} failed: {what}", name=tool, type=self.type)


class ToolQuestion(_Part):
    """What a tool asks a human while it runs; an answer fits its schema, or is a text."""

    id: str = Field(min_length=1, max_length=256)
    text: str = ""
    form: dict[str, Any] | None = Field(default=None, alias="schema")


class ToolAnswer(_Part):
    """What a human answered to a tool's question, or why nobody did."""

    question: str
    answer: Any = None
    error: Failure | None = None


class Reply(_Part):
    """What a worker says of a call."""

    state: Literal["accepted", "progress", "asks", "withdrawn", "done", "failed"]
    worker: str
    id: str = ""
    result: Any = None
    error: Failure | None = None
    progress: Progress | None = None
    question: ToolQuestion | None = None


class AnswerMessage(_Part):
    """What somebody answers to a question; ``reply_to`` and ``id`` are as in a `Request`."""

    answer: Any
    reply_to: str = ""
    id: str = ""


class Taken(_Part):
    """What became of an answer."""

    state: Literal["answered", "refused"]
    id: str | None = None
    why: str | None = None


M = TypeVar("M", bound=_Part)


def encode(part: _Part) -> bytes:
    """A message. Raises `ValueError` for what JSON cannot carry, or is too large."""
    try:
        body = part.model_dump(exclude_none=True, by_alias=True)
        payload = _ENCODER.encode(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"JSON cannot carry it: {error}") from error
    if len(payload) > MAX_BYTES:
        raise ValueError(f"it has {len(payload):,} bytes, and {MAX_BYTES:,} are the limit")
    return payload


def decode(kind: type[M], payload: object) -> M:
    """What a message says. Raises `ValueError` for one that does not fit."""
    if not isinstance(payload, bytes | bytearray):
        raise ValueError("it is empty")
    if len(payload) > MAX_BYTES:
        raise ValueError(f"it has {len(payload):,} bytes, and {MAX_BYTES:,} are the limit")
    try:
        body = _DECODER.decode(payload.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from error
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the message"
        raise ValueError(f"{where}: {first['msg']}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


# json.dumps and json.loads would make them anew for each message.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
