"""Values as JSON, and back: what nodes answered, and what programs were given.

JSON's own types are as they are, so that SQL can read them. Others are an object whose ``$`` says
what they were. A value that is read back is equal to the one that was written, with equal types
all the way down, or it is not written: `dumps` reads whatever is not JSON's own back at once, and
writes that again, which has to give the same text. Instances are made without their constructors,
which may do more than to keep their arguments. To read a journal imports nothing and runs no code
of its own choice.
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

from agentrt.journal.classes import any_name_of, class_of, described, missing, name_of
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
    Form,
    attributes_of,
    built_in,
    default_of,
    fields_of,
    form_of,
    is_model,
    is_slot,
    placeless,
    set_attributes,
    slots_of,
)
from agentrt.journal.kinds import KINDS, READERS, Kind, UnkeptError, numpy_kind, packed
from agentrt.journal.raised import read_error, write_error

__all__ = ["UnkeptError", "dumps", "loads", "register"]

_ID, _REF = "$id", "ref"
"""The number of a value that is there more than once, and what stands for it the other times."""
_CODED = "$plain"
"""What a registered codec made of a value."""
_ERROR = "$error"
_DEEPEST = 200
_LONGEST_INT = 64
_ALIASES: Mapping[type[Any], str] = {
    types.GenericAlias: "alias",
    type(typing.List[int]): "typing alias",  # noqa: UP006 - that of a class of typing's
}
_TEXT = frozenset({str})
_NOTHING: Mapping[int, Any] = {}


class Codec(NamedTuple):
    """How values of one class are written and read."""

    kind: type[Any] | None
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


_OURS: dict[type[Any], Form] = {}
_CODECS: dict[type[Any], Codec] = {}
_CODECS_BY_NAME: dict[str, Codec] = {}


def register(
    type: type[Any], to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]
) -> None:
    """Let journals keep values of this class, and not of its subclasses.

    ``to_plain`` makes plain data of a value: numbers, texts, bytes, lists, dicts and whatever else
    a journal keeps. ``from_plain`` makes an equal value of that. Register a class before programs
    run or go on that have values of it, such as where it is defined.
    """
    codec = Codec(type, to_plain, from_plain)
    _CODECS[type] = codec
    _CODECS_BY_NAME[_codec_name(type)] = codec


def dumps(value: Any, without: object = None, *, what: str = "value") -> str:
    """A value as JSON text; a field of it that is ``without`` is left out, and gets its default.

    Raises `UnkeptError`, which names the part that cannot be kept by its path from ``what``.
    """
    try:
        return _checked(value, without)
    except UnkeptError as error:
        raise UnkeptError(_blame(value, what, error)) from None


def loads(text: str) -> Any:
    """The value of `dumps`. Raises `UnkeptError` for a class that is not there any more."""
    try:
        return Reader().read(json.loads(text))
    except UnkeptError:
        raise
    except Exception as error:  # whatever the code of a class raises
        raise UnkeptError(f"{type(error).__name__}: {error}") from error


# -- to JSON --------------------------------------------------------------------------------


def _checked(value: Any, without: object = None) -> str:
    """The text of a value that can be read back. Raises `UnkeptError` without a path."""
    text, doubtful = _text(value, without)
    if doubtful:
        again, _ = _text(loads(text), None)
        if again != text:
            raise UnkeptError("which comes back as another value")
    return text


def _text(value: Any, without: object) -> tuple[str, bool]:
    """The text of a value, and whether it has to be read back to know that it is right."""
    try:
        writer = Writer(without)
        made = writer.write(value, 0)
        if writer.again:  # a value that can change is there twice
            writer = Writer(without, writer.again)
            made = writer.write(value, 0)
        try:
            return orjson.dumps(made).decode(), writer.doubtful
        except TypeError:  # an integer of more than 64 bits, or half of a surrogate pair
            careful = CarefulWriter(None, writer.shared)
            made = careful.write(value, 0)
            return json.dumps(made, separators=(",", ":")), True
    except UnkeptError:
        raise
    except RecursionError:
        raise TooDeepError from None
    except Exception as error:  # whatever the code of a class raises
        words = str(error) if type(error) is TypeError else f"{type(error).__name__}: {error}"
        raise UnkeptError(f"which cannot be written ({words})") from error


class Writer:
    """Makes JSON of one value.

    ``again`` are the values that can change and came more than once, by their ids. Where there are
    some, a second writer takes them as ``shared``, and gives them numbers. ``doubtful`` tells
    whether anything was written that its own class has to make again.
    """

    plain = PLAIN
    """Types whose values are JSON as they are."""

    __slots__ = ("_numbers", "_seen", "again", "doubtful", "shared", "without")

    def __init__(self, without: object = None, shared: Mapping[int, Any] = _NOTHING) -> None:
        self.without = without
        self.shared = shared
        self.again: dict[int, Any] = {}
        self.doubtful = False
        self._seen: dict[int, Any] = {}  # which keeps them: their ids stay theirs
        self._numbers: dict[int, int] = {}

    def write(self, value: Any, depth: int) -> Any:
        """The value as JSON. Raises `UnkeptError`, and what the code of classes raises."""
        kind = type(value)
        plain = self.plain
        if kind in plain or (kind is float and isfinite(value)):
            return value
        if depth > _DEEPEST:
            raise TooDeepError
        if kind is list or kind is dict:
            if (key := id(value)) in self._seen:
                return self._again(key)
            self._seen[key] = value
            if self.shared:
                return self._numbered(value, key, depth)
            return self._items(value, depth) if kind is list else self.object(value, depth)
        if (form := _OURS.get(kind)) is not None:
            return self._of_ours(value, form, depth)
        if kind in _CODECS:
            return self._coded(value, _CODECS[kind], depth)
        if (known := KINDS.get(kind)) is not None or (known := numpy_kind(kind)) is not None:
            return self._of_kind(value, known, depth)
        return self._instance(value, depth)

    def _of_kind(self, value: Any, known: Kind, depth: int) -> dict[str, Any]:
        """A value of a type of the standard library's, or of numpy's."""
        if known.shared and (ref := self._enter(value)) is not None:
            return ref
        made = self._begun(value, known.name)
        if isinstance(value, set | frozenset):
            # In an order that is the same in each process, so that two of them can be compared.
            self.doubtful = self.doubtful or not self.plain.issuperset(map(type, value))
            made["value"] = sorted((self.write(each, depth + 1) for each in value), key=repr)
            return made
        self.doubtful = self.doubtful or not known.plain
        made["value"] = self.write(known.write(value), depth + 1)
        return made

    def _items(self, value: list[Any], depth: int) -> list[Any]:
        plain, write = self.plain, self.write
        if plain.issuperset(map(type, value)):  # many are long lists of token ids
            return value
        # Here, since a call for each number takes longer than all else.
        return [
            each
            if (kind := type(each)) in plain or (kind is float and isfinite(each))
            else write(each, depth + 1)
            for each in value
        ]

    def object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        """A dict as JSON's object, or as pairs where its keys are more than texts."""
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
        """Whether these can be the keys of an object of JSON."""
        return _TEXT.issuperset(map(type, keys))

    # -- what is there more than once ----------------------------------------------------

    def _enter(self, value: Any) -> dict[str, Any] | None:
        """What stands for a value that can change, if it was written already."""
        key = id(value)
        if key in self._seen:
            return self._again(key)
        self._seen[key] = value
        if key in self.shared:
            self._numbers[key] = len(self._numbers)
        return None

    def _again(self, key: int) -> dict[str, Any]:
        if (number := self._numbers.get(key)) is None:
            self.again[key] = self._seen[key]
        return {KIND: _REF, "value": number}

    def _numbered(self, value: Any, key: int, depth: int) -> Any:
        """A list or a dict, with a number if it comes again."""
        number = None
        if key in self.shared:
            number = self._numbers[key] = len(self._numbers)
        is_list = type(value) is list
        made = self._items(value, depth) if is_list else self.object(value, depth)
        if number is None:
            return made
        self.doubtful = True
        return {KIND: "list" if is_list else "object", _ID: number, "value": made}

    def _begun(self, value: Any, name: str) -> dict[str, Any]:
        """The beginning of what stands for a value that can change."""
        number = self._numbers.get(id(value))
        return {KIND: name} if number is None else {KIND: name, _ID: number}

    # -- instances -----------------------------------------------------------------------

    def _coded(self, value: Any, codec: Codec, depth: int) -> Any:
        if (ref := self._enter(value)) is not None:
            return ref
        self.doubtful = True
        kind = type(value)
        made = self._begun(value, _codec_name(kind))
        plain = codec.to_plain(value)
        again = codec.from_plain(plain)
        has_equality = getattr(kind, "__eq__", None) is not object.__eq__
        if type(again) is not kind or (has_equality and again != value):
            raise UnkeptError("which its registered codec makes another value of")
        return made | {_CODED: self.write(plain, depth + 1)}

    def _instance(self, value: Any, depth: int) -> Any:
        """An instance of a class that can be found again."""
        kind = type(value)
        if issubclass(kind, BaseException):
            if (ref := self._enter(value)) is not None:
                return ref
            self.doubtful = True
            return self._begun(value, "") | write_error(value, self, depth)
        if isinstance(value, type):
            return self._class(value)
        if kind in _ALIASES:
            return self._alias(value, depth)
        form = form_of(cast(Hashable, kind))
        if form.own is not None:
            _OURS[kind] = form
            return self._of_ours(value, form, depth)
        if form.write is None:
            raise UnkeptError(form.name)
        self.doubtful = True
        if not form.shared:
            return form.write(self, value, form, depth)
        if (ref := self._enter(value)) is not None:
            return ref
        return self._begun(value, form.name) | form.write(self, value, form, depth)

    def _of_ours(self, value: Any, form: Form, depth: int) -> dict[str, Any]:
        """An instance of a dataclass of agentrt's own."""
        fields = form.own
        assert fields is not None
        # Most fields of a reply are as they were: left out, a row is half as long.
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

    def fresh(self, shared: Mapping[int, Any]) -> Writer:
        """Another one, which knows what is ``shared``."""
        return type(self)(None, shared)

    def reader(self) -> Reader:
        """What reads it again."""
        return Reader()

    def keeps(self, value: Any) -> bool:
        """Whether a journal can keep a value."""
        return type(value) in PLAIN or _fault(value) is None

    def _class(self, value: type[Any]) -> dict[str, Any]:
        name = name_of(value)
        if name is None:
            raise UnkeptError(placeless(value))
        self.doubtful = True
        return {KIND: "class", "value": name}

    def _alias(self, value: Any, depth: int) -> dict[str, Any]:
        """A generic type with its parameters: what ``Box[int](…)`` keeps of its making."""
        self.doubtful = True
        parts = [typing.get_origin(value), *typing.get_args(value)]
        name = _ALIASES[type(value)]
        return {KIND: name, "value": [self.write(part, depth + 1) for part in parts]}

    def state(self, values: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Attributes by their names."""
        return {name: self.write(value, depth + 1) for name, value in values.items()}


class CarefulWriter(Writer):
    """Writes what has numbers and texts that JSON, or its readers, would change."""

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
    """Whether all databases take it: it has no halves of surrogate pairs."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- the part that cannot be kept -----------------------------------------------------------


class TooDeepError(UnkeptError):
    """A value is nested too deeply, as a whole."""

    def __init__(self) -> None:
        super().__init__(f"which is nested more than {_DEEPEST} levels deep")


def _blame(value: Any, what: str, error: UnkeptError) -> str:
    """Which part of a value cannot be kept, why, and what to do."""
    if isinstance(error, TooDeepError):
        return f"{what} is of type {described(type(value))}, {error}; use flatter data"
    seen = {id(value)}
    while True:
        for piece, part in _parts(value):
            fault = None if id(part) in seen else _fault(part)
            if fault is not None:
                seen.add(id(part))
                value, what, error = part, what + piece, fault
                break
        else:
            if isinstance(value, type):
                return f"{what} is the class {described(value)}, {error}; use its name"
            kind = type(value)
            return (
                f"{what} is of type {described(kind)}, {error}; use plain data, or register a "
                f"codec: agentrt.journal.register({kind.__name__}, to_plain, from_plain)"
            )


def _fault(value: Any) -> UnkeptError | None:
    try:
        _checked(value)
    except UnkeptError as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, with how code would come to them."""
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
    """What a collection has, and a time its zone."""
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


# -- and back -------------------------------------------------------------------------------


class Reader:
    """Makes one value of JSON."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def read(self, value: Any) -> Any:
        """The value. Raises `UnkeptError`, and what the code of classes raises."""
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
        """What is no value of a class's own: dicts of any keys, what is there twice, classes."""
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
                return _there(inner)
            case "alias" | "typing alias":
                origin, *parts = map(self.read, inner)
                return origin[tuple(parts)]
        raise UnkeptError(f"a value of an unknown kind {kind!r}")

    def known(self, value: dict[str, Any], made: Any) -> Any:
        """Remember what was made, where it is there more than once."""
        if (number := value.get(_ID)) is not None:
            self._known[number] = made
        return made

    def _instance(self, name: str, value: dict[str, Any]) -> Any:
        if _ERROR in value:
            return self._error(name, value)
        if _CODED in value:
            if (codec := _CODECS_BY_NAME.get(name)) is None:
                raise UnkeptError(f"no codec is registered for {name} now")
            return self.known(value, codec.from_plain(self.read(value[_CODED])))
        kind = _there(name)
        if issubclass(kind, BaseException):
            return self._error(name, value)
        if is_model(kind):
            return self._model(kind, value)
        if issubclass(kind, enum.Enum):
            return kind[value[NAME]] if NAME in value else kind(self.read(value["value"]))
        if (fields := fields_of(kind)) is not None:
            if STATE in value:
                return self._fields(kind, value, fields)
            # One of ours, or of an older journal.
            return kind(**{key: self.read(item) for key, item in value.items() if key != KIND})
        if (base := built_in(kind)) in BASES:
            return self._subclass(kind, value, BASES[base])
        raise UnkeptError(f"{name} is another class now")

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
        if SET not in value:  # of an older journal
            return kind.model_validate(self.read(value["value"]))
        if OF in value:
            kind = kind[tuple(self.read(part) for part in value[OF])]
        made = self.known(value, kind.__new__(kind))
        fields = self.read(value["value"])
        for name, field in kind.model_fields.items():
            if name not in fields:
                if field.is_required():
                    raise UnkeptError(f"{kind.__qualname__} has a field {name!r} that is missing")
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


def _there(name: str) -> type[Any]:
    kind = class_of(name)
    if kind is None:
        raise UnkeptError(missing(name))
    return kind


def _codec_name(kind: type[Any]) -> str:
    return any_name_of(kind)
