"""Converts values to JSON and back: the results of nodes, and the inputs of programs.

Values of JSON's own types are written unchanged, so that SQL can read them. Any other value is
written as an object whose key ``$`` names the type. A value that would not be read back equal,
including the types of all its parts, is refused when it is written. To check this, `dumps` reads
the value back at once and writes it a second time; both texts must be equal. Values of types that
always come back equal, such as JSON's own types, bytes and tuples, need no check. A part of an
error that cannot be recorded is not refused, but replaced (`agentrt.journal.raised`). Instances of
users' classes are made without their constructors, because a constructor may do more than store its
arguments. Reading a journal imports no module.
"""

from __future__ import annotations

import datetime
import enum
import json
import types
import typing
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple, cast

import orjson

from agentrt.journal.classes import any_name_of, attribute_of, class_of, described, missing, name_of
from agentrt.journal.forms import (
    BASES,
    EXTRA,
    KIND,
    NAME,
    OF,
    PLAIN,
    PRIVATE,
    SET,
    STATE,
    Base,
    Checks,
    Form,
    attributes_of,
    built_in,
    default_of,
    fields_of,
    form_of,
    is_model,
    is_slot,
    set_attributes,
    slots_of,
    unfindable,
)
from agentrt.journal.kinds import KINDS, READERS, UnkeptError, ValueKind, numpy_kind, packed
from agentrt.journal.raised import read_error, write_error

__all__ = ["UnkeptError", "dumps", "loads", "register"]

_ID, _REF = "$id", "ref"
"""`_ID` is the key for the number of a value that occurs several times. `_REF` is the type name of
a reference to such a value.
"""
_CODED = "$plain"
"""The key for the plain data into which a registered codec converted a value."""
_ERROR = "$error"
_DEEPEST = 200
_LONGEST_INT = 64
_ALIASES: Mapping[type[Any], str] = {
    types.GenericAlias: "alias",
    type(typing.List[int]): "typing alias",  # noqa: UP006 - the alias of a class of typing
}
_TEXT = frozenset({str})
_NOTHING: Mapping[int, Any] = {}


class Codec(NamedTuple):
    """The registered functions that write and read the values of one class."""

    kind: type[Any] | None
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


_OURS: dict[type[Any], Form] = {}
_CODECS: dict[type[Any], Codec] = {}
_CODECS_BY_NAME: dict[str, Codec] = {}


def register(
    type: type[Any], to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]
) -> None:
    """Let journals record the values of a class. Values of its subclasses are not included.

    ``to_plain`` converts a value to plain data: numbers, texts, bytes, lists, dicts and all other
    types that a journal records. ``from_plain`` converts this data to an equal value. Register the
    class before a program with such values starts or resumes, for example in the module that
    defines the class.
    """
    codec = Codec(type, to_plain, from_plain)
    _CODECS[type] = codec
    _CODECS_BY_NAME[_codec_name(type)] = codec


def dumps(value: Any, without: object = None, *, label: str = "value") -> str:
    """Return a value as JSON text.

    If ``value`` is a dataclass of agentrt, fields whose value is the object ``without`` are left
    out. Such a field has its default when the value is read back. Raises `UnkeptError`, whose
    message has the path to the part that cannot be recorded; ``label`` is the first word of this
    path.
    """
    try:
        return _checked(value, without)
    except UnkeptError as error:
        raise UnkeptError(_describe_fault(value, label, error)) from None


def loads(text: str) -> Any:
    """Return the value that `dumps` wrote. Raises `UnkeptError` if it cannot be read back, for
    example because its class does not exist any more.
    """
    try:
        return ValueReader().read(json.loads(text))
    except UnkeptError:
        raise
    except Exception as error:  # the code of a class may raise any error
        raise UnkeptError(f"{type(error).__name__}: {error}") from error


# -- to JSON --------------------------------------------------------------------------------


