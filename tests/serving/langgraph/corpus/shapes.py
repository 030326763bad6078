"""What of an answer is compared: its keys, its values' types, its short values, which ids agree.

Ids become numbers in the order of a scenario, times and texts for people become
``<time>`` and ``<text>``. So two servers' answers are equal where a client could not tell them
apart.
"""

from __future__ import annotations

import json
import re
from typing import Any

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_FOR_PEOPLE = {"detail", "message", "description", "traceback"}
"""Keys of texts that each server words as it likes."""
_OF_THE_SERVER = re.compile(r"langgraph_(api_url|api_version|auth_.*|host|plan|request_id|version)")
"""Keys of metadata with which a server says what it is. They are left out."""
_OPAQUE = {"kwargs", "lc_versions"}
"""Objects that each server makes in its own way, or by what is installed."""
_LONGEST = 60


class Shapes:
    """The shapes of one scenario's answers."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, value: Any, key: str = "") -> Any:
        """The shape of a JSON value that is at ``key`` of an object."""
        match value:
            case dict() if key in _OPAQUE:
                return f"<{key}>"
            case dict():
                kept = sorted(k for k in value if not _OF_THE_SERVER.fullmatch(k))
                return {self.named(k): self.of(value[k], k) for k in kept}
            case list():
                return [self.of(one, key) for one in value]
            case str():
                return self.text(value, key)
            case float():
                return "<number>"
        return value

    def text(self, value: str, key: str) -> str:
        """The shape of a text."""
        if _TIME.fullmatch(value):
            return "<time>"
        if key.endswith("version"):
            return "<version>"
        named = self.named(value)
        if key in _FOR_PEOPLE or len(named) > _LONGEST:
            return "<text>"
        return named

    def named(self, value: str) -> str:
        """A text with names for its ids."""
        for ids in (_UUID, _DIGEST):
            value = ids.sub(self._name, value)
        return value

    def _name(self, found: re.Match[str]) -> str:
        return self._names.setdefault(found[0], f"<{len(self._names) + 1}>")


def events_of(body: str) -> list[tuple[str, Any]]:
    """The events of a stream: their names and their data. Comments are left out."""
    found = []
    for block in re.split(r"\r?\n\r?\n", body):
        lines = [line.partition(":") for line in block.splitlines()]
        fields = [(name, value.removeprefix(" ")) for name, _, value in lines if name]
        data = "\n".join(value for name, value in fields if name == "data")
        names = [value for name, value in fields if name == "event"]
        if names or data:
            found.append((names[0] if names else "", json.loads(data) if data else None))
    return found
