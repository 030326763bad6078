"""What a call has given so far, so that a retry on another engine gives only what is new."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk

S = TypeVar("S", bound=Sequence[Any])


class DiffersError(Exception):
    """A sequence is not the same again."""


class Repeated:
    """One sequence: what of it was given, and how far it has come again."""

    def __init__(self) -> None:
        self._given: Sequence[Any] | None = None
        self._at = 0

    def restart(self) -> None:
        """It comes from its beginning."""
        self._at = 0

    def take(self, piece: S) -> S:
        """What is new in the next ``piece``. Raises `DiffersError` if it is not the same again."""
        if self._given is None:
            self._given = piece[:0]
        known = self._given[self._at : self._at + len(piece)]
        if piece[: len(known)] != known:
            raise DiffersError
        self._at += len(piece)
        new = piece[len(known) :]
        self._given = self._given + new  # type: ignore[operator]
        return new  # type: ignore[return-value]

    @property
    def ended_early(self) -> bool:
        """Whether it has not come again as far as it was given."""
        return self._given is not None and self._at < len(self._given)


class RepeatedParts:
    """Several such sequences, each by a key, and things that come once."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, Repeated] = {}
        self._once: set[Hashable] = set()

    def restart(self) -> None:
        """All come from their beginnings."""
        for part in self._parts.values():
            part.restart()

    def take(self, key: Hashable, piece: S) -> S:
        """As `Repeated.take`, of the sequence with this key."""
        return self._parts.setdefault(key, Repeated()).take(piece)

    def first(self, key: Hashable) -> bool:
        """True the first time that this is asked, over all runs."""
        new = key not in self._once
        self._once.add(key)
        return new

    @property
    def ended_early(self) -> bool:
        """Whether one has not come again as far as it was given."""
        return any(part.ended_early for part in self._parts.values())


def new_choice(choice: Mapping[str, Any], parts: RepeatedParts) -> dict[str, Any]:
    """What is new of a choice in a stream's chunk, in OpenAI's form. A whole message is new."""
    if "delta" not in choice:
        return dict(choice)
    index, delta = choice.get("index", 0), dict(choice["delta"] or {})
    for name, value in list(delta.items()):
        if name == "tool_calls":
            delta[name] = list(_new_calls(index, value or (), parts))
        elif name == "role" and not parts.first((index, name)):
            delta[name] = None
        elif isinstance(value, str) and name != "role":
            delta[name] = parts.take((index, name), value)
        if value and not delta[name]:
            del delta[name]
    cut = {**choice, "delta": delta}
    entries = (choice.get("logprobs") or {}).get("content")
    if entries:
        tokens = parts.take((index, "logprobs"), tuple(entry["token"] for entry in entries))
        cut["logprobs"] = {**choice["logprobs"], "content": entries[len(entries) - len(tokens) :]}
    return cut


def _new_calls(
    index: int, calls: Sequence[Mapping[str, Any]], parts: RepeatedParts
) -> Iterator[Mapping[str, Any]]:
    """Calls have ids that are drawn anew in each run: the first ones stay."""
    for call in calls:
        key, function = (index, "tool_calls", call.get("index", 0)), call.get("function") or {}
        arguments = parts.take(key, function.get("arguments") or "")
        if parts.first(key):
            yield {**call, "function": {**function, "arguments": arguments}}
        elif arguments:
            yield {"index": call.get("index", 0), "function": {"arguments": arguments}}


_Piece = tuple[str, str, tuple[int, ...]]
"""Of a chunk with vLLM's ``RequestOutput``: its text, and that and the token ids of the output."""


