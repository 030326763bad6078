"""Converts answers in OpenAI's form, whole or streamed, to replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrt.executors.chat_api import Answer
from agentrt.request import InvalidToolCall, Reply, TokenLogprob, ToolCall


def reply_of(answer: Answer, *, as_json: bool = False) -> Reply:
    """Return the reply of a ``chat.completion``. With ``as_json``, its text is parsed as JSON,
    unless the reply has tool calls.
    """
    replies = [_reply(choice, choice["message"], as_json) for choice in answer["choices"]]
    first = replies[0]
    return first if len(replies) == 1 else replace(first, choices=tuple(replies))


def _reply(choice: Mapping[str, Any], message: Mapping[str, Any], as_json: bool) -> Reply:
    text = message.get("content") or ""
    whole = choice.get("finish_reason") != "length"
    calls, invalid = _tool_calls(message.get("tool_calls") or (), whole=whole)
    return Reply(
        text=text,
        finish_reason=choice.get("finish_reason") or "stop",
        tool_calls=calls,
        invalid_tool_calls=invalid,
        parsed=_parsed(text) if as_json and not calls else None,
        token_ids=tuple(choice.get("token_ids") or ()),
        logprobs=logprobs_of(choice),
        reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
    )


def _tool_calls(
    tool_calls: Sequence[Mapping[str, Any]], *, whole: bool
) -> tuple[tuple[ToolCall, ...], tuple[InvalidToolCall, ...]]:
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for call in tool_calls:
        function, call_id = call["function"], call.get("id") or ""
        name, text = function.get("name") or "", function.get("arguments") or ""
        # An empty text stands for no arguments, unless the call was cut off before them.
        arguments = _parsed(text or "{}" if whole else text)
        if isinstance(arguments, dict):
            calls.append(ToolCall(name, arguments, call_id))
        else:
            invalid.append(InvalidToolCall(name, text, call_id))
    return tuple(calls), tuple(invalid)


def logprobs_of(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    """Return the log probabilities of a choice's tokens; empty if it has none."""
    content = (choice.get("logprobs") or {}).get("content") or ()
    return tuple(
        TokenLogprob(
            entry["token"],
            entry["logprob"],
            tuple((top["token"], top["logprob"]) for top in entry.get("top_logprobs") or ()),
        )
        for entry in content
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@dataclass(slots=True)
class StreamedAnswer:
    """Joins the chunks of a stream to a whole answer."""

    _choices: dict[int, _Choice] = field(default_factory=dict)

    def add(self, piece: Answer) -> None:
        """Add the next ``chat.completion.chunk``."""
        for choice in piece.get("choices") or ():
            index = choice.get("index", 0)
            self._choices.setdefault(index, _Choice(index)).add(choice)

    def answer(self) -> Answer:
        """Return the answer so far as a ``chat.completion``."""
        chosen = self._choices or {0: _Choice(0)}
        return {"choices": [chosen[index].whole() for index in sorted(chosen)]}


@dataclass(slots=True)
class _Choice:
    index: int
    text: str = ""
    reasoning: str = ""
    reason: str | None = None
    tools: dict[int, dict[str, str]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)

    def add(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        self.text += delta.get("content") or ""
        self.reasoning += delta.get("reasoning") or delta.get("reasoning_content") or ""
        self.reason = choice.get("finish_reason") or self.reason
        self.tokens += choice.get("token_ids") or ()
        self.logprobs += (choice.get("logprobs") or {}).get("content") or ()
        for call in delta.get("tool_calls") or ():
            self._add_call(call)

    def _add_call(self, call: Mapping[str, Any]) -> None:
        known = self.tools.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
        function = call.get("function") or {}
        known["id"] = known["id"] or call.get("id") or ""
        known["name"] = known["name"] or function.get("name") or ""
        known["arguments"] += function.get("arguments") or ""

    def whole(self) -> dict[str, Any]:
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for _, call in sorted(self.tools.items())
        ]
        return {
            "index": self.index,
            "finish_reason": self.reason,
            "message": {
                "role": "assistant",
                "content": self.text,
                "reasoning": self.reasoning,
                "tool_calls": calls,
            },
            "token_ids": self.tokens,
            "logprobs": {"content": self.logprobs} if self.logprobs else None,
        }
