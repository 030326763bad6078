"""An OpenAI-compatible endpoint as an executor: `agentrt serve`, `vllm serve`, or any other."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agentrt.errors import (
    CallRejectedError,
    ConfigError,
    EngineDiedError,
    EngineError,
    EngineStartError,
)
from agentrt.executors.base import Chunk, Progress
from agentrt.request import NO_LIMIT, Call, CallReport, CallSpec, Reply, ToolCall, ToolSpec

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_NO_KEY = "none"
"""The client insists on a key; a server without keys does not look at it."""


class OpenAIEndpoint:
    """An `Executor` that sends each call to ``base_url`` (``http://host:port/v1``).

    ``model`` None is the first that the endpoint has; `start` sets it. Tools and schemas go
    out in the API's own fields. Who asks is told in headers, percent-encoded:
    ``x-agentrt-program``, ``-type``, ``-tenant``, ``-session`` and ``-call``. A report knows
    tokens, and as service the time from the request to its end: no endpoint tells more.
    """

    native_tools = True

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        max_retries: int = 2,
    ) -> None:
        self.base_url = base_url
        self.model = model or ""
        self._api_key = api_key or _NO_KEY
        self._max_retries = max_retries
        self._client: AsyncOpenAI | None = None

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        try:
            from openai import AsyncOpenAI
        except ImportError as error:
            raise ConfigError(
                f"an endpoint needs the package openai ({error}); install agentrt[remote]"
            ) from error
        progress(f"asking {self.base_url} for its models")
        self._client = AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._api_key,
            max_retries=self._max_retries,
            timeout=None,  # whoever makes a call says how long it may take
        )
        self.model = _choose(self.base_url, self.model, await self._models())
        progress("ready")

    async def _models(self) -> list[str]:
        import openai

        try:
            return [model.id async for model in self._running().models.list()]
        except openai.APIConnectionError as error:
            raise EngineStartError(
                f"nothing answers at {self.base_url} ({_cause(error)}); start the server, or "
                "change base_url"
            ) from error
        except openai.APIStatusError as error:
            raise EngineStartError(
                f"{self.base_url} does not list its models: {_reason(error)}"
            ) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        import openai

        request = _request(call, self.model)
        answer = _Answer(call.spec.schema is not None)
        began = time.monotonic()
        try:
            if stream:
                async with contextlib.aclosing(self._pieces(request, answer)) as pieces:
                    async for piece in pieces:
                        yield Chunk(piece)
            else:
                answer.read(await self._running().chat.completions.create(**request))
        except openai.APIConnectionError as error:
            raise EngineDiedError(
                f"{self.base_url} was lost during call {call.call_id}: {_cause(error)}"
            ) from error
        except openai.APIStatusError as error:
            raise _refused(call, error) from error
        reply = answer.reply(time.monotonic() - began)
        yield Chunk("" if stream else reply.text, reply)

    async def _pieces(self, request: dict[str, Any], answer: _Answer) -> AsyncGenerator[str, None]:
        events = await self._running().chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        async with contextlib.aclosing(events):  # closing it ends the request
            async for event in events:
                if piece := answer.add(event):
                    yield piece

    def _running(self) -> AsyncOpenAI:
        if self._client is None:
            raise EngineDiedError(f"the connection to {self.base_url} is not open")
        return self._client

    # -- control -----------------------------------------------------------------------

    async def aborted(self, call_id: str) -> CallReport:
        return CallReport()

    async def end_program(self, program_id: str) -> None:
        """The endpoint learns of programs from the calls' headers alone."""

    async def snapshot(self) -> Mapping[str, Any]:
        return {}


@dataclass(slots=True)
class _Answer:
    """What came back so far. ``has_schema`` says that the text is JSON."""

    has_schema: bool
    text: str = ""
    finish_reason: str = "stop"
    names: dict[int, str] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    usage: Any = None

    def read(self, completion: Any) -> None:
        """Take over a whole answer."""
        choice = completion.choices[0]
        self.text = choice.message.content or ""
        self.finish_reason = choice.finish_reason
        self.usage = completion.usage
        for index, call in enumerate(choice.message.tool_calls or ()):
            self._add_call(index, call.function)

    def add(self, event: Any) -> str:
        """Take over an event of a stream; returns its text."""
        self.usage = event.usage or self.usage
        if not event.choices:
            return ""
        choice = event.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        for call in choice.delta.tool_calls or ():
            self._add_call(call.index, call.function)
        piece: str = choice.delta.content or ""
        self.text += piece
        return piece

    def _add_call(self, index: int, function: Any) -> None:
        self.names[index] = self.names.get(index) or function.name
        self.arguments[index] = self.arguments.get(index, "") + (function.arguments or "")

    def reply(self, seconds: float) -> Reply:
        calls = tuple(self._calls())
        return Reply(
            text=self.text,
            finish_reason="length" if self.finish_reason == "length" else "stop",
            tool_calls=calls,
            parsed=_parsed(self.text) if self.has_schema and not calls else None,
            report=self._report(seconds),
        )

    def _calls(self) -> list[ToolCall]:
        """The calls whose arguments are whole. One that was cut off cannot be made."""
        values = {index: _parsed(text or "{}") for index, text in self.arguments.items()}
        return [
            ToolCall(self.names[index], value)
            for index, value in values.items()
            if isinstance(value, dict)
        ]

    def _report(self, seconds: float) -> CallReport:
        if self.usage is None:
            return CallReport(service_s=seconds)
        details = getattr(self.usage, "prompt_tokens_details", None)
        return CallReport(
            service_s=seconds,
            prompt_tokens=self.usage.prompt_tokens,
            output_tokens=self.usage.completion_tokens or 0,
            cached_tokens=getattr(details, "cached_tokens", None) or 0,
        )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


# -- requests ------------------------------------------------------------------------------


def _request(call: Call, model: str) -> dict[str, Any]:
    spec = call.spec
    if spec.messages is None:
        raise CallRejectedError(f"call {call.call_id}: an endpoint takes chats, not raw prompts")
    request: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in spec.messages],
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "extra_headers": _headers(call),
    }
    if spec.max_tokens != NO_LIMIT:
        request["max_tokens"] = spec.max_tokens
    if spec.seed is not None:
        request["seed"] = spec.seed
    if spec.stop:
        request["stop"] = list(spec.stop)
    if spec.frequency_penalty:
        request["frequency_penalty"] = spec.frequency_penalty
    if spec.presence_penalty:
        request["presence_penalty"] = spec.presence_penalty
    if spec.ignore_eos:
        request["extra_body"] = {"ignore_eos": True}
    return request | _form(spec)


