"""Converting errors to JSON and back, with their texts, arguments, attributes, notes and causes.

An error is read back as an instance of its own class, made without the constructor. If the text,
the arguments or the attributes of this instance would differ from those of the error, or if
journals cannot find the class by its name, the error is read back as a *stand-in*: an instance of a
new class with the name and the texts of the error. The new class is derived from the error's own
class if that can be found and subclassed, and otherwise from the nearest base classes that can
be found. An argument or attribute that a journal cannot record is replaced by a `Lost` object,
which raises an error when code uses it.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from agentrt.errors import UnrecordableError
from agentrt.journal.classes import any_name_of, class_of, described, missing, name_of
from agentrt.journal.forms import (
    Checks,
    FormReader,
    FormWriter,
    attributes_of,
    built_in,
    set_attributes,
)
from agentrt.journal.kinds import UnkeptError

_MARK = "$error"
_LOST = "lost"
_LONGEST_CHAIN = 40
"""Maximum depth of the causes of an error; deeper causes are left out. A cause that has the error
among its arguments is left out, too.
"""
_MEMBERS = types.MemberDescriptorType, types.GetSetDescriptorType
_PLAIN: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "pydantic_core._pydantic_core:ValidationError": (
        lambda error: list(error.__reduce__()[1]),
        lambda kind, value: kind.from_exception_data(*value),
    ),
    "pydantic_core._pydantic_core:PydanticCustomError": (
        lambda error: [error.type, error.message_template, error.context],
        lambda kind, value: kind(*value),
    ),
    "pydantic_core._pydantic_core:PydanticKnownError": (
        lambda error: [error.type, error.context],
        lambda kind, value: kind(*value),
    ),
}
"""Pairs of functions, by class names. They write and read errors whose data is not in ``args``."""


class Lost:
    """A replacement for a part of an error that could not be recorded. ``str()`` and ``repr()``
    return the texts of the part. Reading an attribute, calling, comparing and most other uses raise
    `UnrecordableError`.
    """

    __slots__ = ("_record",)

    def __init__(self, record: list[str]) -> None:
        self._record = record

    def __repr__(self) -> str:
        return self._record[1]

    def __str__(self) -> str:
        return self._record[2]

    def _raise(self, *args: object, **named: object) -> NoReturn:
        raise UnrecordableError(
            f"a part of a recorded error, of type {self._record[0]}, could not be recorded, so it "
            "is not available here; use it in the tool, where the error is raised"
        )

    __getattr__ = __call__ = __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = _raise
    __int__ = __float__ = __index__ = __add__ = __radd__ = __lt__ = __gt__ = __le__ = _raise
    __ge__ = __eq__ = __ne__ = __enter__ = __next__ = _raise
    __hash__ = object.__hash__


class StandIn(BaseException):
    """The common base of all classes of stand-ins, which replace errors that cannot be read back as
    instances of their own class.
    """

    record: dict[str, Any]


# -- to JSON --------------------------------------------------------------------------------


def write_error(error: BaseException, writer: FormWriter, depth: int) -> dict[str, Any]:
    """Return an error as JSON. Parts that cannot be recorded do not prevent this. Raises
    `UnkeptError` only if the error is nested too deeply in another value.
    """
    body = _body(error, writer, depth)
    details = body[_MARK]
    # The causes of a part are not checked with the part: they often lead back to an error around
    # it. An example is an error of a group that is raised while the group is handled.
    is_checked_alone = writer.checks is not None and writer.checks.running
    if depth < _LONGEST_CHAIN and not is_checked_alone:
        cause, context = (
            None if id(each) in writer.unread else each
            for each in (error.__cause__, error.__context__)
        )
        if cause is not None:
            details["cause"] = writer.write(cause, depth + 1)
        if context is not None:
            details["context"] = context is cause or writer.write(context, depth + 1)
        if error.__suppress_context__:
            details["suppress"] = True
    return body


def bare(error: BaseException) -> str:
    """Return an error as JSON text with only its type, its bases, its ``str`` and its ``repr``."""
    body = _description(error) | {"value": [], "state": {}}
    body[_MARK]["as"] = "like"
    return json.dumps(body)


def _body(error: BaseException, writer: FormWriter, depth: int) -> dict[str, Any]:
    """Return an error as JSON without its causes."""
    body = _written(error, writer, depth)
    if "as" in body[_MARK] or (checks := writer.checks) is None:
        return body
    if not checks.passes("makes", error, lambda part: _makes(part, writer)):
        body[_MARK]["as"] = "like"
    return body


def _makes(error: BaseException, writer: FormWriter) -> bool:
    """Return whether the recorded error can be read back as an instance of its own class that
    equals the error.
    """
    try:
        body = _written_alone(error, writer, writer.checks)
        made = _same_class(body["$"], body, writer.reader())
        text = json.dumps(body)
        return type(made) is type(error) and json.dumps(_written_alone(made, writer, None)) == text
    except Exception:  # the code of its class may raise any error
        return False


def _written_alone(
    error: BaseException, writer: FormWriter, checks: Checks | None
) -> dict[str, Any]:
    own = writer.fresh({}, checks)
    body = _written(error, own, 0)
    return _written(error, writer.fresh(own.again, checks), 0) if own.again else body


def _description(error: BaseException) -> dict[str, Any]:
    """Return the type and the texts of an error as JSON."""
    kind = type(error)
    details: dict[str, Any] = {"repr": _text_of(repr, error)}
    if issubclass(kind, StandIn):
        name, details["bases"], details["as"] = (
            kind.record["$"],
            kind.record[_MARK]["bases"],
            "like",
        )
    else:
        name, details["bases"] = any_name_of(kind), _bases(kind)
        if name_of(kind) is None:
            details["as"] = "like"
    return {"$": name, "text": _text_of(str, error), _MARK: details}


def _written(error: BaseException, writer: FormWriter, depth: int) -> dict[str, Any]:
    kind, body = type(error), _description(error)
    writer.unread.add(id(error))
    if (plain := _PLAIN.get(body["$"])) is not None and not issubclass(kind, StandIn):
        body["value"] = [_part(each, writer, depth) for each in plain[0](error)]
        body[_MARK]["args"] = [_part(each, writer, depth) for each in error.args]
    else:
        body["value"] = [_part(each, writer, depth) for each in error.args]
    writer.unread.discard(id(error))
    state = attributes_of(error, ())
    body["state"] = {name: _part(value, writer, depth) for name, value in state.items()}
    members = {name: _part(value, writer, depth) for name, value in _members(error)}
    if members:
        body[_MARK]["members"] = members
    return body


def _part(value: Any, writer: FormWriter, depth: int) -> Any:
    """Return a part of an error as JSON. A part that a journal cannot record is replaced by its
    type, repr and text.
    """
    if isinstance(value, Lost):
        return {"$": _LOST, "value": value._record}
    if isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value):
        # These are the errors of a pydantic model. Each has the invalid value.
        parts = [_part(each, writer, depth + 1) for each in value]
        return parts if isinstance(value, list) else {"$": "tuple", "value": parts}
    if type(value) is dict and "$" not in value and writer.are_texts(value):
        return {key: _part(item, writer, depth + 1) for key, item in value.items()}
    if writer.keeps(value):
        return writer.write(value, depth + 1)
    texts = [described(type(value)), _text_of(repr, value), _text_of(str, value)]
    return {"$": _LOST, "value": texts}


def _members(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each attribute of an error that is not in its ``__dict__``.
    ``args``, names that begin with ``__``, and attributes without a value are left out.
    """
    seen = {"args"}
    for kind in type(error).__mro__:
        for name, member in vars(kind).items():
            if name in seen or name.startswith("__") or not isinstance(member, _MEMBERS):
                continue
            seen.add(name)
            try:
                value = member.__get__(error, type(error))
            except Exception:  # it is not set
                continue
            if value is not None:
                yield name, value


