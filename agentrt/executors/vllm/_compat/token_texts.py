"""Splits a stream's pieces into the text of each token, and joins the deltas that are read from
these texts.

Most of vLLM's parsers are written for one token at a time. When the machine is busy or the client
reads slowly, several tokens arrive at once, and such a parser loses parts of the output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaToolCall
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer, IncrementalDetokenizer

_CONTEXT = 32
"""How many of the prompt's last tokens are needed to decode the first tokens of the output."""


class TokenTexts:
    """Splits the text of an output into the texts of its tokens.

    ``undecoded`` are tokens that were read without being split; they are decoded when the text of a
    later token is needed.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int] | None, request: Any) -> None:
        self._tokenizer = tokenizer
        self._prompt = list(prompt or ())[-_CONTEXT:]
        self._request = request
        self.undecoded: list[int] = []
        self._decoder: Any = None
        self._text = ""
        self._waiting: deque[tuple[int, int]] = deque()

    def split(self, text: str, ids: list[int]) -> list[tuple[str, list[int]]]:
        """Split ``text`` into the texts of the tokens ``ids``, each with its token.

        The last token gets all remaining text.
        """
        pieces, at = [], 0
        for token in ids[:-1]:
            end = at + self._length(token)
            pieces.append((text[at:end], [token]))
            at = end
        self.undecoded += ids[-1:]
        return [*pieces, (text[at:], ids[-1:])]

    def in_time(self, text: str, ids: list[int], *, finished: bool) -> list[tuple[str, list[int]]]:
        """Add new text and tokens, and return each token whose text has arrived, with its text.

        With stop strings, an engine holds the last characters back, so tokens arrive before their
        text. If the output is ``finished``, all remaining tokens and text are returned.
        """
        self._text += text
        self._waiting += [(token, self._length(token)) for token in ids]
        pieces: list[tuple[str, list[int]]] = []
        while self._waiting and (finished or self._waiting[0][1] <= len(self._text)):
            token, length = self._waiting.popleft()
            pieces.append((self._text[:length], [token]))
            self._text = self._text[length:]
        if finished and (self._text or not pieces):
            pieces.append((self._text, []))
        return pieces

    def _length(self, token: int) -> int:
        """Return how many characters ``token`` adds to the text of the tokens before it."""
        if self._decoder is None:
            self._decoder = self._new_decoder()
        for earlier in self.undecoded:
            self._decode(earlier)
        self.undecoded.clear()
        return self._decode(token)

    def _new_decoder(self) -> Any:
        request = self._request
        params = SamplingParams(
            skip_special_tokens=getattr(request, "skip_special_tokens", True),
            spaces_between_special_tokens=getattr(request, "spaces_between_special_tokens", True),
        )
        new: Any = SimpleNamespace(
            request_id="", prompt_token_ids=self._prompt, sampling_params=params
        )
        return IncrementalDetokenizer.from_new_request(self._tokenizer, new)

    def _decode(self, token: int) -> int:
        decoder = self._decoder
        if not isinstance(decoder, BaseIncrementalDetokenizer):
            return 0
        decoder.token_ids.append(token)
        return len(decoder.decode_next(token))


class Joined:
    """The deltas that a parser returns for several tokens, joined into one ``delta``."""

    def __init__(self) -> None:
        self.delta: Any = None

    def add(self, delta: Any) -> None:
        """Add the parser's delta for the next token, or None."""
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
            joined.tool_calls = together([*joined.tool_calls, *delta.tool_calls])


def together(calls: Sequence[DeltaToolCall]) -> list[DeltaToolCall]:
    """Join successive pieces that belong to the same call, and return the resulting pieces."""
    joined: list[DeltaToolCall] = []
    for call in calls:
        last = joined[-1] if joined else None
        if last is None or last.index != call.index or not last.function or not call.function:
            joined.append(call)
            continue
        if call.id is not None:  # vLLM sends each field that was set, even if to None
            last.id, last.type = call.id, call.type
        if call.function.name:
            last.function.name = (last.function.name or "") + call.function.name
        if call.function.arguments is not None:
            last.function.arguments = (last.function.arguments or "") + call.function.arguments
    return joined