def _form(spec: CallSpec) -> dict[str, Any]:
    form: dict[str, Any] = {}
    if spec.schema is not None:
        json_schema = {"name": "output", "schema": dict(spec.schema), "strict": True}
        form["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    if spec.tools:
        form["tools"] = [_tool(tool) for tool in spec.tools]
        choice: Any = spec.tool_choice
        if choice not in ("auto", "required", "none"):
            choice = {"type": "function", "function": {"name": choice}}
        form["tool_choice"] = choice
    return form


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    if _may_be_strict(tool.parameters):
        function["strict"] = True
    return {"type": "function", "function": function}


def _may_be_strict(schema: Mapping[str, Any]) -> bool:
    """OpenAI holds a call to its schema only if asked, and only where every name is required."""
    properties = schema.get("properties", {})
    return schema.get("additionalProperties") is False and set(properties) == set(
        schema.get("required", ())
    )


def _headers(call: Call) -> dict[str, str]:
    headers = {
        "x-agentrt-program": call.program_id,
        "x-agentrt-type": call.program_type,
        "x-agentrt-tenant": call.tenant,
        "x-agentrt-call": call.call_id,
    }
    if call.session is not None:
        headers["x-agentrt-session"] = call.session
    # Names are the user's, and a header is one line of ASCII.
    return {name: quote(value, safe="/:@ ") for name, value in headers.items()}


# -- errors --------------------------------------------------------------------------------


def _choose(base_url: str, model: str, served: list[str]) -> str:
    if model in served:
        return model
    names = ", ".join(served) or "no model at all"
    if model:
        raise ConfigError(f"{base_url} does not serve model {model!r}; it serves {names}")
    if not served:
        raise EngineStartError(f"{base_url} serves {names}")
    return served[0]


def _refused(call: Call, error: Any) -> EngineError:
    text = f"call {call.call_id}: {_reason(error)}"
    return CallRejectedError(text) if error.status_code < 500 else EngineError(text)


def _reason(error: Any) -> str:
    body = error.body if isinstance(error.body, Mapping) else {}
    return f"{body.get('message') or error.message} (status {error.status_code})"


def _cause(error: Exception) -> str:
    return str(error.__cause__ or error)
