"""The forms in which a journal records values of types of the standard library and of numpy.

A `ValueKind` has the type name that is written under the key ``$``, and two functions that convert
a value to a simpler value and back. It is not used for instances of users' subclasses of the type.
`agentrt.journal.forms` has the forms for these instances.
"""

from __future__ import annotations

import array
import base64
import collections
import datetime
import decimal
import fractions
import ipaddress
import pathlib
import re
import sys
import types
import uuid
import zlib
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from agentrt.errors import AgentrtError


class UnkeptError(AgentrtError):
    """A value that a journal cannot record, or cannot read back."""


class ValueKind(NamedTuple):
    """The form in which values of one type are recorded.

    ``write`` converts a value to a simpler value that can be written, and ``read`` converts it
    back. Values of a ``plain`` kind are always read back equal; values of all other kinds, except
    sets of plain values, are checked when they are written. Values of a ``shared`` kind are
    mutable, so a value that occurs several times must be read back as a single object.
    """

    name: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    plain: bool = False
    shared: bool = False


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


# -- times ----------------------------------------------------------------------------------


def _with_zone(read: Callable[[str], Any]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the functions that write and read values of a type with a time zone. A time zone that
    is more than an offset is written separately, because the text of a time has only the offset
    from UTC.
    """

    def written(value: Any) -> Any:
        zone = value.tzinfo
        if not value.fold and (zone is None or _is_offset(zone)):
            return str(value)
        naive = str(value.replace(tzinfo=None, fold=0))
        return {"text": naive, "tzinfo": zone, "fold": value.fold}

    def again(value: Any) -> Any:
        if isinstance(value, str):
            return read(value)
        return read(value["text"]).replace(tzinfo=value["tzinfo"], fold=value["fold"])

    return written, again


def _is_offset(zone: datetime.tzinfo) -> bool:
    """Return whether a time zone is an offset from UTC without a name."""
    return type(zone) is datetime.timezone and len(zone.__getinitargs__()) == 1  # type: ignore[attr-defined]  # no stub has it


def _zone(value: zoneinfo.ZoneInfo) -> str:
    if value.key is None:
        raise UnkeptError("which was made without a key such as Europe/Berlin")
    return value.key


def _delta(value: datetime.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _uuid(value: uuid.UUID) -> Any:
    is_safe = value.is_safe
    return str(value) if is_safe is uuid.SafeUUID.unknown else [str(value), is_safe.name]


def _read_uuid(value: Any) -> uuid.UUID:
    if isinstance(value, str):
        return uuid.UUID(value)
    return uuid.UUID(value[0], is_safe=uuid.SafeUUID[value[1]])


# -- collections ----------------------------------------------------------------------------


def _pairs(value: Mapping[Any, Any]) -> list[list[Any]]:
    return [[key, item] for key, item in value.items()]


def _defaults(value: collections.defaultdict[Any, Any]) -> dict[str, Any]:
    return {"default_factory": value.default_factory, "items": _pairs(value)}


def _bounded(value: collections.deque[Any]) -> dict[str, Any]:
    return {"maxlen": value.maxlen, "items": list(value)}


def _array(value: array.array[Any]) -> list[Any]:
    return [value.typecode, value.tobytes()]


def _read_array(value: Any) -> array.array[Any]:
    return array.array(value[0], value[1])


_LEAST_PACKED = 64


def packed(ids: Sequence[int]) -> dict[str, Any] | None:
    """Return token ids in a compressed form, which has about half of their size as JSON. Return
    None if there are fewer than `_LEAST_PACKED` ids, if the form would save little space, or if the
    values are not token ids.
    """
    if len(ids) < _LEAST_PACKED or {*map(type, ids)} != {int}:
        return None
    try:
        raw = array.array("I", ids)
    except OverflowError:
        return None
    if sys.byteorder != "little":
        raw.byteswap()
    text = _bytes(zlib.compress(raw.tobytes(), 1))
    return {"$": "ids", "value": text} if len(text) < 4 * len(ids) else None


def unpacked(text: str) -> tuple[int, ...]:
    """Return the token ids that `packed` compressed. ``text`` is the ``value`` in its result."""
    raw = array.array("I", zlib.decompress(base64.b64decode(text)))
    if sys.byteorder != "little":
        raw.byteswap()
    return tuple(raw)


# -- numpy ----------------------------------------------------------------------------------


def _is_flat(dtype: Any) -> bool:
    """Return whether the bytes of an array with this ``dtype`` are the array's whole value. They
    are not if the array has references to objects, named fields or subarrays.
    """
    return not dtype.hasobject and dtype.names is None and dtype.subdtype is None


def _ndarray(value: Any) -> dict[str, Any]:
    if not _is_flat(value.dtype):
        raise UnkeptError(f"whose dtype is {value.dtype}")
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return {
        "dtype": value.dtype.str,
        "shape": list(value.shape),
        "order": order,
        "data": value.tobytes(order),
        "writeable": bool(value.flags.writeable),
    }


def _read_ndarray(value: Any) -> Any:
    numpy = _numpy()
    flat = numpy.frombuffer(value["data"], numpy.dtype(value["dtype"]))
    made = flat.reshape(tuple(value["shape"]), order=value["order"]).copy(order=value["order"])
    made.flags.writeable = value["writeable"]
    return made


def _scalar(value: Any) -> list[Any]:
    if not _is_flat(value.dtype):
        raise UnkeptError(f"whose dtype is {value.dtype}")
    return [value.dtype.str, value.tobytes()]


def _read_scalar(value: Any) -> Any:
    numpy = _numpy()
    return numpy.frombuffer(value[1], numpy.dtype(value[0]), count=1)[0]


def _numpy() -> Any:
    """Return the module numpy, which must already be imported, because reading a journal imports no
    module.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise UnkeptError("numpy is not imported; import it before the journal is read")
    return numpy


NDARRAY = ValueKind("ndarray", _ndarray, _read_ndarray, shared=True)
SCALAR = ValueKind("numpy", _scalar, _read_scalar)


def numpy_kind(kind: type[Any]) -> ValueKind | None:
    """Return the kind for numpy's arrays, or for its scalars; None for any other type."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not kind.__module__.startswith("numpy"):
        return None
    if kind is getattr(numpy, "ndarray", None):
        return NDARRAY
    return SCALAR if issubclass(kind, getattr(numpy, "generic", ())) else None


# -- all of them ----------------------------------------------------------------------------

_WRITE_DATETIME, _READ_DATETIME = _with_zone(datetime.datetime.fromisoformat)
_WRITE_TIME, _READ_TIME = _with_zone(datetime.time.fromisoformat)
KINDS: dict[type[Any], ValueKind] = {
    bytes: ValueKind("bytes", _bytes, base64.b64decode, plain=True),
    float: ValueKind("float", repr, float, plain=True),  # nan and inf, which JSON does not have
    tuple: ValueKind("tuple", list, tuple, plain=True),
    set: ValueKind("set", list, set, shared=True),
    frozenset: ValueKind("frozenset", list, frozenset),
    datetime.datetime: ValueKind("datetime", _WRITE_DATETIME, _READ_DATETIME),
    datetime.date: ValueKind("date", str, datetime.date.fromisoformat, plain=True),
    datetime.time: ValueKind("time", _WRITE_TIME, _READ_TIME),
    datetime.timedelta: ValueKind(
        "timedelta", _delta, lambda value: datetime.timedelta(*value), plain=True
    ),
    datetime.timezone: ValueKind(
        "timezone", lambda value: list(value.__getinitargs__()), lambda value: _timezone(*value)
    ),
    zoneinfo.ZoneInfo: ValueKind("zoneinfo", _zone, zoneinfo.ZoneInfo),
    uuid.UUID: ValueKind("uuid", _uuid, _read_uuid),
    decimal.Decimal: ValueKind("decimal", str, decimal.Decimal),
    fractions.Fraction: ValueKind(
        "fraction",
        lambda value: [value.numerator, value.denominator],
        lambda value: fractions.Fraction(*value),
    ),
    complex: ValueKind(
        "complex", lambda value: [value.real, value.imag], lambda value: complex(*value)
    ),
    range: ValueKind(
        "range",
        lambda value: [value.start, value.stop, value.step],
        lambda value: range(*value),
    ),
    slice: ValueKind(
        "slice",
        lambda value: [value.start, value.stop, value.step],
        lambda value: slice(*value),
    ),
    bytearray: ValueKind("bytearray", bytes, bytearray, shared=True),
    array.array: ValueKind("array", _array, _read_array, shared=True),
    type(...): ValueKind("ellipsis", lambda value: None, lambda value: ...),
    type(NotImplemented): ValueKind(
        "notimplemented", lambda value: None, lambda value: NotImplemented
    ),
    re.Pattern: ValueKind(
        "pattern",
        lambda value: [value.pattern, value.flags],
        lambda value: re.compile(value[0], value[1]),
    ),
    collections.OrderedDict: ValueKind("ordereddict", _pairs, collections.OrderedDict, shared=True),
    collections.Counter: ValueKind(
        "counter", _pairs, lambda value: collections.Counter(dict(value)), shared=True
    ),
    collections.defaultdict: ValueKind(
        "defaultdict",
        _defaults,
        lambda value: collections.defaultdict(value["default_factory"], value["items"]),
        shared=True,
    ),
    collections.deque: ValueKind(
        "deque",
        _bounded,
        lambda value: collections.deque(value["items"], value["maxlen"]),
        shared=True,
    ),
    types.MappingProxyType: ValueKind(
        "mappingproxy", dict, lambda value: types.MappingProxyType(value), shared=True
    ),
    types.SimpleNamespace: ValueKind(
        "namespace", vars, lambda value: types.SimpleNamespace(**value), shared=True
    ),
    ipaddress.IPv4Address: ValueKind("ipv4address", str, ipaddress.IPv4Address),
    ipaddress.IPv6Address: ValueKind("ipv6address", str, ipaddress.IPv6Address),
    ipaddress.IPv4Network: ValueKind("ipv4network", str, ipaddress.IPv4Network),
    ipaddress.IPv6Network: ValueKind("ipv6network", str, ipaddress.IPv6Network),
    ipaddress.IPv4Interface: ValueKind("ipv4interface", str, ipaddress.IPv4Interface),
    ipaddress.IPv6Interface: ValueKind("ipv6interface", str, ipaddress.IPv6Interface),
    pathlib.PurePosixPath: ValueKind("pureposixpath", str, pathlib.PurePosixPath),
    pathlib.PureWindowsPath: ValueKind("purewindowspath", str, pathlib.PureWindowsPath),
    type(pathlib.Path()): ValueKind("path", str, pathlib.Path),
}


def _timezone(offset: datetime.timedelta, *name: str) -> datetime.timezone:
    return datetime.timezone(offset, *name)


READERS: Mapping[str, Callable[[Any], Any]] = {
    "ids": unpacked,
    # Values that JSON or databases would refuse: see `agentrt.journal.codec.CarefulValueWriter`.
    "int": lambda value: int(value, 16),
    "str": lambda value: value.decode("utf-8", "surrogatepass"),
    **{kind.name: kind.read for kind in (*KINDS.values(), NDARRAY, SCALAR)},
}
