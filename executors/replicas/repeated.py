"""Sequences that come in pieces, again from the beginning when what gives them starts over."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

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
