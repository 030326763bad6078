"""The forms in which a journal records instances of classes.

An instance is recorded as its attributes. When it is read back, the attributes are set on a new
instance without running constructors or validators. `form_of` chooses the form of a class, and
`agentrt.journal.codec` writes and reads values in this form.
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

from agentrt.journal.classes import name_of, recorded_name
from agentrt.journal.kinds import UnkeptError

KIND = "$"
STATE = "$state"
"""The key for attributes of an instance that are not fields."""
SET, EXTRA, PRIVATE, OF = "$set", "$extra", "$private", "$of"
"""The keys in the JSON of a pydantic model for the names of the fields that were set, for the extra
attributes, for the private attributes, and for the type parameters.
"""
NAME = "$name"
PLAIN = frozenset({str, int, bool, type(None)})
_OWN = "agentrt."
_UNKEPT = "which a journal cannot keep"
_HASH = "_attrs_cached_hash"
"""The attribute in which ``attrs`` caches the hash of an instance. The hash differs in each
process.
"""
_HEAP_TYPE = 1 << 9


class OwnFields(NamedTuple):
    """The fields of a dataclass of agentrt, with their defaults.

    ``read`` returns the values of all fields. ``plain`` has the names of fields that need no
    conversion, and ``packed`` has the names of fields that hold token ids.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    read: Callable[[Any], tuple[Any, ...]]
    plain: frozenset[str]
    packed: frozenset[str]


class Checks:
    """The results of the checks of the parts of one value, so that each part is checked only once.

    A check of a part writes the part, which checks the parts inside it. If each check were repeated
    wherever its part is written, the number of checks would grow exponentially with the depth.
    ``running`` is the number of checks that have begun and not ended.
    """

    __slots__ = ("_results", "running")

    def __init__(self) -> None:
        self.running = 0
        # Holding the parts keeps their ids from being used for other values.
        self._results: dict[tuple[str, int], tuple[Any, bool]] = {}

    def passes(self, name: str, part: Any, check: Callable[[Any], bool]) -> bool:
        """Return whether a part passes a check. ``name`` names the check. The result is False while
        the check runs, which ends the check of a part that contains itself.
        """
        key = name, id(part)
        if key not in self._results:
            self._results[key] = part, False
            self.running += 1
            self._results[key] = part, check(part)
            self.running -= 1
        return self._results[key][1]


