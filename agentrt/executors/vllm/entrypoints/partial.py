"""Reads an output in the tool form (`tool_form`): while it is streamed, whole, or cut off.

A call that was cut off is never read as part of the answer's text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_ANSWER = re.compile(r'\s*\{\s*"answer"\s*:\s*(?=\S)')
_CALL = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\S)')
_ANSWER_BEGINS, _CALL_BEGINS = '{"answer":', '{"name":'
# Complete characters of a JSON string: never a part of an escape or of a surrogate pair.
_CHARACTERS = re.compile(
    r'(?:[^"\\]'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r"|\\[^u])*"
)
_MAYBE_THE_END = re.compile(r"[\s}]*\Z")


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call.

    The first piece has the tool's ``name``. ``arguments`` is a part of JSON text; all pieces
    together are the whole text.
    """

    name: str | None
    arguments: str


class _InsideCall(Enum):
    HEAD = "head"
    TEXT = "text"  # the answer, a JSON string
    VALUE = "value"  # the answer, any other JSON value
    ARGUMENTS = "arguments"
    DONE = "done"


class OutputReader:
    """A reader that turns an output's pieces into pieces of the answer's text (`str`) or of a tool
    call.
    """

    def __init__(self) -> None:
        self._inside = _InsideCall.HEAD
        self._whole = ""
        self._rest = ""

    def feed(self, piece: str) -> Iterator[str | CallPart]:
        """Take the next piece of the output, and yield the parts that no later piece can change."""
        self._whole += piece
        self._rest += piece
        if self._inside is _InsideCall.HEAD:
            yield from self._head()
        if self._inside is _InsideCall.TEXT:
            yield from self._text()
        elif self._inside in (_InsideCall.VALUE, _InsideCall.ARGUMENTS):
            end = _MAYBE_THE_END.search(self._rest)
            assert end is not None
            yield from self._json(end.start())

    def finish(self) -> Iterator[str | CallPart]:
        """End the output, complete or cut off, and yield the parts that were held back."""
        if self._inside in (_InsideCall.VALUE, _InsideCall.ARGUMENTS):
            # In a complete output, the last brace closes the form, and not the value in it.
            yield from self._json(self._rest.rfind("}") if self._is_whole() else len(self._rest))
        elif self._inside is _InsideCall.HEAD and self._rest and not self._is_begun():
            yield self._rest
        self._inside, self._rest = _InsideCall.DONE, ""

    def _is_whole(self) -> bool:
        try:
            json.loads(self._whole)
        except (ValueError, RecursionError):
            return False
        return True

    def _is_begun(self) -> bool:
        """Return whether the output was cut off in the beginning of the form: before the value of
        an answer, or before the arguments of a call.
        """
        begun = "".join(self._rest.split())
        called = begun.startswith(_CALL_BEGINS) and not self._is_whole()
        return called or any(head.startswith(begun) for head in (_ANSWER_BEGINS, _CALL_BEGINS))

    def _head(self) -> Iterator[CallPart]:
        call, answer = _CALL.match(self._rest), _ANSWER.match(self._rest)
        if call is not None:
            self._rest = self._rest[call.end() :]
            self._inside = _InsideCall.ARGUMENTS
            yield CallPart(json.loads(call[1]), "")
        elif answer is not None:
            self._rest = self._rest[answer.end() :]
            self._inside = _InsideCall.VALUE
            if self._rest.startswith('"'):
                self._rest = self._rest[1:]
                self._inside = _InsideCall.TEXT

    def _text(self) -> Iterator[str]:
        sure = _CHARACTERS.match(self._rest)
        assert sure is not None
        self._rest = self._rest[sure.end() :]
        if self._rest.startswith('"'):
            self._inside = _InsideCall.DONE
        if sure[0]:
            yield json.loads(f'"{sure[0]}"', strict=False)

    def _json(self, end: int) -> Iterator[str | CallPart]:
        piece, self._rest = self._rest[:end], self._rest[end:]
        if piece:
            yield CallPart(None, piece) if self._inside is _InsideCall.ARGUMENTS else piece


def read(text: str) -> tuple[str, CallPart | None]:
    """Return the answer's text and the tool call (or None) of an output, which may be cut off."""
    reader = OutputReader()
    parts = [*reader.feed(text), *reader.finish()]
    calls = [part for part in parts if isinstance(part, CallPart)]
    answer = "".join(part for part in parts if isinstance(part, str))
    if not calls:
        return answer, None
    return answer, CallPart(calls[0].name, "".join(call.arguments for call in calls))
