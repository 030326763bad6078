"""What a scripted engine's model puts out, token by token, in OpenAI's form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentrt.executors.replies import StreamedAnswer
from agentrt.request import ToolCall


@dataclass(frozen=True, slots=True)
class Output:
    """What a model puts out: its thoughts, its answer, and the tools that it calls."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of a choice: of its reasoning, its text, or a tool call's arguments."""

    choice: int
    text: str = ""
    reasoning: str = ""
    call: tuple[int, str | None, str | None, str] | None = None
    top_logprobs: int | None = None

    def delta(self) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if self.text:
            delta["content"] = self.text
        if self.reasoning:
            delta["reasoning"] = self.reasoning
        if self.call is not None:
            delta["tool_calls"] = [_call_delta(*self.call)]
        chunk = {"index": self.choice, "delta": delta, "finish_reason": None}
        if self.top_logprobs is not None and self.text:
            chunk["logprobs"] = {"content": [_logprob(self.text, self.top_logprobs)]}
        return chunk


def _logprob(token: str, most: int) -> dict[str, Any]:
    """Every token is certain, and the others are not."""
    others = [(f" other{n}", -9.0 - n) for n in range(1, most)]
    top = [(token, 0.0), *others] if most else []
    ranked = [{"token": text, "logprob": value, "bytes": None} for text, value in top]
    return {"token": token, "logprob": 0.0, "bytes": None, "top_logprobs": ranked}


def _call_delta(index: int, call_id: str | None, name: str | None, arguments: str) -> Any:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    head = {} if call_id is None else {"id": call_id, "type": "function"}
    return {"index": index, **head, "function": function}


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice: its pieces, and whether they are all."""

    choice: int
    pieces: list[Piece]
    is_whole: bool

    @property
    def reason(self) -> str:
        if not self.is_whole:
            return "length"
        return "tool_calls" if any(piece.call for piece in self.pieces) else "stop"

    def end(self) -> dict[str, Any]:
        """The last chunk's choice."""
        return {"index": self.choice, "delta": {}, "finish_reason": self.reason}

    def whole(self) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        built = StreamedAnswer()
        for piece in self.pieces:
            built.add({"choices": [{**piece.delta(), "index": 0}]})
        choice: dict[str, Any] = built.answer()["choices"][0]
        return {**choice, "index": self.choice, "finish_reason": self.reason}


def pieces_of(choice: int, output: Output, call_id: str) -> Iterator[Piece]:
    """The tokens of one choice of a call."""
    for token in tokens_of(output.reasoning) if output.reasoning else ():
        yield Piece(choice, reasoning=token)
    for token in tokens_of(output.text) if output.text or not output.tool_calls else ():
        yield Piece(choice, text=token)
    for index, call in enumerate(output.tool_calls):
        own = call.id or f"call-{call_id}-{choice}-{index}"
        first, *more = tokens_of(json.dumps(call.arguments, ensure_ascii=False))
        yield Piece(choice, call=(index, own, call.name, first))
        for token in more:
            yield Piece(choice, call=(index, None, None, token))


def tokens_of(text: str) -> list[str]:
    """Pieces that joined are the text again; at least one, as an engine makes."""
    return re.findall(r"\s*\S{1,4}|\s+$", text) or [text]
