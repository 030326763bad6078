"""Values as JSON, and back: what a node was asked, and what it answered.

JSON's own types are as they are, so that SQL can read them. Others are an object whose ``$`` says
what they were. A class is found again in a module that is loaded already: to read a journal
imports nothing and runs no code of its own choice.
"""

from __future__ import annotations

import base64
import builtins
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import sys
import uuid
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, partial
from hashlib import blake2b
from math import isfinite
from operator import attrgetter
from typing import Any, NamedTuple, cast

import orjson

from agentrt.errors import AgentrtError

_KIND = "$"
_PLAIN = frozenset({str, int, bool, type(None)})
_DEEPEST = 200
_TEXTS: Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    datetime.datetime: ("datetime", str, datetime.datetime.fromisoformat),
    datetime.date: ("date", str, datetime.date.fromisoformat),
    datetime.time: ("time", str, datetime.time.fromisoformat),
    datetime.timedelta: (
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda given: datetime.timedelta(*given),
    ),
    uuid.UUID: ("uuid", str, uuid.UUID),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    pathlib.PosixPath: ("path", str, pathlib.Path),
    float: ("float", repr, float),  # those that are no JSON: nan and inf
    tuple: ("tuple", list, tuple),
    # In an order that is the same in each process, so that two of them can be compared.
    set: ("set", lambda value: sorted(value, key=repr), set),
    frozenset: ("frozenset", lambda value: sorted(value, key=repr), frozenset),
}
Said = tuple[object, orjson.Fragment]
_READERS = {name: read for name, _, read in _TEXTS.values()}


class UnkeptError(AgentrtError):
    """A value that a journal cannot keep, or cannot give back."""


def dumps(value: Any, said: Said | None = None) -> str:
    """A value as JSON text; ``said`` is what one of its fields is, and the text of that.

    Raises `UnkeptError`.
    """
    try:
        return orjson.dumps(_encoded(value, 0, said)).decode()
    except TypeError:  # a number of more than 64 bits, or half of a surrogate pair
        return json.dumps(_encoded(value, 0), separators=(",", ":"))


