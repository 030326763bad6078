"""Replies in the shapes of OpenAI's API, whole and as the events of a stream: pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from agentrt.executors.partial import CallPart, OutputReader, read_cut_off
from agentrt.request import CallReport, Reply, TokenLogprob
from agentrt.serving.openai.calls import Piece


@dataclass(frozen=True, slots=True)
class Head:
    """What all parts of an answer say alike.

    ``in_form`` says that text and tool calls are one JSON output, as `toolcalls` has it.
    """

    id: str
    created: int
    model: str
    kind: str
    in_form: bool = False

    def event(self, choices: Sequence[Any], **more: Any) -> dict[str, Any]:
        """An object of the answer."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            **more,
        }


def usage_of(reports: Sequence[CallReport], prompts: int = 1) -> dict[str, Any]:
    """The tokens of a request. Its choices share ``prompts`` prompts, each counted once."""
    each = max(1, len(reports) // prompts)
    asked = sum(report.prompt_tokens for report in reports[::each])
    # A call that is computed again after a preemption finds its own prompt cached.
    cached = sum(min(report.cached_tokens, report.prompt_tokens) for report in reports[::each])
    made = sum(report.output_tokens for report in reports)
    return {
        "prompt_tokens": asked,
        "completion_tokens": made,
        "total_tokens": asked + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


# -- chats ---------------------------------------------------------------------------------


def chat_message(reply: Reply, *, in_form: bool) -> dict[str, Any]:
    """A reply as the assistant's message."""
    calls = [(call.name, _json(call.arguments)) for call in reply.tool_calls]
    text: str | None = reply.text
    if in_form and not calls and reply.parsed is None:
        text, cut = read_cut_off(reply.text)
        calls = [(cut.name or "", cut.arguments)] if cut is not None else []
    if calls and in_form:
        text = None
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["content"] = text or None
        message["tool_calls"] = [_tool_call(*call) for call in calls]
    return message


def chat_answer(head: Head, replies: Sequence[Reply], asked: bool) -> dict[str, Any]:
    """The whole answer; ``asked`` says that the request wanted log probabilities."""
    choices = []
    for index, reply in enumerate(replies):
        message = chat_message(reply, in_form=head.in_form)
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": {"content": _chat_logprobs(reply.logprobs), "refusal": None}
                if asked
                else None,
                "finish_reason": _finish(reply),
            }
        )
    return head.event(choices, usage=usage_of([reply.report for reply in replies]))


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.tool_calls else reply.finish_reason


def _tool_call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}


@dataclass(slots=True)
class ChatEvents:
    """Makes a stream's events of a request's pieces."""

    head: Head
    asked: bool
    with_usage: bool
    readers: dict[int, OutputReader] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)

    def of(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """The events of a piece."""
        index, chunk = piece
        if index not in self.readers:
            self.readers[index] = OutputReader()
            yield self._event(index, {"role": "assistant", "content": ""})
        yield from (self._event(index, *one) for one in self._deltas(piece))
        if chunk.reply is not None:
            self.replies[index] = chunk.reply
            yield self._event(index, {}, None, _finish(chunk.reply))

    def last(self) -> Iterator[dict[str, Any]]:
        """What follows when all choices have ended."""
        if self.with_usage:
            reports = [self.replies[index].report for index in sorted(self.replies)]
            yield self.head.event([], usage=usage_of(reports))

    def _deltas(self, piece: Piece) -> Iterator[tuple[dict[str, Any], Any]]:
        index, chunk = piece
        logprobs = None
        if self.asked and chunk.logprobs:
            logprobs = {"content": _chat_logprobs(chunk.logprobs), "refusal": None}
        if not self.head.in_form:
            if chunk.text or logprobs:
                yield {"content": chunk.text}, logprobs
            if chunk.reply is not None and chunk.reply.tool_calls:
                calls = [
                    {"index": at, **_tool_call(call.name, _json(call.arguments))}
                    for at, call in enumerate(chunk.reply.tool_calls)
                ]
                yield {"tool_calls": calls}, None
            return
        reader = self.readers[index]
        for part in [*reader.feed(chunk.text), *(reader.finish() if chunk.reply else ())]:
            yield _delta(part), None

    def _event(
        self, index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self.head.event([choice], **({"usage": None} if self.with_usage else {}))


def _delta(part: str | CallPart) -> dict[str, Any]:
    if isinstance(part, str):
        return {"content": part}
    if part.name is None:
        return {"tool_calls": [{"index": 0, "function": {"arguments": part.arguments}}]}
    return {"tool_calls": [{"index": 0, **_tool_call(part.name, part.arguments)}]}


def _chat_logprobs(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {
            **_token(one.token, one.logprob),
            "top_logprobs": [_token(token, logprob) for token, logprob in one.top],
        }
        for one in logprobs
    ]


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": _finite(logprob), "bytes": list(token.encode())}


def _finite(logprob: float) -> float:
    """JSON has no infinity; what is out of the question is as OpenAI says it."""
    return max(logprob, -9999.0)


def _json(value: Any) -> str:
    """As an output has it that is held to a schema: a stream of it gives the same text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# -- completions ---------------------------------------------------------------------------


def completion_answer(head: Head, replies: Sequence[Reply], prompts: int) -> dict[str, Any]:
    """The whole answer."""
    choices = [
        _text_choice(index, reply.text, reply.logprobs, 0, reply.finish_reason)
        for index, reply in enumerate(replies)
    ]
    return head.event(choices, usage=usage_of([reply.report for reply in replies], prompts))


@dataclass(slots=True)
class CompletionEvents:
    """Makes a stream's events of a request's pieces."""

    head: Head
    prompts: int
    with_usage: bool
    lengths: dict[int, int] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)

    def of(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """The events of a piece."""
        index, chunk = piece
        before = self.lengths.get(index, 0)
        self.lengths[index] = before + len(chunk.text)
        finish = None
        if chunk.reply is not None:
            self.replies[index] = chunk.reply
            finish = chunk.reply.finish_reason
        if chunk.text or chunk.logprobs or finish:
            choice = _text_choice(index, chunk.text, chunk.logprobs, before, finish)
            yield self.head.event([choice], **({"usage": None} if self.with_usage else {}))

    def last(self) -> Iterator[dict[str, Any]]:
        """What follows when all choices have ended."""
        if self.with_usage:
            reports = [self.replies[index].report for index in sorted(self.replies)]
            yield self.head.event([], usage=usage_of(reports, self.prompts))


def _text_choice(
    index: int, text: str, logprobs: Sequence[TokenLogprob], at: int, finish: str | None
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": _text_logprobs(logprobs, at) if logprobs else None,
        "finish_reason": finish,
    }


def _text_logprobs(logprobs: Sequence[TokenLogprob], at: int) -> dict[str, Any]:
    offsets: list[int] = []
    for one in logprobs:
        offsets.append(at)
        at += len(one.token)
    return {
        "tokens": [one.token for one in logprobs],
        "token_logprobs": [_finite(one.logprob) for one in logprobs],
        "top_logprobs": [{token: _finite(p) for token, p in one.top} for one in logprobs],
        "text_offset": offsets,
    }
