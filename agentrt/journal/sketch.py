"""The requests of nodes as JSON, and their differences. Requests are compared by this JSON, and are
shown to people. They are never converted back to the values of the program.

A resumed program gets a recorded answer only if its request has the recorded fingerprint. So the
form of this JSON must never change. This is why it is separate from the form of answers
(`agentrt.journal.codec`).
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import sys
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from math import isfinite
from typing import Any

import orjson

from agentrt.journal.classes import name_of, recorded_name

_KIND = "$"
_DEEPEST = 200
DIGEST_BYTES = 16
"""The size of a fingerprint in bytes."""
_LOADED = "agentrt_program_"
"""The prefix of the module name of a loaded file whose own name was already the name of another
module.
"""


_STEADY = (int, float, decimal.Decimal, uuid.UUID, datetime.timedelta)
Substitute = Callable[[Any], Any]


def _itself(value: Any) -> Any:
    return value


class _UnclearError(Exception):
    """The error for a value that cannot be written as text, so that only the name of its type is
    shown.
    """


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _sorted(value: Any) -> list[Any]:
    # Sort the items, so that equal sets have equal texts in all processes.
    return sorted(value, key=repr)


def _delta(value: datetime.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


_TEXTS: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("bytes", _bytes),
    datetime.datetime: ("datetime", str),
    datetime.date: ("date", str),
    datetime.time: ("time", str),
    datetime.timedelta: ("timedelta", _delta),
    uuid.UUID: ("uuid", str),
    decimal.Decimal: ("decimal", str),
    pathlib.PosixPath: ("path", str),
    float: ("float", repr),
    tuple: ("tuple", list),
    set: ("set", _sorted),
    frozenset: ("frozenset", _sorted),
}


def shown(value: Any, substitute: Substitute = _itself) -> str:
    """Return a value as JSON text that is compared and shown to people.

    A tuple becomes a list, and a part that cannot be written is replaced by the name of its type.
    If this is not possible, as for a dict with tuples as keys, the whole value is replaced by the
    name of its type. Each part that is a dataclass is written as the dataclass that ``substitute``
    returns for it.
    """
    default = sketched if substitute is _itself else partial(sketched, substitute=substitute)
    try:
        return orjson.dumps(value, default, orjson.OPT_PASSTHROUGH_DATACLASS).decode()
    except TypeError:  # numbers of more than 64 bits, half of a surrogate pair, other keys
        pass
    try:
        return json.dumps(value, separators=(",", ":"), default=default)
    except (TypeError, ValueError, RecursionError):
        return json.dumps({_KIND: "?", "value": type(value).__qualname__})


def digest_of(*texts: str) -> str:
    """Return a fingerprint of texts."""
    whole = "\0".join(texts).encode("utf-8", "surrogatepass")
    return blake2b(whole, digest_size=DIGEST_BYTES).hexdigest()


def sketched(value: Any, substitute: Substitute = _itself) -> Any:
    """Return JSON data that replaces a value whose type JSON does not have. ``substitute`` is
    applied as in `shown`.
    """
    try:
        if isinstance(value, Mapping):
            return dict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = substitute(value)
            fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
            return {
                recorded_name(field): item for field, item in fields if item is not field.default
            }
        return _written(value, 0, substitute)
    except Exception:  # the code of its class may raise any error
        return {_KIND: "?", "value": type(value).__qualname__}


def _written(value: Any, depth: int, substitute: Substitute) -> Any:
    if depth > _DEEPEST:
        raise _UnclearError
    if dataclasses.is_dataclass(value):
        value = substitute(value)
    kind = type(value)
    if value is None or kind in (str, int, bool) or (kind is float and isfinite(value)):
        return value
    if kind is list:
        return [_written(each, depth + 1, substitute) for each in value]
    if kind is dict:
        if _KIND not in value and all(type(key) is str for key in value):
            return {key: _written(item, depth + 1, substitute) for key, item in value.items()}
        pairs = [[_written(part, depth + 1, substitute) for part in pair] for pair in value.items()]
        return {_KIND: "dict", "value": pairs}
    if kind in _TEXTS:
        name, write = _TEXTS[kind]
        return {_KIND: name, "value": _written(write(value), depth + 1, substitute)}
    return {_KIND: _name_of(kind), **_instance(value, depth, substitute)}


def _instance(value: Any, depth: int, substitute: Substitute) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, BaseException | enum.Enum):
        fields = [
            (field, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init
        ]
        return {
            recorded_name(field): _written(item, depth + 1, substitute)
            for field, item in fields
            if item is not field.default
        }
    if isinstance(value, enum.Enum):
        return {"value": _written(value.value, depth + 1, substitute)}
    if isinstance(value, BaseException):
        return _error(value, depth, substitute)
    if hasattr(value, "model_validate"):
        return {"value": _written(_model_data(value), depth + 1, substitute)}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return {"value": [_written(each, depth + 1, substitute) for each in value]}
    raise _UnclearError


def _model_data(model: Any) -> Any:
    """Return the JSON data of a pydantic model, in which each set has the same order in all
    processes.
    """
    data = model.model_dump(mode="json")
    try:
        return _in_order(data, model)
    except Exception:  # code of the model may raise any error
        return data


def _in_order(data: Any, value: Any) -> Any:
    """Return the JSON data of ``value`` with sorted sets. Sets whose order is the same in all
    processes stay as they are, because the form of recorded requests must not change.
    """
    if isinstance(data, dict) and isinstance(value, dict) and len(data) == len(value):
        pairs = zip(data.items(), value.values(), strict=True)
        return {key: _in_order(item, part) for (key, item), part in pairs}
    if isinstance(data, dict):
        return {key: _in_order(item, getattr(value, key, None)) for key, item in data.items()}
    is_set = isinstance(value, set | frozenset)
    if not isinstance(data, list) or not (is_set or isinstance(value, list | tuple)):
        return data
    if len(data) != len(value):
        return data
    items = [_in_order(item, part) for item, part in zip(data, value, strict=True)]
    if is_set and not _is_steady(value):
        # Sort texts as they are: a model may itself write them sorted, so that its sets already had
        # the same order in all processes.
        are_texts = all(isinstance(item, str) for item in items)
        items.sort(key=None if are_texts else lambda item: json.dumps(item, sort_keys=True))
    return items


def _is_steady(value: Any) -> bool:
    """Return whether the hash of ``value`` is the same in all processes, so that sets of such
    values have the same order.
    """
    if isinstance(value, tuple | set | frozenset):
        return all(map(_is_steady, value))
    return isinstance(value, _STEADY)


def _error(error: BaseException, depth: int, substitute: Substitute) -> dict[str, Any]:
    try:
        args = _written(list(error.args), depth + 1, substitute)
    except _UnclearError:
        args = [str(error)]
    state = {}
    for name, value in vars(error).items():
        try:
            state[name] = _written(value, depth + 1, substitute)
        except _UnclearError:
            continue
    return {"value": args, "state": state, "text": str(error)}


def _name_of(kind: type[Any]) -> str:
    if name_of(kind) is None:
        raise _UnclearError
    module = kind.__module__
    if module.startswith(_LOADED):
        file = getattr(sys.modules.get(module), "__file__", None)
        module = module if file is None else pathlib.Path(file).stem
    return f"{module}:{kind.__qualname__}"


_LONGEST = 160


def text_of_question(request: Mapping[str, Any]) -> str:
    """Return the text of a recorded question. A question that was a reply is recorded with all
    fields of the reply.
    """
    question = request["question"]
    return str(question["text"] if isinstance(question, Mapping) else question)


def difference(recorded: str, request: str) -> str:
    """Return a text about the first place at which two JSON texts differ, with both values. If
    ``recorded`` is "", the text says that the recorded request was not stored.
    """
    if not recorded:
        return f"the recorded request was not stored; now it is {_short(request)}"
    where, before, after = _first(json.loads(recorded), json.loads(request), "")
    return f"{where.lstrip('.') or 'the value'} was {_short(before)} and is {_short(after)}"


def _first(before: Any, after: Any, where: str) -> tuple[str, Any, Any]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in (*before, *(key for key in after if key not in before)):
            if before.get(key) != after.get(key) or (key in before) != (key in after):
                return _first(before.get(key), after.get(key), f"{where}.{key}")
    if isinstance(before, list) and isinstance(after, list):
        for index, pair in enumerate(zip(before, after, strict=False)):
            if pair[0] != pair[1]:
                return _first(*pair, f"{where}[{index}]")
        longer = before if len(before) > len(after) else after
        at = min(len(before), len(after))
        if at < len(longer):
            there, here = (rest[at] if at < len(rest) else None for rest in (before, after))
            return f"{where}[{at}]", there, here
    return where, before, after


def is_like(recorded: str, request: str, unknown: str) -> bool:
    """Return whether two JSON texts are equal, apart from the fields whose value in ``request`` is
    the text ``unknown``. ``recorded`` may have any value for such a field, or lack it.
    """
    return _is_like(json.loads(recorded), json.loads(request), unknown)


def _is_like(before: Any, after: Any, unknown: str) -> bool:
    if isinstance(before, dict) and isinstance(after, dict):
        known = {key: item for key, item in after.items() if item != unknown}
        rest = {key: item for key, item in before.items() if after.get(key) != unknown}
        return known.keys() == rest.keys() and all(
            _is_like(rest[key], item, unknown) for key, item in known.items()
        )
    if isinstance(before, list) and isinstance(after, list):
        pairs = zip(before, after, strict=False)
        return len(before) == len(after) and all(_is_like(*pair, unknown) for pair in pairs)
    return bool(before == after)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return repr(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
