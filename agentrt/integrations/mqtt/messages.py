"""The messages of docs/mqtt.md: JSON objects of bounded size, which are validated when read."""

from __future__ import annotations

import json
import math
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
    text_of,
)
from agentrt.graph import Progress
from agentrt.interrupts import Tool, ToolOptions
from agentrt.request import ToolSpec

MAX_BYTES = 1 << 20
"""Maximum size of a message that is sent or read, in bytes."""
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


class _MessagePart(BaseModel):
    """An object in a message. Unknown fields are ignored, so that later versions can add fields."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class OfferedTool(_MessagePart):
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
        """Return the description by which a worker announces a tool."""
        assert tool.spec is not None
        options, timeout = tool.options, tool.options.timeout
        return cls(
            name=tool.name,
            description=tool.spec.description,
            parameters=dict(tool.spec.parameters),
            result=None if tool.result_schema is None else dict(tool.result_schema),
            timeout=None if timeout == math.inf else timeout,
            retries=options.retries,
            concurrency=options.concurrency,
            idempotent=options.idempotent,
        )

    def tool(self) -> Tool:
        """Return the tool for callers, without the concurrency limit, which workers enforce."""
        options = ToolOptions(self.timeout, self.retries, idempotent=self.idempotent)
        spec = ToolSpec(self.name, self.description, self.parameters)
        return Tool(self.name, spec=spec, result_schema=self.result, options=options)


class Announcement(_MessagePart):
    """A worker's announcement of the tools that it offers."""

    tools: tuple[OfferedTool, ...]
    concurrency: int = Field(1, ge=1)
    draining: bool = False


class CallMessage(_MessagePart):
    """A call of a tool. All attempts have the same ``key``. Clients and workers that have only MQTT
    3 use ``reply_to`` and ``id`` in place of MQTT 5's response topic and correlation data.
    """

    tool: str
    key: str = Field(min_length=1, max_length=256)
    arguments: dict[str, Any]
    attempt: int = Field(1, ge=1)
    program: str = ""
    tenant: str = "default"
    reply_to: str = ""
    id: str = ""


class Cancel(_MessagePart):
    """The cancellation of a call. ``id`` is that of the `CallMessage`, or its correlation data."""

    key: str
    attempt: int = 1
    id: str = ""


class Failure(_MessagePart):
    """The reason why a call has no result."""

    kind: Literal[
        "failed", "unknown", "arguments", "result", "unavailable", "lost", "expired", "closed"
    ]
    message: str
    type: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Describe an error for the caller."""
        kinds = (kind for kind, error_type in _ERRORS.items() if isinstance(error, error_type))
        kind = next(kinds, "failed")
        own_type = error.type if isinstance(error, ToolFailedError) else ""
        type_name = own_type or type(error).__name__
        message = text_of(error)[:_LONGEST_ERROR]
        return cls(kind=kind, type=type_name, message=message)  # type: ignore[arg-type]

    def error(self, tool: str) -> ToolError:
        """Return the failure as the error that the calling program gets."""
        if self.kind in _ERRORS:
            return _ERRORS[self.kind](self.message, name=tool)
        reason = f"{self.type}: {self.message}" if self.type else self.message
        return ToolFailedError(f"tool {tool} failed: {reason}", name=tool, type=self.type)


class ToolQuestion(_MessagePart):
    """A question that a running tool asks a human. The answer must fit the schema; without a schema
    it is text.
    """

    id: str = Field(min_length=1, max_length=256)
    text: str = ""
    form: dict[str, Any] | None = Field(default=None, alias="schema")


class ToolAnswer(_MessagePart):
    """A human's answer to a tool's question, or the reason why there is none."""

    question: str
    answer: Any = None
    error: Failure | None = None


class ReplyMessage(_MessagePart):
    """A worker's reply to a call: the state of the call, its result, or a question."""

    state: Literal["accepted", "progress", "asks", "withdrawn", "done", "failed"]
    worker: str
    id: str = ""
    result: Any = None
    error: Failure | None = None
    progress: Progress | None = None
    question: ToolQuestion | None = None


class AnswerMessage(_MessagePart):
    """An answer to an open question. ``reply_to`` and ``id`` are as in a `CallMessage`."""

    answer: Any
    reply_to: str = ""
    id: str = ""


class AnswerOutcome(_MessagePart):
    """The reply to an answer: whether it was accepted."""

    state: Literal["answered", "refused"]
    id: str | None = None
    why: str | None = None


M = TypeVar("M", bound=_MessagePart)


def encode(part: _MessagePart) -> bytes:
    """Encode a message. Raises `ValueError` if JSON cannot represent it, or if it is too large."""
    try:
        body = part.model_dump(exclude_none=True, by_alias=True)
        payload = _ENCODER.encode(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"JSON cannot represent the message: {error}") from error
    _check_size(payload)
    return payload


def decode(kind: type[M], payload: object) -> M:
    """Decode a message of the class ``kind``. Raises `ValueError` if the message is invalid or too
    large.
    """
    if not isinstance(payload, bytes | bytearray):
        raise ValueError("the message is empty")
    _check_size(payload)
    try:
        body = _DECODER.decode(payload.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the message is not JSON: {error}") from error
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the message"
        raise ValueError(f"{where}: {first['msg']}") from error


def _check_size(payload: bytes | bytearray) -> None:
    if len(payload) > MAX_BYTES:
        raise ValueError(
            f"the message has {len(payload):,} bytes; at most {MAX_BYTES:,} are allowed"
        )


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


# Created once, because json.dumps and json.loads would create them for each message.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