class CallOutput:
    """Follows a call's output over its runs: sampling is seeded, so each repeats the one before,
    though not in the same pieces.

    It is ``delivered`` with its last chunk. It ``differs`` where a run gave something else than
    what a reader already has.
    """

    def __init__(self, call_id: str) -> None:
        self.delivered = False
        self.differs = False
        self._call_id = call_id
        self._parts = RepeatedParts()
        self._is_vllms = False
        self._first: list[Chunk | _Piece] | None = []
        """What the first run gave, not looked at yet: most calls have no second one."""

    def restart(self) -> None:
        """The call runs from its beginning again."""
        first, self._first = self._first or (), None
        for one in first:
            self._new(one if isinstance(one, Chunk) else _chunk(one))
        self._parts.restart()

    def take(self, chunk: Chunk) -> Chunk | None:
        """What of a chunk is new. Raises `EngineDiedError` if it is not what came before."""
        if self._first is None:
            return self._new(chunk)
        if chunk.reply is not None:
            self.delivered = True
            return chunk
        if not self._first:  # the others are of its kind
            self._is_vllms = isinstance(getattr(chunk.output, "outputs", None), list)
        if self._is_vllms:
            # Without what is large, such as log probabilities.
            one = chunk.output.outputs[0]
            self._first.append((chunk.text, one.text, chunk.token_ids or tuple(one.token_ids)))
        else:
            self._first.append(chunk)
        return chunk

    def _new(self, chunk: Chunk) -> Chunk | None:
        last = chunk.reply is not None
        try:
            text = self._parts.take("text", chunk.text)
            output = self._new_output(chunk.output, text)
            ids = self._new_ids(chunk, output)
            if last and self._parts.ended_early:
                raise DiffersError
        except DiffersError:
            self.differs = True
            raise EngineDiedError(
                f"the engine died in the middle of call {self._call_id}, and another gave "
                "something else than what had been streamed already"
            ) from None
        self.delivered |= last
        if output is chunk.output and text == chunk.text and ids == chunk.token_ids:
            return chunk
        if output is None and not (text or ids or last):
            return None
        return replace(chunk, text=text, output=output, token_ids=ids)

    def _new_output(self, output: Any, text: str) -> Any:
        """What of an output is new, the same object where all of it is; None for nothing."""
        if isinstance(output, Mapping):
            return self._new_answer(output)
        if isinstance(getattr(output, "outputs", None), list):
            return self._new_tokens(output, text)
        return output  # none, or of a pooling model, which gives it at once

    def _new_ids(self, chunk: Chunk, output: Any) -> tuple[int, ...]:
        """What is new of a chunk's tokens, when ``output`` is."""
        if chunk.token_ids and isinstance(getattr(chunk.output, "outputs", None), list):
            return () if output is None else tuple(output.outputs[0].token_ids)
        return self._parts.take("ids", chunk.token_ids)

    def _new_answer(self, answer: Mapping[str, Any]) -> Any:
        """Of an answer in OpenAI's form."""
        given = answer.get("choices") or []
        choices = [new_choice(choice, self._parts) for choice in given]
        if choices == given:
            return answer
        kept = [c for c in choices if any(c["delta"].values()) or c.get("finish_reason")]
        return {**answer, "choices": kept} if kept or answer.get("usage") else None

    def _new_tokens(self, output: Any, text: str) -> Any:
        """Of vLLM's ``RequestOutput``, whose new text is known."""
        one = output.outputs[0]
        tokens = self._parts.take("tokens", tuple(one.token_ids))
        skipped = len(one.token_ids) - len(tokens)
        if not skipped and text == one.text:
            return output
        if not (tokens or text or output.finished):
            return None
        cut, one = copy.copy(output), copy.copy(one)
        one.text, one.token_ids = text, list(tokens)
        if one.logprobs is not None:
            one.logprobs = one.logprobs[skipped:]
        cut.outputs = [one]
        if cut.prompt_logprobs is not None:
            cut.prompt_logprobs = []  # they came with the first piece, as vLLM streams them
        return cut


def _chunk(piece: _Piece) -> Chunk:
    """A chunk as vLLM gave it, as far as it comes again."""
    text, own, tokens = piece
    one = SimpleNamespace(text=own, token_ids=tokens)
    return Chunk(text, output=SimpleNamespace(outputs=[one], finished=False))
