"""Calls and replies in the shape of OpenAI's chat completions: pure, for `openai`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrt.errors import CallRejectedError
from agentrt.executors.identity import to_headers
from agentrt.request import NO_LIMIT, Call, CallReport, CallSpec, Reply, ToolCall, ToolSpec


def request_of(call: Call, model: str) -> dict[str, Any]:
    """The request for a call. Raises `CallRejectedError` for one that is no chat."""
    spec = call.spec
    if spec.messages is None:
        raise CallRejectedError(f"call {call.call_id}: an endpoint takes chats, not raw prompts")
    request: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in spec.messages],
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "extra_headers": to_headers(call.identity),
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


@dataclass(slots=True)
class Answer:
    """What came back so far. ``has_schema`` says that the text is JSON."""

    has_schema: bool
    text: str = ""
    finish_reason: str = "stop"
    names: dict[int, str] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    usage: Any = None

    def read(self, completion: Any) -> None:
        """Take over a whole answer."""
        choice = completion.choices[0]
        self.text = choice.message.content or ""
        self.finish_reason = choice.finish_reason
        self.usage = completion.usage
        for index, call in enumerate(choice.message.tool_calls or ()):
            self._add_call(index, call)

    def add(self, event: Any) -> str:
        """Take over an event of a stream; returns its text."""
        self.usage = event.usage or self.usage
        if not event.choices:
            return ""
        choice = event.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        for call in choice.delta.tool_calls or ():
            self._add_call(call.index, call)
        piece: str = choice.delta.content or ""
        self.text += piece
        return piece

    def _add_call(self, index: int, call: Any) -> None:
        self.ids[index] = self.ids.get(index) or call.id
        self.names[index] = self.names.get(index) or call.function.name
        self.arguments[index] = self.arguments.get(index, "") + (call.function.arguments or "")

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
            ToolCall(self.names[index], value, self.ids[index] or f"call_{index}")
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
