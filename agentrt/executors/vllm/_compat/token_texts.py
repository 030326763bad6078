"""Splits a stream's pieces into the text of each token, and joins what is read of them.

Most of vLLM's parsers are written for one token at a time. An engine's output of several tokens
arrives at once where the machine is busy or the reader is slow, and such a parser then loses what
it should have read of the single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaToolCall
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer, IncrementalDetokenizer

_CONTEXT = 32
"""Tokens of the prompt that a tokenizer needs to decode the first ones of the output."""


class TokenTexts:
    """The texts of an output's tokens, as the engine would have sent them one at a time."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int] | None, request: Any) -> None:
        self._tokenizer = tokenizer
        self._prompt = list(prompt or ())[-_CONTEXT:]
        self._request = request
        self._waiting: list[int] = []
        self._decoder: Any = None
        self._decoded = 0
        self._delivered = 0

    def split(self, text: str, ids: list[int]) -> list[tuple[str, list[int]]]:
        """Return the pieces of ``text`` by its tokens ``ids``. Only joined tokens are decoded."""
        if len(ids) < 2:
            self._waiting += ids
            self._delivered += len(text)
            return [(text, ids)]
        held_back = self._decode_waiting()
        pieces, at = [], 0
        for token in ids[:-1]:
            self._decode(token)
            end = max(at, min(self._decoded - held_back - self._delivered, len(text)))
            pieces.append((text[at:end], [token]))
            at = end
        self._waiting = ids[-1:]
        self._delivered += len(text)
        return [*pieces, (text[at:], ids[-1:])]

    def _decode_waiting(self) -> int:
        """Decode the tokens that came singly. Return how many characters the engine holds back."""
        request = self._request
        stops = getattr(request, "stop", None) or ()
        if getattr(request, "include_stop_str_in_output", False):
            stops = ()
        if self._decoder is None:
            params = SamplingParams(
                skip_special_tokens=getattr(request, "skip_special_tokens", True),
                spaces_between_special_tokens=getattr(
                    request, "spaces_between_special_tokens", True
                ),
            )
            new = SimpleNamespace(
                request_id="", prompt_token_ids=self._prompt, sampling_params=params
            )
            self._decoder = IncrementalDetokenizer.from_new_request(self._tokenizer, new)
        for token in self._waiting:
            self._decode(token)
        lengths = map(len, [stops] if isinstance(stops, str) else stops)
        return max(lengths, default=1) - 1

    def _decode(self, token: int) -> None:
        decoder = self._decoder
        if isinstance(decoder, BaseIncrementalDetokenizer):
            decoder.token_ids.append(token)
            self._decoded += len(decoder.decode_next(token))


class Joined:
    """What a parser reads of several tokens, as one ``delta``."""

    def __init__(self) -> None:
        self.delta: Any = None

    def add(self, delta: Any) -> None:
        """Add what the parser reads of the next token."""
        if delta is None:
            return
        if self.delta is None:
            self.delta = delta
            return
        joined = self.delta
        if delta.reasoning:
            joined.reasoning = (joined.reasoning or "") + delta.reasoning
        if delta.content:
            joined.content = (joined.content or "") + delta.content
        if delta.tool_calls:
            joined.tool_calls = _together([*joined.tool_calls, *delta.tool_calls])


def _together(calls: Sequence[DeltaToolCall]) -> list[DeltaToolCall]:
    """Return the pieces of calls with those of the same call in one."""
    joined: list[DeltaToolCall] = []
    for call in calls:
        last = joined[-1] if joined else None
        if last is None or last.index != call.index or not last.function or not call.function:
            joined.append(call)
            continue
        last.id, last.type = last.id or call.id, last.type or call.type
        if call.function.name:
            last.function.name = (last.function.name or "") + call.function.name
        if call.function.arguments is not None:
            last.function.arguments = (last.function.arguments or "") + call.function.arguments
    return joined