def _bases(kind: type[BaseException]) -> list[str]:
    """Return the names of the nearest base classes that can be found by their names."""
    chosen: list[type[Any]] = []
    for base in kind.__mro__[1:]:
        if not issubclass(base, BaseException) or any(issubclass(each, base) for each in chosen):
            continue
        if name_of(base) is not None:
            chosen.append(base)
    return [any_name_of(base) for base in chosen]


def _text_of(make: Callable[[Any], str], value: Any) -> str:
    try:
        return make(value)
    except Exception as error:  # the code of its class may raise any error
        return f"<{type(value).__qualname__}, whose text raises {type(error).__name__}>"


# -- from JSON ------------------------------------------------------------------------------


def read_error(name: str, value: dict[str, Any], reader: FormReader) -> BaseException:
    """Return the error that ``value`` describes. Raises `UnkeptError` if the error was recorded as
    an instance of its own class, and this class is not found now.
    """
    details = value.get(_MARK, {})
    if details.get("as") == "like":
        made = _stand_in(name, value, reader)
    else:
        made = _same_class(name, value, reader)
    if "cause" in details:
        made.__cause__ = reader.read(details["cause"])
    if "context" in details:
        context = details["context"]
        made.__context__ = made.__cause__ if context is True else reader.read(context)
    if _MARK in value:
        made.__suppress_context__ = details.get("suppress", False)
    return made