def _checked(value: Any, without: object = None, checks: Checks | None = None) -> str:
    """Return a value as JSON text. Raises `UnkeptError`, whose message has no path, if the value
    would not be read back equal. ``checks`` has the results of the checks of parts of the value.
    """
    checks = checks or Checks()
    text, doubtful = _text(value, without, checks)
    if doubtful:
        # A field that is left out is read back as its default, which may then be written as a
        # field. So compare the texts of the whole value.
        whole = text if without is None else _text(value, None, checks)[0]
        again, _ = _text(loads(whole), None, None)
        if again != whole:
            raise UnkeptError("which a journal would read back as a different value")
    return text


def _text(value: Any, without: object, checks: Checks | None) -> tuple[str, bool]:
    """Return a value as JSON text, and whether the text must be read back to check it. ``checks``
    is None if the value was just read back.
    """
    try:
        writer = ValueWriter(without, checks=checks)
        made = writer.write(value, 0)
        if writer.again:  # a mutable value occurs twice
            writer = ValueWriter(without, writer.again, checks)
            made = writer.write(value, 0)
        try:
            return orjson.dumps(made).decode(), writer.doubtful
        except TypeError:  # an integer of more than 64 bits, or half of a surrogate pair
            careful = CarefulValueWriter(without, writer.shared, checks)
            made = careful.write(value, 0)
            return json.dumps(made, separators=(",", ":")), True
    except UnkeptError:
        raise
    except RecursionError:
        raise TooDeepError from None
    except Exception as error:  # the code of a class may raise any error
        reason = str(error) if type(error) is TypeError else f"{type(error).__name__}: {error}"
        raise UnkeptError(f"which cannot be written ({reason})") from error


