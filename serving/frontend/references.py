"""References of JSON schemas that come back to themselves without a value between: pure.

No text can meet such a schema. A grammar is made of it all the same, under which a model can say
nothing, so that its call fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_DEEPEST = 16
"""References and alternatives on the way to a type: more are taken for a circle."""
_ANY = ("anyOf", "oneOf")


def circle_in(schema: Any) -> str | None:
    """A reference in ``schema`` that leads to itself alone, if there is one."""
    endless = {id(one): one for one in _objects(schema) if _refers(one)}
    if not any("$ref" in one for one in endless.values()):
        return None
    for _ in range(_DEEPEST):
        ending = [key for key, one in endless.items() if _ends(schema, one, endless)]
        if not ending:
            break
        for key in ending:
            del endless[key]
    return next((str(one["$ref"]) for one in endless.values() if "$ref" in one), None)


def _refers(schema: dict[str, Any]) -> bool:
    """Whether the schema is what others are, and so may have no type of its own."""
    return "$ref" in schema or "anyOf" in schema or "oneOf" in schema or "allOf" in schema


def _ends(root: Any, schema: dict[str, Any], endless: Mapping[int, Any]) -> bool:
    """Whether the schema comes to a type, as far as is known."""
    if "$ref" in schema:
        return id(_target(root, schema["$ref"])) not in endless
    for name in _ANY:
        several = schema.get(name)
        if isinstance(several, list) and several:
            return any(id(one) not in endless for one in several)
    every = schema.get("allOf")
    return not isinstance(every, list) or all(id(one) not in endless for one in every)


def _target(root: Any, reference: Any) -> Any:
    """What a reference within the schema names; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdigit() and int(name[:9]) < len(found):
            found = found[int(name[:9])]
        elif isinstance(found, dict):
            found = found.get(name)
        else:
            return None
    return found


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += one.values()
        elif isinstance(one, list):
            left += one
