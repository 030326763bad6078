"""Tracks the output of a call, so that a retry on another engine yields only the new part."""

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
    """Raised when a retry's output differs from the output of the run before it."""


class Repeated:
    """A sequence that arrives in pieces, and may arrive again from its beginning."""

    def __init__(self) -> None:
        self._delivered: Sequence[Any] | None = None
        self._at = 0

    def restart(self) -> None:
        """Expect the sequence from its beginning again."""
        self._at = 0

    def take(self, piece: S) -> S:
        """Take the next ``piece``, and return the part of it that was not delivered before.

        Raises `DiffersError` if the piece is not the same as before.
        """
        if self._delivered is None:
            self._delivered = piece[:0]
        known = self._delivered[self._at : self._at + len(piece)]
        if piece[: len(known)] != known:
            raise DiffersError
        self._at += len(piece)
        new = piece[len(known) :]
        self._delivered = self._delivered + new  # type: ignore[operator]
        return new  # type: ignore[return-value]

    @property
    def ended_early(self) -> bool:
        """Whether the current run has yielded less of the sequence than earlier runs delivered."""
        return self._delivered is not None and self._at < len(self._delivered)


class RepeatedParts:
    """Several `Repeated` sequences by key, and keys of values that are delivered only once."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, Repeated] = {}
        self._once: set[Hashable] = set()

    def restart(self) -> None:
        """Expect all sequences from their beginnings again."""
        for part in self._parts.values():
            part.restart()

    def take(self, key: Hashable, piece: S) -> S:
        """Take the next ``piece`` of the sequence with this key, and return the part of the piece
        that was not delivered before. Raises `DiffersError` like `Repeated.take`.
        """
        return self._parts.setdefault(key, Repeated()).take(piece)

    def first(self, key: Hashable) -> bool:
        """Return True the first time that this is called with ``key``, over all runs."""
        new = key not in self._once
        self._once.add(key)
        return new

    @property
    def ended_early(self) -> bool:
        """Whether the current run has yielded less of any sequence than earlier runs delivered."""
        return any(part.ended_early for part in self._parts.values())


def new_choice(choice: Mapping[str, Any], parts: RepeatedParts) -> dict[str, Any]:
    """Return the new part of a choice in a chunk of OpenAI's form.

    A choice with a whole message is returned unchanged.
    """
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
    """Yield the new parts of tool calls.

    Each run creates new ids for the tool calls; a reader keeps the ids of the first run.
    """
    for call in calls:
        key, function = (index, "tool_calls", call.get("index", 0)), call.get("function") or {}
        arguments = parts.take(key, function.get("arguments") or "")
        if parts.first(key):
            yield {**call, "function": {**function, "arguments": arguments}}
        elif arguments:
            yield {"index": call.get("index", 0), "function": {"arguments": arguments}}


_Piece = tuple[str, str, tuple[int, ...]]
"""A chunk with vLLM's ``RequestOutput``: the chunk's text, the output's text and its token ids."""


class CallOutput:
    """The output of a call over all its runs.

    Sampling is seeded, so each run repeats the output of the run before it, although in other
    pieces. ``delivered`` is True when the last chunk was delivered. ``differs`` is True when a
    run's output differs from the output that a reader already has.
    """

    def __init__(self, call_id: str) -> None:
        self.delivered = False
        self.differs = False
        self._call_id = call_id
        self._parts = RepeatedParts()
        self._is_vllms = False
        self._first: list[Chunk | _Piece] | None = []
        """The pieces of the first run, unprocessed, since most calls need no second run."""

    def restart(self) -> None:
        """Expect the output from its beginning again."""
        first, self._first = self._first or (), None
        for piece in first:
            self._new(piece if isinstance(piece, Chunk) else _chunk(piece))
        self._parts.restart()

    def take(self, chunk: Chunk) -> Chunk | None:
        """Return the new part of a chunk; None if nothing of it is new.

        Raises `EngineDiedError` if a repeated run of the call has another output than the run
        before it.
        """
        if self._first is None:
            return self._new(chunk)
        if chunk.reply is not None:
            self.delivered = True
            return chunk
        if not self._first:  # all chunks of a call are of the same kind
            self._is_vllms = isinstance(getattr(chunk.output, "outputs", None), list)
        if self._is_vllms:
            # Large values, such as log probabilities, are not kept.
            completion = chunk.output.outputs[0]
            ids = chunk.token_ids or tuple(completion.token_ids)
            self._first.append((chunk.text, completion.text, ids))
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
                f"the engine died during call {self._call_id}, and another engine's output differs "
                "from the part that was streamed already; make the call again"
            ) from None
        self.delivered |= last
        if output is chunk.output and text == chunk.text and ids == chunk.token_ids:
            return chunk
        if output is None and not (text or ids or last):
            return None
        logprobs = chunk.logprobs[len(chunk.token_ids) - len(ids) :]
        return replace(chunk, text=text, output=output, token_ids=ids, logprobs=logprobs)

    def _new_output(self, output: Any, text: str) -> Any:
        """Return the new part of an output: the output itself if all is new, None if nothing is."""
        if isinstance(output, Mapping):
            return self._new_answer(output)
        if isinstance(getattr(output, "outputs", None), list):
            return self._new_tokens(output, text)
        return output  # None, or the only output of a pooling model

    def _new_ids(self, chunk: Chunk, output: Any) -> tuple[int, ...]:
        """Return the new token ids of a chunk. ``output`` is the new part of its output."""
        if chunk.token_ids and isinstance(getattr(chunk.output, "outputs", None), list):
            return () if output is None else tuple(output.outputs[0].token_ids)
        return self._parts.take("ids", chunk.token_ids)

    def _new_answer(self, answer: Mapping[str, Any]) -> Any:
        """Return the new part of an answer in OpenAI's form."""
        answered = answer.get("choices") or []
        choices = [new_choice(choice, self._parts) for choice in answered]
        if choices == answered:
            return answer
        kept = [c for c in choices if any(c["delta"].values()) or c.get("finish_reason")]
        return {**answer, "choices": kept} if kept or answer.get("usage") else None

    def _new_tokens(self, output: Any, text: str) -> Any:
        """Return the new part of vLLM's ``RequestOutput``, whose new text is ``text``."""
        completion = output.outputs[0]
        tokens = self._parts.take("tokens", tuple(completion.token_ids))
        skipped = len(completion.token_ids) - len(tokens)
        if not skipped and text == completion.text:
            return output
        if not (tokens or text or output.finished):
            return None
        cut, completion = copy.copy(output), copy.copy(completion)
        completion.text, completion.token_ids = text, list(tokens)
        if completion.logprobs is not None:
            completion.logprobs = completion.logprobs[skipped:]
        cut.outputs = [completion]
        if cut.prompt_logprobs is not None:
            cut.prompt_logprobs = []  # vLLM sends them with the first piece
        return cut


def _chunk(piece: _Piece) -> Chunk:
    """Return the chunk of a stored piece, with the parts of vLLM's output that a retry repeats."""
    text, own_text, tokens = piece
    completion = SimpleNamespace(text=own_text, token_ids=tokens)
    return Chunk(text, output=SimpleNamespace(outputs=[completion], finished=False))