def _same_class(name: str, value: dict[str, Any], reader: FormReader) -> BaseException:
    kind = class_of(name)
    if kind is None:
        raise UnkeptError(missing(name))
    args = tuple(_read_part(each, reader) for each in value["value"])
    if name in _PLAIN and _MARK in value:
        made = reader.known(value, _PLAIN[name][1](kind, args))
        made.args = tuple(_read_part(each, reader) for each in value[_MARK]["args"])
    else:
        # Make the error without its constructor, which may need arguments that the error does not
        # store.
        made = reader.known(value, built_in(kind).__new__(kind, *args))
        made.args = args
    _add(made, value, reader)
    assert isinstance(made, BaseException)
    return made


def _stand_in(name: str, value: dict[str, Any], reader: FormReader) -> BaseException:
    kind, names = class_of(name), value[_MARK]["bases"]
    known_bases = [base for base in map(class_of, names) if base is not None]
    own: list[list[type[Any]]] = [] if kind is None else [[kind]]
    args = tuple(_read_part(each, reader) for each in value["value"])
    choices: list[list[type[Any]]] = [*own, known_bases, [Exception], [BaseException]]
    for bases in choices:
        for new_args in (args, ()):
            try:
                made = _like(name, value, bases, new_args)
            except Exception:  # the class cannot have subclasses, or needs other arguments
                continue
            made.args = args
            reader.known(value, made)
            _add(made, value, reader)
            return made
    # This line is never reached, because `_like` works with `BaseException`.
    raise UnkeptError(f"cannot create a class that replaces {name}")


def _like(
    name: str, value: dict[str, Any], bases: Sequence[type[Any]], args: tuple[Any, ...]
) -> BaseException:
    place, _, qualname = name.rpartition(":")
    text, shown = value["text"], value[_MARK]["repr"]
    record = {"$": name, _MARK: {"bases": value[_MARK]["bases"]}}
    body = {
        "__module__": place,
        "__qualname__": qualname,
        "__str__": lambda self: text,
        "__repr__": lambda self: shown,
        "record": record,
    }
    kind = type(qualname.rpartition(".")[2], (*bases, StandIn), body)
    made = built_in(kind).__new__(kind, *args)
    assert isinstance(made, BaseException)
    return made


def _add(made: BaseException, value: dict[str, Any], reader: FormReader) -> None:
    state = {name: _read_part(item, reader) for name, item in value["state"].items()}
    set_attributes(made, state)
    for name, item in value.get(_MARK, {}).get("members", {}).items():
        try:
            setattr(made, name, _read_part(item, reader))
        except (AttributeError, TypeError):  # read-only: already set with the arguments
            continue


def _read_part(value: Any, reader: FormReader) -> Any:
    if isinstance(value, dict):
        kind = value.get("$")
        if kind == _LOST:
            record = list(value["value"])
            return type(record[0].rpartition(".")[2], (Lost,), {"__slots__": ()})(record)
        if kind is None:
            return {key: _read_part(item, reader) for key, item in value.items()}
        if kind == "tuple":
            return tuple(_read_part(each, reader) for each in value["value"])
    if isinstance(value, list):
        return [_read_part(each, reader) for each in value]
    return reader.read(value)
