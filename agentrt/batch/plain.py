"""Converting the results of programs to JSON that people can read. Every value can be converted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from agentrt.request.text import ReadsAsText

_MOST_BITS = 4096
_DEEPEST = 100
_MOST_TIMES = 10
"""Maximum number of times that a part that contains itself is written. Without a limit, each path
to the part would write it again.
"""


def tidy(value: Any, *, replies_as_text: bool = False) -> Any:
    """Convert a value, and everything inside it, to values that `json.dumps` can write.

    The keys of all mappings become texts. Values of other classes become their fields or their
    text; with ``replies_as_text``, a model's reply becomes its text. Parts that contain themselves
    or are nested too deeply are replaced by ``…``. Whole numbers of more than 4096 bits become
    hexadecimal text.
    """
    return _Tidying(replies_as_text).plain(value, ())


class _Tidying:
    """The conversion of one value. ``_circular`` has the parts that contain themselves, by id, and
    how often each was written since this was seen.
    """

    def __init__(self, replies_as_text: bool) -> None:
        self._replies_as_text = replies_as_text
        self._circular: dict[int, tuple[Any, int]] = {}

    def plain(self, value: Any, around: tuple[int, ...]) -> Any:
        """Convert a value. ``around`` has the ids of the values that contain it."""
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            return hex(value)  # Python refuses to write very large numbers in decimal
        if value is None or isinstance(value, str | int | float):
            return value
        if self._is_left_out(value, around):
            return "…"
        if self._replies_as_text and isinstance(value, ReadsAsText):
            return value.text
        within = partial(self.plain, around=(*around, id(value)))
        try:
            plain = value if isinstance(value, Mapping | list | tuple) else _plain(value)
            if isinstance(plain, Mapping):
                return {_text(key): within(item) for key, item in plain.items()}
            if isinstance(plain, list | tuple):
                return [within(item) for item in plain]
            return within(plain)
        except Exception:  # the code of its class may raise any error
            return _text(value)

    def _is_left_out(self, value: Any, around: tuple[int, ...]) -> bool:
        key = id(value)
        if key in around:
            self._circular.setdefault(key, (value, 0))  # kept, so that no other value gets its id
            return True
        if key in self._circular:
            _, times = self._circular[key]
            self._circular[key] = value, times + 1
            if times >= _MOST_TIMES:
                return True
        return len(around) > _DEEPEST


def as_json(value: Any, *, replies_as_text: bool = True) -> str:
    """Return any value as one line of standard JSON, with NaN and infinity as texts. The arguments
    are those of `tidy`.
    """
    plain = tidy(value, replies_as_text=replies_as_text)
    try:
        return json.dumps(plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(plain), parse_constant=str), ensure_ascii=False)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__qualname__}>"


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)
