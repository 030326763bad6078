"""The text of an output as its tokens come, up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PART = "\ufffd"
"""What a tokenizer gives for bytes that are only a part of a character."""


class OutputText:
    """Turns tokens into pieces of text. What may become a stop string is held back.

    ``stopped`` is true once a stop string was there; the text ends before it. A text that is
    wanted as a ``whole``, without stop strings, comes at its end.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], *, whole: bool = False) -> None:
        self.stopped = False
        self._whole = whole
        self._tokenizer = tokenizer
        self._stops = [stop for stop in stops if stop]
        self._ids: list[int] = []
        self._from = self._told = 0
        self._held = ""

    def add(self, token: int) -> str:
        """One more token: the piece of text that is certain now."""
        self._ids.append(token)
        if self._whole:
            return ""
        before, now = self._decode(self._from, self._told), self._decode(self._from)
        if now.endswith(_PART):
            return ""
        self._from, self._told = self._told, len(self._ids)
        return self._certain(now[len(before) :])

    def end(self) -> str:
        """There are no more tokens: what was still held back."""
        if self.stopped:
            return ""
        before, now = self._decode(self._from, self._told), self._decode(self._from)
        return self._held + now[len(before) :]

    def _certain(self, piece: str) -> str:
        self._held += piece
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._held[: min(found)]
        longest = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        size = len(self._held) - longest
        certain, self._held = self._held[:size], self._held[size:]
        return certain

    def _decode(self, start: int, end: int | None = None) -> str:
        text: str = self._tokenizer.decode(
            self._ids[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``stop``."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
