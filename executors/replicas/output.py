"""What a call has given so far, so that a retry on another engine gives only what is new."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk


class CallOutput:
    """Follows a call's output over its runs: sampling is seeded, so each repeats the one before.

    It is ``delivered`` with its last chunk. It ``differs`` where a run gave something else than
    what a reader already has.
    """

    def __init__(self, call_id: str) -> None:
        self.delivered = False
        self.differs = False
        self._call_id = call_id
        self._text = _Repeated("")
        self._tokens = _Repeated(())

    def restart(self) -> None:
        """The call runs from its beginning."""
        self._text.restart()
        self._tokens.restart()

    def take(self, chunk: Chunk) -> Chunk | None:
        """What of a chunk is new. Raises `EngineDiedError` if it is not what came before."""
        last, ids = chunk.reply is not None, _token_ids(chunk.output)
        text, tokens = self._text.take(chunk.text, last), self._tokens.take(ids, last)
        if text is None or tokens is None:
            self.differs = True
            raise EngineDiedError(
                f"the engine died in the middle of call {self._call_id}, and another gave a "
                "different text for what had been streamed already"
            )
        self.delivered = last
        if not text and not tokens and not last and (chunk.text or ids):
            return None
        if len(text) == len(chunk.text) and len(tokens) == len(ids):
            return chunk
        # Log probabilities of text given before were given, too.
        output = _cut(chunk.output, str(text), tokens)
        return replace(chunk, text=str(text), logprobs=(), output=output)


class _Repeated:
    """A sequence that comes in pieces, again from its beginning after each `restart`."""

    def __init__(self, empty: Sequence[Any]) -> None:
        self._given = empty
        self._known = empty

    def restart(self) -> None:
        self._known = self._given

    def take(self, piece: Sequence[Any], last: bool) -> Sequence[Any] | None:
        """What is new in ``piece``; None if it is not the same again."""
        known = piece[: len(self._known)]
        if self._known[: len(known)] != known or (last and len(known) < len(self._known)):
            return None
        self._known = self._known[len(known) :]
        new = piece[len(known) :]
        self._given = self._given + new  # type: ignore[operator]
        return new


def _token_ids(output: Any) -> tuple[int, ...]:
    """The token ids of vLLM's ``RequestOutput``; none where an executor takes requests."""
    choices = getattr(output, "outputs", None)
    return tuple(choices[0].token_ids) if choices else ()


def _cut(output: Any, text: str, tokens: Sequence[int]) -> Any:
    """The output with the end of its text and of its tokens only."""
    if isinstance(output, dict):
        choices = [_cut_choice(choice, text) for choice in output["choices"]]
        return {**output, "choices": choices}
    if output is None:
        return None
    cut, one = copy.copy(output), copy.copy(output.outputs[0])
    skipped = len(one.token_ids) - len(tokens)
    one.text, one.token_ids = text, list(tokens)
    if one.logprobs is not None:
        one.logprobs = one.logprobs[skipped:]
    cut.outputs = [one]
    return cut


def _cut_choice(choice: dict[str, Any], text: str) -> dict[str, Any]:
    delta = choice.get("delta")
    if not delta or delta.get("content") is None:
        return choice
    return {**choice, "delta": {**delta, "content": text}}