class ValueWriter:
    """A converter of one value to JSON.

    After writing, ``again`` has the mutable values that occur more than once, by their ids. If
    there are any, a second writer gets them as ``shared``, and writes them with numbers.
    ``doubtful`` is True if the JSON must be read back to check that it gives an equal value.
    ``checks`` is None if the value was just read back, so that its parts need no checks.
    """

    plain = PLAIN
    """Types whose values need no conversion."""

    __slots__ = (
        "_numbers",
        "_seen",
        "again",
        "checks",
        "doubtful",
        "shared",
        "unread",
        "without",
    )

    def __init__(
        self,
        without: object = None,
        shared: Mapping[int, Any] = _NOTHING,
        checks: Checks | None = None,
    ) -> None:
        self.without = without
        self.shared = shared
        self.checks = checks
        self.again: dict[int, Any] = {}
        self.doubtful = False
        self.unread: set[int] = set()
        # The values that were written, by their ids. Holding them keeps their ids from being used
        # for other values.
        self._seen: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}

    def write(self, value: Any, depth: int) -> Any:
        """Return a value as JSON. Raises `UnkeptError` for a value that a journal cannot record,
        and any error that a value's own class or a registered codec raises.
        """
        kind = type(value)
        plain = self.plain
        if kind in plain or (kind is float and isfinite(value)):
            return value
        if depth > _DEEPEST:
            raise TooDeepError
        if kind is list or kind is dict:
            if (key := id(value)) in self._seen:
                return self._reference(key)
            self._seen[key] = value
            if self.shared:
                return self._numbered(value, key, depth)
            return self._items(value, depth) if kind is list else self.object(value, depth)
        if (form := _OURS.get(kind)) is not None:
            return self._own_instance(value, form, depth)
        if kind in _CODECS:
            return self._with_codec(value, _CODECS[kind], depth)
        if (known := KINDS.get(kind)) is not None or (known := numpy_kind(kind)) is not None:
            return self._of_kind(value, known, depth)
        return self._instance(value, depth)

    def _of_kind(self, value: Any, known: ValueKind, depth: int) -> dict[str, Any]:
        """Return a value of a type of the standard library or of numpy as JSON."""
        if known.shared and (ref := self._reference_to(value)) is not None:
            return ref
        made = self._head(value, known.name)
        if isinstance(value, set | frozenset):
            # Sort the items, so that equal sets have equal texts in all processes.
            self.doubtful = self.doubtful or not self.plain.issuperset(map(type, value))
            made["value"] = sorted((self.write(each, depth + 1) for each in value), key=repr)
            return made
        self.doubtful = self.doubtful or not known.plain
        made["value"] = self.write(known.write(value), depth + 1)
        return made

    def _items(self, value: list[Any], depth: int) -> list[Any]:
        plain, write = self.plain, self.write
        if plain.issuperset(map(type, value)):  # fast for long lists of token ids
            return value
        # The test for plain values is repeated here, because calling `write` for each number would
        # take most of the time.
        return [
            each
            if (kind := type(each)) in plain or (kind is float and isfinite(each))
            else write(each, depth + 1)
            for each in value
        ]

    def object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        """Return a dict as a JSON object, or as pairs if a key is not a text or is ``$``."""
        plain, write = self.plain, self.write
        if KIND not in value and self.are_texts(value):
            return {
                key: item
                if (kind := type(item)) in plain or (kind is float and isfinite(item))
                else write(item, depth + 1)
                for key, item in value.items()
            }
        pairs = [[write(part, depth + 1) for part in pair] for pair in value.items()]
        return {KIND: "dict", "value": pairs}

    def are_texts(self, keys: Mapping[Any, Any]) -> bool:
        """Return whether all keys are texts, so that they can be the keys of a JSON object."""
        return _TEXT.issuperset(map(type, keys))

    # -- values that occur more than once ------------------------------------------------

    def _reference_to(self, value: Any) -> dict[str, Any] | None:
        """Return a reference to a mutable value that was written before. If the value occurs for
        the first time, note it and return None.
        """
        key = id(value)
        if key in self._seen:
            return self._reference(key)
        self._seen[key] = value
        if key in self.shared:
            self._numbers[key] = len(self._numbers)
        return None

    def _reference(self, key: int) -> dict[str, Any]:
        if (number := self._numbers.get(key)) is None:
            self.again[key] = self._seen[key]
        return {KIND: _REF, "value": number}

    def _numbered(self, value: Any, key: int, depth: int) -> Any:
        """Return a list or a dict as JSON, with a number if it occurs more than once."""
        number = None
        if key in self.shared:
            number = self._numbers[key] = len(self._numbers)
        is_list = type(value) is list
        made = self._items(value, depth) if is_list else self.object(value, depth)
        if number is None:
            return made
        self.doubtful = True
        return {KIND: "list" if is_list else "object", _ID: number, "value": made}

    def _head(self, value: Any, name: str) -> dict[str, Any]:
        """Return the beginning of a value's JSON object: the name of the value's type, and the
        value's number if it occurs more than once.
        """
        number = self._numbers.get(id(value))
        return {KIND: name} if number is None else {KIND: name, _ID: number}

    # -- instances -----------------------------------------------------------------------

    def _with_codec(self, value: Any, codec: Codec, depth: int) -> Any:
        if (ref := self._reference_to(value)) is not None:
            return ref
        self.doubtful = True
        kind = type(value)
        made = self._head(value, _codec_name(kind))
        plain = codec.to_plain(value)
        again = codec.from_plain(plain)
        has_equality = getattr(kind, "__eq__", None) is not object.__eq__
        if type(again) is not kind or (has_equality and again != value):
            raise UnkeptError("whose registered codec reads back a different value")
        return made | {_CODED: self.write(plain, depth + 1)}

    def _instance(self, value: Any, depth: int) -> Any:
        """Return an instance of a class as JSON. Raises `UnkeptError` if a journal cannot record
        instances of the class, for example because the class cannot be found by its name.
        """
        kind = type(value)
        if issubclass(kind, BaseException):
            if (ref := self._reference_to(value)) is not None:
                return ref
            self.doubtful = True
            return self._head(value, "") | write_error(value, self, depth)
        if isinstance(value, type):
            return self._class(value)
        if kind in _ALIASES:
            return self._alias(value, depth)
        form = form_of(cast(Hashable, kind))
        if form.own is not None:
            _OURS[kind] = form
            return self._own_instance(value, form, depth)
        if form.write is None:
            raise UnkeptError(form.name)
        self.doubtful = True
        if not form.shared:
            return form.write(self, value, form, depth)
        if (ref := self._reference_to(value)) is not None:
            return ref
        return self._head(value, form.name) | form.write(self, value, form, depth)

    def _own_instance(self, value: Any, form: Form, depth: int) -> dict[str, Any]:
        """Return an instance of a dataclass of agentrt as JSON."""
        fields = form.own
        assert fields is not None
        # Most fields of a reply have their default values. Without these fields, the row has half
        # the size.
        every = zip(fields.names, fields.defaults, fields.read(value), strict=True)
        made = {field: item for field, default, item in every if item is not default}
        if not depth and self.without is not None:
            made = {name: item for name, item in made.items() if item is not self.without}
        plain = self.plain
        for field, item in made.items():
            if (kind := type(item)) in plain or (kind is float and isfinite(item)):
                continue
            if field in fields.packed:
                made[field] = packed(item) or self.write(item, depth + 1)
            elif field not in fields.plain:
                made[field] = self.write(item, depth + 1)
        return {KIND: form.name, **made}

    def fresh(self, shared: Mapping[int, Any], checks: Checks | None) -> ValueWriter:
        """Return a new writer. It writes each of the ``shared`` values, which occur more than once,
        a single time.
        """
        return type(self)(None, shared, checks)

    def reader(self) -> ValueReader:
        """Return a reader for the JSON that this writer makes."""
        return ValueReader()

    def keeps(self, value: Any) -> bool:
        """Return whether a journal can record a value."""
        if (checks := self.checks) is None or type(value) in PLAIN:
            return True
        return checks.passes("keeps", value, lambda part: _fault(part, checks) is None)

    def _class(self, value: type[Any]) -> dict[str, Any]:
        name = name_of(value)
        if name is None:
            raise UnkeptError(unfindable(value))
        self.doubtful = True
        return {KIND: "class", "value": name}

    def _alias(self, value: Any, depth: int) -> dict[str, Any]:
        """Return a generic type with its parameters, such as ``Box[int]``, as JSON."""
        self.doubtful = True
        parts = [typing.get_origin(value), *typing.get_args(value)]
        name = _ALIASES[type(value)]
        return {KIND: name, "value": [self.write(part, depth + 1) for part in parts]}

    def state(self, values: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Return the attributes of an object as a JSON object: each value under its name."""
        return {name: self.write(value, depth + 1) for name, value in values.items()}


class CarefulValueWriter(ValueWriter):
    """A writer for values with integers of more than 64 bits, or with texts that have half of a
    surrogate pair. The JSON encoder or a database would refuse them.
    """

    __slots__ = ()
    plain = frozenset({bool, type(None)})

    def write(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            if _is_text(value):
                return value
            return {KIND: "str", "value": self.write(value.encode("utf-8", "surrogatepass"), 0)}
        if kind is int:
            return (
                value if value.bit_length() <= _LONGEST_INT else {KIND: "int", "value": hex(value)}
            )
        return super().write(value, depth)

    def are_texts(self, keys: Mapping[Any, Any]) -> bool:
        return all(type(key) is str and _is_text(key) for key in keys)


def _is_text(value: str) -> bool:
    """Return whether all databases accept a text. They refuse half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- naming the part that cannot be recorded ------------------------------------------------


class TooDeepError(UnkeptError):
    """A value that is nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"which is nested more than {_DEEPEST} levels deep")


def _describe_fault(value: Any, label: str, error: UnkeptError) -> str:
    """Return a message that says which part of a value cannot be recorded, why, and what to do."""
    if isinstance(error, TooDeepError):
        return f"{label} is of type {described(type(value))}, {error}; use flatter data"
    seen = {id(value)}
    while True:
        for piece, part in _parts(value):
            fault = None if id(part) in seen else _fault(part)
            if fault is not None:
                seen.add(id(part))
                value, label, error = part, label + piece, fault
                break
        else:
            if isinstance(value, type):
                return f"{label} is the class {described(value)}, {error}; use its name"
            kind = type(value)
            return (
                f"{label} is of type {described(kind)}, {error}; use plain data, or register a "
                f"codec: agentrt.journal.register({kind.__name__}, to_plain, from_plain)"
            )


def _fault(value: Any, checks: Checks | None = None) -> UnkeptError | None:
    try:
        _checked(value, checks=checks)
    except UnkeptError as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with the words that name the part in a path, such as
    ``.name``, ``[0]`` or ``'s key 1``.
    """
    kind = type(value)
    if kind in _CODECS or isinstance(value, BaseException | type):
        return
    yield from _items(value)
    if kind in KINDS or numpy_kind(kind) is not None:
        return
    form = form_of(cast(Hashable, kind))
    if form.write is not None or form.own is not None:
        for name, item in attributes_of(value, slots_of(kind)).items():
            yield f".{name}", item
    if is_model(kind):
        for also in (value.__pydantic_extra__, value.__pydantic_private__):
            for name, item in (also or {}).items():
                yield f".{name}", item


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of a collection (for a dict also its keys) or the time zone of a time, each
    with the words that name it in a path. Yield nothing for any other value.
    """
    if isinstance(value, dict | types.MappingProxyType):
        if isinstance(value, defaultdict):
            yield ".default_factory", value.default_factory
        for key, item in [*value.items()]:
            yield f"'s key {key!r}", key
            yield f"[{key!r}]", item
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for index, item in enumerate([*value]):
            yield f"[{index}]", item
    elif isinstance(value, datetime.datetime | datetime.time):
        yield ".tzinfo", value.tzinfo


# -- from JSON ------------------------------------------------------------------------------


class ValueReader:
    """A converter of the JSON of one value back to the value."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def read(self, value: Any) -> Any:
        """Return the value that its JSON ``value`` describes. Raises `UnkeptError` for JSON that
        cannot be read back, and any error that the code of a class raises.
        """
        if isinstance(value, list):
            return [self.read(each) for each in value]
        if not isinstance(value, dict):
            return value
        if KIND not in value:
            return {key: self.read(item) for key, item in value.items()}
        kind = value[KIND]
        if kind in READERS:
            return self.known(value, READERS[kind](self.read(value["value"])))
        if ":" in kind:
            return self._instance(kind, value)
        return self._structure(kind, value)

    def _structure(self, kind: str, value: dict[str, Any]) -> Any:
        """Return a value that is a reference, a numbered list or dict, a dict that is written as
        pairs, a class, or a generic type with its parameters. Raises `UnkeptError` for any other
        ``kind``.
        """
        inner = value["value"]
        match kind:
            case "ref":
                return self._known[inner]
            case "dict":
                return {self.read(key): self.read(item) for key, item in inner}
            case "list":
                items: list[Any] = self.known(value, [])
                items.extend(map(self.read, inner))
                return items
            case "object":
                entries: dict[Any, Any] = self.known(value, {})
                entries.update(self.read(inner))
                return entries
            case "class":
                return _class_named(inner)
            case "alias" | "typing alias":
                origin, *parts = map(self.read, inner)
                return origin[tuple(parts)]
        raise UnkeptError(f"a value has the unknown type {kind!r}")

    def known(self, value: dict[str, Any], made: Any) -> Any:
        """Return ``made``. If ``value``, which is its JSON, has a number, remember ``made`` by this
        number.
        """
        if (number := value.get(_ID)) is not None:
            self._known[number] = made
        return made

    def _instance(self, name: str, value: dict[str, Any]) -> Any:
        if _ERROR in value:
            return self._error(name, value)
        if _CODED in value:
            if (codec := _CODECS_BY_NAME.get(name)) is None:
                raise UnkeptError(
                    f"no codec is registered for {name}, which was recorded with a codec; register "
                    "the codec again"
                )
            return self.known(value, codec.from_plain(self.read(value[_CODED])))
        kind = _class_named(name)
        if issubclass(kind, BaseException):
            return self._error(name, value)
        if is_model(kind):
            return self._model(kind, value)
        if issubclass(kind, enum.Enum):
            return kind[value[NAME]] if NAME in value else kind(self.read(value["value"]))
        if (fields := fields_of(kind)) is not None:
            if STATE in value:
                return self._fields(kind, value, fields)
            # This is a dataclass of agentrt, or, in an older journal, any dataclass.
            items = {key: self.read(item) for key, item in value.items() if key != KIND}
            own = cast(Hashable, kind)
            return kind(**{attribute_of(own, key): item for key, item in items.items()})
        if (base := built_in(kind)) in BASES:
            return self._subclass(kind, value, BASES[base])
        raise UnkeptError(f"the class {name} has changed and cannot be read back any more")

    def _error(self, name: str, value: dict[str, Any]) -> BaseException:
        return read_error(name, value, self)

    def _fields(self, kind: type[Any], value: dict[str, Any], fields: dict[str, Any]) -> Any:
        made = self.known(value, object.__new__(kind))
        kept = {name: self.read(item) for name, item in value.items() if name[0] != KIND}
        if others := kept.keys() - fields.keys():
            raise UnkeptError(f"{kind.__qualname__} has no field {min(others)!r} any more")
        for name, field in fields.items():
            if name not in kept and field.init and (name not in vars(kind) or is_slot(kind, name)):
                kept[name] = default_of(kind, field)
        set_attributes(made, kept | {key: self.read(item) for key, item in value[STATE].items()})
        return made

    def _model(self, kind: Any, value: dict[str, Any]) -> Any:
        if SET not in value:  # older journals have no such key
            return kind.model_validate(self.read(value["value"]))
        if OF in value:
            kind = kind[tuple(self.read(part) for part in value[OF])]
        made = self.known(value, kind.__new__(kind))
        fields = self.read(value["value"])
        for name, field in kind.model_fields.items():
            if name not in fields:
                if field.is_required():
                    raise UnkeptError(
                        f"{kind.__qualname__} was recorded without field {name!r}; "
                        "give this field a default"
                    )
                fields[name] = field.get_default(call_default_factory=True)
        extra, private = (
            None if value.get(key) is None else {n: self.read(v) for n, v in value[key].items()}
            for key in (EXTRA, PRIVATE)
        )
        names = value[SET]
        known = {*fields, *(extra or ())} if names is True else set(names)
        object.__setattr__(made, "__dict__", fields)
        object.__setattr__(made, "__pydantic_fields_set__", known)
        for name, item in (("__pydantic_extra__", extra), ("__pydantic_private__", private)):
            if item is not None or getattr(kind, name, ...) is not None:  # a root model has none
                object.__setattr__(made, name, item)
        return made

    def _subclass(self, kind: type[Any], value: dict[str, Any], base: Base) -> Any:
        made = self.known(value, base.make(kind, self.read(value["value"])))
        if STATE in value:
            set_attributes(made, {key: self.read(item) for key, item in value[STATE].items()})
        return made


def _class_named(name: str) -> type[Any]:
    kind = class_of(name)
    if kind is None:
        raise UnkeptError(missing(name))
    return kind


def _codec_name(kind: type[Any]) -> str:
    return any_name_of(kind)
