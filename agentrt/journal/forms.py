"""How a journal writes instances of classes: by which of their attributes, and made again how.

An instance is its attributes, whatever its class makes of them: neither constructors nor validators
run again. `form_of` says how a class is written; `agentrt.journal.codec` writes and reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast

from agentrt.journal.classes import name_of
from agentrt.journal.kinds import UnkeptError

KIND = "$"
STATE = "$state"
"""Attributes of an instance that are no fields."""
SET, EXTRA, PRIVATE, OF = "$set", "$extra", "$private", "$of"
"""Of a pydantic model: which fields were set, its extra and private attributes, its parameters."""
NAME = "$name"
PLAIN = frozenset({str, int, bool, type(None)})
_OWN = "agentrt."
_UNKEPT = "which a journal cannot keep"
_HASH = "_attrs_cached_hash"
"""Where ``attrs`` keeps a hash, which is another one in each process."""
_HEAP_TYPE = 1 << 9


class OwnFields(NamedTuple):
    """Fields of a dataclass of ours with their defaults; ``read`` gives the values of all. What is
    ``plain`` is JSON as it is, and what is ``packed`` are token ids.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    read: Callable[[Any], tuple[Any, ...]]
    plain: frozenset[str]
    packed: frozenset[str]


class Writing(Protocol):
    """What makes JSON of one value: `agentrt.journal.codec.Writer`."""

    again: dict[int, Any]

    def write(self, value: Any, depth: int) -> Any:
        """Return the value as JSON."""

    def object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        """Return a dict as JSON."""

    def state(self, values: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Return attributes by their names."""

    def are_texts(self, keys: Mapping[Any, Any]) -> bool:
        """Whether these can be the keys of an object of JSON."""

    def fresh(self, shared: Mapping[int, Any]) -> Writing:
        """Another one, which knows what is ``shared``."""

    def reader(self) -> Reading:
        """What reads it again."""

    def keeps(self, value: Any) -> bool:
        """Whether a journal can keep a value."""


class Reading(Protocol):
    """What makes a value of JSON: `agentrt.journal.codec.Reader`."""

    def read(self, value: Any) -> Any:
        """Return the value."""

    def known(self, value: dict[str, Any], made: Any) -> Any:
        """Remember what was made, where it is there more than once."""


class Form(NamedTuple):
    """How instances of a class are written: by ``write``, or as those of ``own`` classes. Where
    neither is there, ``name`` says why they cannot be.
    """

    name: str
    write: Callable[[Writing, Any, Form, int], dict[str, Any]] | None = None
    own: OwnFields | None = None
    fields: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    base: type[Any] | None = None
    shared: bool = True


@lru_cache(maxsize=256)
def form_of(kind: Any) -> Form:
    """How instances of a class are written."""
    if is_model(kind):
        origin = kind.__pydantic_generic_metadata__["origin"]
        name = name_of(origin or kind)
        return Form(name or placeless(origin or kind), _write_model if name else None)
    if (name := name_of(kind)) is None:
        return Form(placeless(kind))
    if issubclass(kind, enum.Enum):
        return Form(name, _write_member, shared=False)
    if dataclasses.is_dataclass(kind) and kind.__module__.startswith(_OWN):
        return Form(name, own=_own_fields(cast(Any, kind)))
    slots = slots_of(kind)
    if (fields := fields_of(kind)) is not None:
        return Form(name, _write_fields, fields=tuple(fields), slots=slots)
    base = built_in(kind)
    if base in BASES:
        is_shared = base in (list, dict, set, bytearray)
        return Form(name, _write_subclass, slots=slots, base=base, shared=is_shared)
    return Form(_UNKEPT)


def placeless(kind: type[Any]) -> str:
    """Why instances of a class that is not found again cannot be written."""
    if "<locals>" in kind.__qualname__:
        return "whose class is defined inside a function"
    is_pythons = kind.__module__.partition(".")[0] in (*sys.stdlib_module_names, "builtins")
    return _UNKEPT if is_pythons else "whose class is not found by its name"


def is_model(kind: type[Any]) -> bool:
    """Whether it is a class of pydantic's models."""
    return hasattr(kind, "__pydantic_generic_metadata__") and hasattr(kind, "model_validate")


def fields_of(kind: type[Any]) -> dict[str, Any] | None:
    """The fields of a dataclass, or of a class of ``attrs``, by their names."""
    if dataclasses.is_dataclass(kind):
        return {field.name: field for field in dataclasses.fields(kind)}
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else {field.name: field for field in attributes}


def built_in(kind: type[Any]) -> type[Any]:
    """The first class that was not made by a ``class`` statement: it has the value's own data."""
    return next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)


def slots_of(kind: type[Any]) -> tuple[str, ...]:
    """The names under which instances of a class keep attributes outside of their ``__dict__``."""
    names = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def attributes_of(value: Any, slots: tuple[str, ...]) -> dict[str, Any]:
    """What is set on an instance, whatever its class makes of that."""
    attributes = dict(getattr(value, "__dict__", ()))
    for name in slots:
        with contextlib.suppress(AttributeError):
            attributes[name] = object.__getattribute__(value, name)
    if _HASH in attributes:
        attributes[_HASH] = None
    return attributes