class FormWriter(Protocol):
    """The methods of `agentrt.journal.codec.ValueWriter` that the forms use.

    ``checks`` is None if the value to write was just read back from a text. The new text is then
    compared with that text, so the parts of the value need no checks. ``unread`` has the ids of
    errors whose arguments are being written. These arguments are read before the error exists, so
    they cannot refer to it.
    """

    again: dict[int, Any]
    unread: set[int]
    checks: Checks | None

    def write(self, value: Any, depth: int) -> Any:
        """Return the value as JSON."""

    def object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        """Return a dict as JSON."""

    def state(self, values: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Return the attributes of an object as a JSON object: each value under its name."""

    def are_texts(self, keys: Mapping[Any, Any]) -> bool:
        """Return whether all keys are texts, so that they can be the keys of a JSON object."""

    def fresh(self, shared: Mapping[int, Any], checks: Checks | None) -> FormWriter:
        """Return a new writer. It writes each of the ``shared`` values, which occur more than once,
        a single time.
        """

    def reader(self) -> FormReader:
        """Return a reader for the JSON that this writer makes."""

    def keeps(self, value: Any) -> bool:
        """Return whether a journal can record a value."""


class FormReader(Protocol):
    """The methods of `agentrt.journal.codec.ValueReader` that the forms use."""

    def read(self, value: Any) -> Any:
        """Return the value that its JSON ``value`` describes."""

    def known(self, value: dict[str, Any], made: Any) -> Any:
        """Return ``made``. If ``value``, which is its JSON, has a number, remember ``made`` by this
        number.
        """


class Form(NamedTuple):
    """The form of the instances of a class.

    The function ``write`` writes the instances. If the class is a dataclass of agentrt, the fields
    in ``own`` are written instead. With neither, instances cannot be recorded, and ``name`` is not
    the name of the class but says why.
    """

    name: str
    write: Callable[[FormWriter, Any, Form, int], dict[str, Any]] | None = None
    own: OwnFields | None = None
    fields: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    base: type[Any] | None = None
    shared: bool = True


@lru_cache(maxsize=256)
def form_of(kind: Any) -> Form:
    """Return the form of the instances of a class."""
    if is_model(kind):
        origin = kind.__pydantic_generic_metadata__["origin"]
        name = name_of(origin or kind)
        return Form(name or unfindable(origin or kind), _write_model if name else None)
    if (name := name_of(kind)) is None:
        return Form(unfindable(kind))
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


def unfindable(kind: type[Any]) -> str:
    """Return a text that says why instances of ``kind`` cannot be recorded. ``kind`` is a class
    that cannot be found by its name.
    """
    if "<locals>" in kind.__qualname__:
        return "which is defined inside a function"
    is_pythons = kind.__module__.partition(".")[0] in (*sys.stdlib_module_names, "builtins")
    return _UNKEPT if is_pythons else "which is not found by its name"


def is_model(kind: type[Any]) -> bool:
    """Return whether a class is a pydantic model."""
    return hasattr(kind, "__pydantic_generic_metadata__") and hasattr(kind, "model_validate")


def fields_of(kind: type[Any]) -> dict[str, Any] | None:
    """Return the fields of a dataclass or of an ``attrs`` class by their names; None for any other
    class.
    """
    if dataclasses.is_dataclass(kind):
        return {field.name: field for field in dataclasses.fields(kind)}
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else {field.name: field for field in attributes}


def built_in(kind: type[Any]) -> type[Any]:
    """Return the first built-in class among the bases of a class. The built-in class holds the data
    of an instance that is not in attributes.
    """
    return next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)


def slots_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the attributes of a class that are not in the ``__dict__`` of its
    instances.
    """
    names = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def attributes_of(value: Any, slots: tuple[str, ...]) -> dict[str, Any]:
    """Return all attributes that are set on an instance, without calling code of its class."""
    attributes = dict(getattr(value, "__dict__", ()))
    for name in slots:
        with contextlib.suppress(AttributeError):
            attributes[name] = object.__getattribute__(value, name)
    if _HASH in attributes:
        attributes[_HASH] = None
    return attributes


def _own_fields(kind: type[Any]) -> OwnFields:
    fields = [field for field in dataclasses.fields(kind) if field.init]
    attributes = tuple(field.name for field in fields)
    # attrgetter returns a tuple only for two or more names.
    read = attrgetter(*attributes) if len(attributes) > 1 else partial(_read, attributes)
    names = tuple(map(recorded_name, fields))
    plain = frozenset(recorded_name(field) for field in fields if field.metadata.get("plain"))
    packed = frozenset(recorded_name(field) for field in fields if field.metadata.get("packed"))
    return OwnFields(names, tuple(field.default for field in fields), read, plain, packed)


def _read(names: tuple[str, ...], value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in names)


def _write_fields(writer: FormWriter, value: Any, form: Form, depth: int) -> dict[str, Any]:
    """Return the fields and the other attributes of an instance of a dataclass or of an ``attrs``
    class as JSON. The key `STATE` tells the reader to make the instance without its constructor.
    """
    rest = attributes_of(value, form.slots)
    fields = {name: rest.pop(name) for name in form.fields if name in rest}
    return writer.state(fields, depth) | {STATE: writer.state(rest, depth)}


def _write_model(writer: FormWriter, value: Any, form: Form, depth: int) -> dict[str, Any]:
    """Return a pydantic model as JSON. The values of its fields are written as they are, not as
    ``model_dump`` would convert them.
    """
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


def _write_member(writer: FormWriter, value: Any, form: Form, depth: int) -> dict[str, Any]:
    """Return an enum member as JSON, by its value or by its name. The value is written if its type
    is in `PLAIN`, or if the member has no name of its own, such as a combination of flags.
    """
    inner = value._value_
    if type(inner) in PLAIN or value._name_ not in type(value).__members__:
        return {KIND: form.name, "value": writer.write(inner, depth + 1)}
    return {KIND: form.name, NAME: value._name_}


def _write_subclass(writer: FormWriter, value: Any, form: Form, depth: int) -> dict[str, Any]:
    """Return an instance of a subclass of a built-in type as JSON."""
    assert form.base is not None
    inner = BASES[form.base].write(value)
    made: dict[str, Any] = {} if form.shared else {KIND: form.name}
    # The inner value is a temporary copy, so it gets no number.
    made["value"] = (
        writer.object(inner, depth + 1) if form.base is dict else writer.write(inner, depth + 1)
    )
    if rest := attributes_of(value, form.slots):
        made[STATE] = writer.state(rest, depth)
    return made


class Base(NamedTuple):
    """The functions for subclasses of a built-in type. ``write`` converts an instance of a subclass
    to an instance of the built-in type, and ``make`` converts it back.
    """

    write: Callable[[Any], Any]
    make: Callable[[type[Any], Any], Any]


def _fill_empty(base: Any, fill: Callable[[Any, Any], Any]) -> Callable[[type[Any], Any], Any]:
    """Return a function that makes an empty instance of a subclass of ``base``, and fills it
    without calling methods of the subclass.
    """

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
    list: Base(lambda value: list.__getitem__(value, slice(None)), _fill_empty(list, list.extend)),
    dict: Base(lambda value: dict(dict.items(value)), _fill_empty(dict, _fill_dict)),
    set: Base(lambda value: set(set.__iter__(value)), _fill_empty(set, set.update)),
    bytearray: Base(
        lambda value: bytearray.__getitem__(value, slice(None)),
        _fill_empty(bytearray, bytearray.extend),
    ),
}


def is_slot(kind: type[Any], name: str) -> bool:
    """Return whether a class attribute is a slot of instances, and not a default."""
    return isinstance(vars(kind)[name], types.MemberDescriptorType)


def default_of(kind: type[Any], field: Any) -> Any:
    """Return the default of a field that did not exist yet when the value was recorded. Raises
    `UnkeptError` if the field has no default, or belongs to an ``attrs`` class.
    """
    factory = getattr(field, "default_factory", dataclasses.MISSING)
    if factory is not dataclasses.MISSING:
        return factory()
    if not isinstance(field, dataclasses.Field) or field.default is dataclasses.MISSING:
        is_attrs = not isinstance(field, dataclasses.Field)
        way_out = "use a dataclass with a default" if is_attrs else "give this field a default"
        raise UnkeptError(
            f"{kind.__qualname__} was recorded without field {field.name!r}; {way_out}"
        )
    return field.default


def set_attributes(made: Any, values: Mapping[str, Any]) -> None:
    """Set attributes without calling code of the class."""
    own = getattr(made, "__dict__", None)
    slots = () if own is None else slots_of(type(made))
    for name, value in values.items():
        if own is not None and name not in slots:
            own[name] = value
        else:
            object.__setattr__(made, name, value)