def loads(text: str) -> Any:
    """The value of `dumps`. Raises `UnkeptError` for a class that is not there any more."""
    try:
        return _decoded(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnkeptError(f"{type(error).__name__}: {error}") from error


def shown(value: Any) -> str:
    """A value as JSON that is only compared, and read by people: a tuple is a list there, and of
    a part that cannot be kept its type stands.
    """
    try:
        return orjson.dumps(value, _sketched, orjson.OPT_PASSTHROUGH_DATACLASS).decode()
    except TypeError:  # as above, or keys that are no text
        pass
    try:
        return json.dumps(value, separators=(",", ":"), default=_sketched)
    except (TypeError, ValueError, RecursionError):
        return json.dumps({_KIND: "?", "value": type(value).__qualname__})


def digest_of(*texts: str) -> str:
    """A fingerprint of texts."""
    whole = "\0".join(texts).encode("utf-8", "surrogatepass")
    return blake2b(whole, digest_size=16).hexdigest()


# -- to JSON --------------------------------------------------------------------------------


def _encoded(value: Any, depth: int, said: Said | None = None) -> Any:
    if depth > _DEEPEST:
        raise UnkeptError("it is nested too deeply, or in itself")
    kind = type(value)
    if kind in _PLAIN or (kind is float and isfinite(value)):
        return value
    if kind is list:
        if _PLAIN.issuperset(map(type, value)):  # many are long lists of token ids
            return value
        # Here, since a call for each number takes longer than all else.
        return [
            each
            if (kind := type(each)) in _PLAIN or (kind is float and isfinite(each))
            else _encoded(each, depth + 1)
            for each in value
        ]
    if kind is dict:
        return _object(value, depth)
    if kind in _TEXTS:
        name, write, _ = _TEXTS[kind]
        return {_KIND: name, "value": _encoded(write(value), depth + 1)}
    return _instance(value, depth, said)


def _object(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    if _KIND not in value and all(type(key) is str for key in value):
        return {key: _encoded(item, depth + 1) for key, item in value.items()}
    pairs = [[_encoded(part, depth + 1) for part in pair] for pair in value.items()]
    return {_KIND: "dict", "value": pairs}


def _instance(value: Any, depth: int, said: Said | None) -> dict[str, Any]:
    """An instance of a class that can be found again."""
    kind = type(value)
    name, fields = _known(cast(Hashable, kind))
    if name is None:
        raise UnkeptError(f"a {kind.__qualname__!r} object, whose class has no place of its own")
    if fields is not None:
        # Most fields of a reply are as they were: left out, a row is half as long.
        every = zip(fields.names, fields.defaults, fields.read(value), strict=True)
        made = {field: given for field, default, given in every if given is not default}
        for field, given in made.items():
            if said is not None and given is said[0]:
                made[field] = said[1]
            elif type(given) not in _PLAIN and field not in fields.plain:
                made[field] = _encoded(given, depth + 1)
        return {_KIND: name, **made}
    if isinstance(value, enum.Enum):
        return {_KIND: name, "value": _encoded(value.value, depth + 1)}
    if isinstance(value, BaseException):
        return {_KIND: name, **_error(value, depth)}
    if hasattr(kind, "model_validate"):
        return {_KIND: name, "value": _encoded(value.model_dump(mode="json"), depth + 1)}
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return {_KIND: name, "value": [_encoded(each, depth + 1) for each in value]}
    raise UnkeptError(f"a {kind.__qualname__!r} object")


class _Fields(NamedTuple):
    """Those of a dataclass with their defaults; ``read`` gives the values of all. What is ``plain``
    is JSON as it is.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    read: Callable[[Any], tuple[Any, ...]]
    plain: frozenset[str]


@lru_cache(maxsize=256)
def _known(kind: Any) -> tuple[str | None, _Fields | None]:
    """The name by which a class is found again, and a dataclass's fields."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    found = _class_of(name)
    if found is None or found is not kind:
        return None, None
    if issubclass(found, BaseException | enum.Enum) or not dataclasses.is_dataclass(found):
        return name, None
    fields = [one for one in dataclasses.fields(found) if one.init]
    names = tuple(one.name for one in fields)
    # With one name, and with none, attrgetter gives no tuple.
    read = attrgetter(*names) if len(names) > 1 else partial(_read, names)
    plain = frozenset(one.name for one in fields if one.metadata.get("plain"))
    return name, _Fields(names, tuple(one.default for one in fields), read, plain)


def _read(names: tuple[str, ...], value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in names)


def _error(error: BaseException, depth: int) -> dict[str, Any]:
    """As pickle keeps errors: what they were made of, and what was set on them."""
    try:
        args = _encoded(list(error.args), depth + 1)
    except UnkeptError:
        args = [str(error)]
    state = {}
    for name, value in vars(error).items():
        try:
            state[name] = _encoded(value, depth + 1)
        except UnkeptError:
            continue
    return {"value": args, "state": state, "text": str(error)}


def _sketched(value: Any) -> Any:
    """For `json.dumps`: what can be said of a value that JSON does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(one, getattr(value, one.name)) for one in dataclasses.fields(value)]
        return {one.name: given for one, given in fields if given is not one.default}
    try:
        return _encoded(value, 0)
    except UnkeptError:
        return {_KIND: "?", "value": type(value).__qualname__}


# -- and back -------------------------------------------------------------------------------


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {key: _decoded(item) for key, item in value.items()}
    kind = value[_KIND]
    if kind == "dict":
        return {_decoded(key): _decoded(item) for key, item in value["value"]}
    if kind in _READERS:
        return _READERS[kind](_decoded(value["value"]))
    return _made(kind, value)


def _made(name: str, value: dict[str, Any]) -> Any:
    found = _class_of(name)
    if found is None:
        raise UnkeptError(f"there is no class {name} any more")
    if issubclass(found, BaseException):
        return _raised(found, value)
    if issubclass(found, enum.Enum):
        return found(_decoded(value["value"]))
    if dataclasses.is_dataclass(found):
        return found(**{key: _decoded(item) for key, item in value.items() if key != _KIND})
    if hasattr(found, "model_validate"):
        return found.model_validate(_decoded(value["value"]))
    if hasattr(found, "_make"):
        return found._make(_decoded(value["value"]))
    raise UnkeptError(f"{name} is another class now")


def _raised(found: type[BaseException], value: dict[str, Any]) -> BaseException:
    """The error, without its constructor: that may want more than it keeps."""
    args = tuple(_decoded(value["value"]))
    error = found.__new__(found, *args)
    error.args = args
    vars(error).update(_decoded(value["state"]))
    return error


def _class_of(name: str) -> type[Any] | None:
    """A class of a loaded module, by ``module:qualname``."""
    module, _, path = name.partition(":")
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
