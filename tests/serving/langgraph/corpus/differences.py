"""Differences between the recorded answers of a reference and those of another server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from tests.serving.langgraph.corpus.recorder import Answer

_ID = re.compile(r"<\d+>")
_ABSENT = object()


class Difference(NamedTuple):
    """A place in an answer. ``asked`` is the request, after its scenario."""

    asked: str
    where: str
    reference: str
    here: str


def differences(scenario: str, recorded: list[Answer], found: list[Answer]) -> list[Difference]:
    """All differences of one scenario's answers."""
    every: list[Difference] = []
    asked, asked_here = (
        [f"{scenario} {_path(one)}" for one in answers] for answers in (recorded, found)
    )
    pairing = _Pairing()
    for kind, i, i_end, j, j_end in SequenceMatcher(None, asked, asked_here, False).get_opcodes():
        if kind != "equal":
            every += [Difference(one, "request", "asked", "not asked") for one in asked[i:i_end]]
            every += [
                Difference(one, "request", "not asked", "asked") for one in asked_here[j:j_end]
            ]
            continue
        for n in range(i_end - i):
            for where, one, other in pairing.between(recorded[i + n], found[j + n]):
                every.append(Difference(asked[i + n], where, _short(one), _short(other)))
    return every


class _Pairing:
    """Compares, and remembers which id here is which of the reference's."""

    def __init__(self) -> None:
        self._ours: dict[str, str] = {}
        self._theirs: dict[str, str] = {}

    def between(self, theirs: Answer, ours: Answer) -> Iterator[tuple[str, Any, Any]]:
        """Return the places where two answers differ."""
        if theirs["status"] != ours["status"]:
            yield "status", theirs["status"], ours["status"]
        else:
            yield from self._between("", theirs, ours)

    def _between(self, where: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
        if isinstance(one, dict) and isinstance(other, dict):
            other = {self._as_theirs(key): value for key, value in other.items()}
            for key in sorted(one.keys() | other.keys()):
                inner = f"{where}.{_ID.sub('<>', key)}" if where else key
                yield from self._between(inner, one.get(key, _ABSENT), other.get(key, _ABSENT))
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            for a, b in zip(one, other, strict=True):
                yield from self._between(f"{where}[]", a, b)
        elif isinstance(one, str) and isinstance(other, str):
            if not self._same(one, other):
                yield where, one, other
        elif one != other or type(one) is not type(other):
            yield where, one, other

    def _as_theirs(self, text: str) -> str:
        return _ID.sub(lambda found: self._theirs.get(found[0], found[0]), text)

    def _same(self, one: str, other: str) -> bool:
        if _ID.sub("<>", one) != _ID.sub("<>", other):
            return False
        return all(
            self._ours.setdefault(a, b) == b and self._theirs.setdefault(b, a) == a
            for a, b in zip(_ID.findall(one), _ID.findall(other), strict=True)
        )


def _path(answer: Answer) -> str:
    return _ID.sub("{id}", answer["asked"])


def _short(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value)