def _own_fields(kind: type[Any]) -> OwnFields:
    fields = [field for field in dataclasses.fields(kind) if field.init]
    names = tuple(field.name for field in fields)
    # With one name, and with none, attrgetter gives no tuple.
    read = attrgetter(*names) if len(names) > 1 else partial(_read, names)
    plain = frozenset(field.name for field in fields if field.metadata.get("plain"))
    packed = frozenset(field.name for field in fields if field.metadata.get("packed"))
    return OwnFields(names, tuple(field.default for field in fields), read, plain, packed)


def _read(names: tuple[str, ...], value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in names)


def _write_fields(writer: Writing, value: Any, form: Form, depth: int) -> dict[str, Any]:
    """An instance of a dataclass. That its attributes are here says that it is to be made without
    its constructor.
    """
    rest = attributes_of(value, form.slots)
    fields = {name: rest.pop(name) for name in form.fields if name in rest}
    return writer.state(fields, depth) | {STATE: writer.state(rest, depth)}


def _write_model(writer: Writing, value: Any, form: Form, depth: int) -> dict[str, Any]:
    """A model of pydantic's. Its fields are there as they are, and not as it would dump them."""
    made: dict[str, Any] = {}
    generic = type(value).__pydantic_generic_metadata__
    if generic["origin"] is not None:
        made[OF] = [writer.write(part, depth + 1) for part in generic["args"]]
    made["value"] = writer.state(vars(value), depth)
    extra, private = value.__pydantic_extra__, value.__pydantic_private__
    names = vars(value).keys() | (extra or {}).keys()
    known = value.__pydantic_fields_set__
    made[SET] = True if known == names else sorted(known)
    if extra is not None:
        made[EXTRA] = writer.state(extra, depth)
    if private is not None:
        made[PRIVATE] = writer.state(private, depth)
    return made


def _write_member(writer: Writing, value: Any, form: Form, depth: int) -> dict[str, Any]:
    """A member of an enum: by its value, or by its name where the value is not JSON's own."""
    inner = value._value_
    if type(inner) in PLAIN or value._name_ not in type(value).__members__:
        return {KIND: form.name, "value": writer.write(inner, depth + 1)}
    return {KIND: form.name, NAME: value._name_}


def _write_subclass(writer: Writing, value: Any, form: Form, depth: int) -> dict[str, Any]:
    """A value of a subclass of a built-in type, as one of that type."""
    assert form.base is not None
    inner = BASES[form.base].write(value)
    made: dict[str, Any] = {} if form.shared else {KIND: form.name}
    # Not as a value of its own: that it comes once is all that matters.
    made["value"] = (
        writer.object(inner, depth + 1) if form.base is dict else writer.write(inner, depth + 1)
    )
    if rest := attributes_of(value, form.slots):
        made[STATE] = writer.state(rest, depth)
    return made


class Base(NamedTuple):
    """How a value of a subclass of a built-in type is taken for one of that, and made again."""

    write: Callable[[Any], Any]
    make: Callable[[type[Any], Any], Any]


def _filled(base: Any, fill: Callable[[Any, Any], Any]) -> Callable[[type[Any], Any], Any]:
    """Make an empty one, and fill it without the methods of its own class."""

    def make(kind: type[Any], value: Any) -> Any:
        made = base.__new__(kind)
        fill(made, value)
        return made

    return make


def _fill_dict(made: Any, value: Any) -> None:
    for key, item in value.items():
        dict.__setitem__(made, key, item)


BASES: dict[Any, Base] = {
    str: Base(str.__str__, str.__new__),
    int: Base(int.__pos__, int.__new__),
    float: Base(float.__pos__, float.__new__),
    bytes: Base(lambda value: bytes.__getitem__(value, slice(None)), bytes.__new__),
    tuple: Base(lambda value: tuple.__getitem__(value, slice(None)), tuple.__new__),
    frozenset: Base(
        lambda value: frozenset(frozenset.__iter__(value)),
        lambda kind, value: frozenset.__new__(kind, value),
    ),
    list: Base(lambda value: list.__getitem__(value, slice(None)), _filled(list, list.extend)),
    dict: Base(lambda value: dict(dict.items(value)), _filled(dict, _fill_dict)),
    set: Base(lambda value: set(set.__iter__(value)), _filled(set, set.update)),
    bytearray: Base(
        lambda value: bytearray.__getitem__(value, slice(None)),
        _filled(bytearray, bytearray.extend),
    ),
}


def is_slot(kind: type[Any], name: str) -> bool:
    """Whether a class attribute is no default, but where instances keep a value."""
    return isinstance(vars(kind)[name], types.MemberDescriptorType)


def default_of(kind: type[Any], field: Any) -> Any:
    """What a field has that was not there yet when a value was recorded."""
    factory = getattr(field, "default_factory", dataclasses.MISSING)
    if factory is not dataclasses.MISSING:
        return factory()
    if not isinstance(field, dataclasses.Field) or field.default is dataclasses.MISSING:
        raise UnkeptError(f"{kind.__qualname__} has a field {field.name!r} that is missing")
    return field.default


def set_attributes(made: Any, values: Mapping[str, Any]) -> None:
    """Set attributes without the class' own ways to do so."""
    own = getattr(made, "__dict__", None)
    slots = () if own is None else slots_of(type(made))
    for name, value in values.items():
        if own is not None and name not in slots:
            own[name] = value
        else:
            object.__setattr__(made, name, value)
