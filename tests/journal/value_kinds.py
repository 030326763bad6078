"""Kinds of values that tools return. A function makes a new value of each kind."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import ipaddress
import math
import pathlib
import re
import threading
import types
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import numpy as np
import pydantic
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr

from agentrt.interrupts import Event
from agentrt.journal import register
from agentrt.request import CallReport, InvalidToolCall, Reply, ToolCall

T = TypeVar("T")
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")

# -- classes of a program ------------------------------------------------------------------------


class Base(BaseModel):
    a: int = 1


class Sub(Base):
    b: int = 2


class Holder(BaseModel):
    v: Base


class AnyField(BaseModel):
    v: Any


class Aliased(BaseModel):
    x: int = Field(alias="theX")


class Excluded(BaseModel):
    x: int = 1
    hidden: int = Field(default=7, exclude=True)


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: dt.datetime


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.x


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int = 1


class Private(BaseModel):
    x: int = 1
    _seen: list[int] = PrivateAttr(default_factory=list)


class Validated(BaseModel):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def raised(cls, value: int) -> int:
        return value + 1


class Serialized(BaseModel):
    x: int

    @pydantic.field_serializer("x")
    def text(self, value: int) -> str:
        return f"<{value}>"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    x: tuple[int, ...] = (1, 2)


class Cached(BaseModel):
    x: int = 1

    @functools.cached_property
    def big(self) -> tuple[int, ...]:
        return (self.x, 2)


class Raw(BaseModel):
    b: bytes


class Root(RootModel[list[int]]):
    pass


class Secret(BaseModel):
    s: SecretStr


class Box(BaseModel, Generic[T]):
    v: T


class Keyed(BaseModel):
    v: dict[tuple[int, int], str]


class Setty(BaseModel):
    v: set[int]
    d: decimal.Decimal = decimal.Decimal("1.10")


class Node(BaseModel):
    name: str
    next: Node | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


@dataclasses.dataclass
class Posted:
    x: int

    def __post_init__(self) -> None:
        self.x += 1


@dataclasses.dataclass
class Derived:
    x: int
    y: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.y = 2 * self.x


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: Any = 0


@dataclasses.dataclass
class Init:
    x: int
    scale: dataclasses.InitVar[int] = 3

    def __post_init__(self, scale: int) -> None:
        self.x *= scale


@dataclasses.dataclass(eq=False)
class Identity:
    x: int


@dataclasses.dataclass
class Loose:
    x: int = dataclasses.field(compare=False)
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Child(Point):
    z: int = 3


@dataclasses.dataclass
class GenericPoint(Generic[T]):
    v: T


@pydantic.dataclasses.dataclass
class Checked:
    x: int


@attrs.define
class Attrs:
    x: int
    y: list[int] = attrs.field(factory=list)


@attrs.frozen(cache_hash=True)
class AttrsHash:
    x: str


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Planet(enum.Enum):
    EARTH = (5.9, 6.3)

    def __init__(self, mass: float, radius: float) -> None:
        self.mass, self.radius = mass, radius


class Pair(NamedTuple):
    x: int
    y: Any = None


class PairChild(Pair):
    pass


class Movie(TypedDict):
    name: str


class Name(str):
    __slots__ = ()


class Tagged(str):
    tag: Any


class Count(int):
    pass


class Ratio(float):
    pass


class Items(list[Any]):
    pass


class Table(dict[Any, Any]):
    pass


class Attributes(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Moment(dt.datetime):
    pass


class Plain:
    def __init__(self, x: int) -> None:
        self.x = x


class Registered:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registered) and other.x == self.x

    def __hash__(self) -> int:
        return self.x


class BadCodec(Registered):
    pass


register(Registered, lambda value: {"x": value.x}, lambda plain: Registered(plain["x"]))
register(BadCodec, lambda value: None, lambda plain: BadCodec(0))


class BadRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def local_class() -> Any:
    class Local(BaseModel):
        x: int = 1

    return Local()


def local_pair() -> Any:
    Local = collections.namedtuple("Local", "x")  # noqa: PYI024 - as a class is called
    return Local(1)


def with_attribute(value: Any, name: str, attribute: Any) -> Any:
    setattr(value, name, attribute)
    return value


def cyclic() -> Any:
    value: list[Any] = [1]
    value.append({"up": value})
    return value


def shared() -> Any:
    part = [1]
    return {"a": part, "b": part, "c": [part]}


def shared_model() -> Any:
    part = Point(1)
    return [part, Holder(v=Sub()), part]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def read_only() -> Any:
    value = np.arange(3)
    value.flags.writeable = False
    return value


def unset() -> Any:
    return Extra.model_construct(x=2, _fields_set=set())


def changed() -> Any:
    value = Frozen.model_construct(x=[1, 2])
    object.__setattr__(value, "__pydantic_fields_set__", set())
    return value


def ring() -> Any:
    node = Node(name="a")
    node.next = Node(name="b", next=None)
    node.next.next = node
    return node


def deleted() -> Any:
    value = Point(1)
    del value.x
    return value


VALUES: dict[str, Callable[[], Any]] = {
    # JSON's own, at their edges
    "none": lambda: None,
    "true": lambda: True,
    "int": lambda: 7,
    "int of 64 bits": lambda: 2**64 - 1,
    "int below 64 bits": lambda: -(2**63) - 1,
    "huge int": lambda: 10**30,
    "int of 6,000 digits": lambda: 10**6000 + 1,
    "float": lambda: 0.1,
    "float that is whole": lambda: 3.0,
    "negative zero": lambda: -0.0,
    "nan": lambda: math.nan,
    "infinity": lambda: [math.inf, -math.inf],
    "smallest float": lambda: 5e-324,
    "text": lambda: "tea é 漢 😀",
    "empty text": lambda: "",
    "text with NUL": lambda: "a\0b",
    "half a surrogate pair": lambda: "a\ud800",
    "two halves that are a pair": lambda: "\ud83d\ude00",
    "halves in a key": lambda: {"\udc80": 1, "\ud83d\ude00": 2},
    "halves and huge ints": lambda: {"a": ["\ud800", 10**40]},
    "line separators": lambda: "\u2028\x85\r\n",
    "list": lambda: [1, "a", None, 2.5],
    "empty list": lambda: [],
    "dict": lambda: {"b": 1, "a": [2]},
    "order of keys": lambda: dict.fromkeys("zyxa"),
    "key $": lambda: {"$": "bytes", "value": "eA=="},
    "keys that are ints": lambda: {1: "a", 2: "b"},
    "keys of mixed types": lambda: {1: "a", "1": "b", None: "c", False: "d"},
    "keys that are tuples": lambda: {(1, 2): "a", (3, (4,)): "b"},
    "keys that are enums": lambda: {Colour.RED: 1, Number.ONE: 2},
    "keys that are frozensets": lambda: {frozenset({1}): 1},
    "key that is nan": lambda: {math.nan: 1},
    "true and 1": lambda: [True, 1, 1.0],
    "150 levels": lambda: nested(150),
    "3,000 levels": lambda: nested(3000),
    # collections
    "tuple": lambda: (1, (2, [3])),
    "empty tuple": lambda: (),
    "tuple in a dict": lambda: {"a": (1, 2)},
    "set": lambda: {1, 2, 3},
    "set of texts": lambda: {"b", "a"},
    "set of mixed types": lambda: {1, "a", (2, 3), None},
    "set of models": lambda: {Slotted(1), Slotted((2,))},
    "empty set": lambda: set(),
    "frozenset": lambda: frozenset({"a"}),
    "set of frozensets": lambda: {frozenset({1}), frozenset({2})},
    "ordered dict": lambda: collections.OrderedDict([("b", 1), ("a", (2,))]),
    "defaultdict": lambda: collections.defaultdict(list, {"a": [1]}),
    "defaultdict of a lambda": lambda: collections.defaultdict(lambda: 1),
    "defaultdict of none": lambda: collections.defaultdict(None, {"a": 1}),
    "counter": lambda: collections.Counter("abba"),
    "deque": lambda: collections.deque([1, (2,)]),
    "bounded deque": lambda: collections.deque([1, 2], 2),
    "chain map": lambda: collections.ChainMap({"a": 1}),
    "user dict": lambda: collections.UserDict({"a": 1}),
    "mapping proxy": lambda: types.MappingProxyType({"a": (1,)}),
    "namespace": lambda: types.SimpleNamespace(a=1, b=(2,)),
    "array": lambda: array.array("d", [1.5, 2.5]),
    "range": lambda: range(1, 9, 2),
    "slice": lambda: slice(1, None, 2),
    "shared list": shared,
    "shared dataclass": shared_model,
    "list in itself": cyclic,
    "model in itself": ring,
    "generator": lambda: (each for each in [1]),
    "dict view": lambda: {"a": 1}.keys(),
    "iterator": lambda: iter([1]),
    # bytes, numbers, times
    "bytes": lambda: b"\xff\x00",
    "empty bytes": lambda: b"",
    "bytearray": lambda: bytearray(b"ab"),
    "memoryview": lambda: memoryview(b"ab"),
    "complex": lambda: complex(1, -0.0),
    "complex nan": lambda: complex(math.nan, math.inf),
    "decimal": lambda: decimal.Decimal("1.10"),
    "decimal -0.00": lambda: decimal.Decimal("-0.00"),
    "decimal sNaN": lambda: decimal.Decimal("sNaN12"),
    "decimal of 60 digits": lambda: decimal.Decimal("1." + "3" * 60),
    "fraction": lambda: fractions.Fraction(1, 3),
    "date": lambda: dt.date(2026, 3, 28),
    "datetime": lambda: dt.datetime(2026, 3, 28, 12, 0, 0, 1),
    "datetime in UTC": lambda: dt.datetime(2026, 3, 28, tzinfo=dt.UTC),
    "datetime with an offset": lambda: dt.datetime(
        2026, 3, 28, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))
    ),
    "datetime with seconds of offset": lambda: dt.datetime(
        1900, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=3208, microseconds=5))
    ),
    "datetime with a named offset": lambda: dt.datetime(
        2026, 3, 28, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")
    ),
    "datetime with a zone": lambda: dt.datetime(2026, 3, 28, 12, tzinfo=BERLIN),
    "datetime with fold": lambda: dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
    "naive datetime with fold": lambda: dt.datetime(2026, 10, 25, 2, 30, fold=1),
    "first datetime": lambda: dt.datetime.min,
    "datetime of a subclass": lambda: Moment(2026, 3, 28),
    "time": lambda: dt.time(3, 4, 5, 6),
    "time with a zone": lambda: dt.time(3, 4, tzinfo=BERLIN, fold=1),
    "timedelta": lambda: dt.timedelta(days=-1, microseconds=5),
    "timezone": lambda: dt.timezone(dt.timedelta(hours=-3), "X"),
    "zone": lambda: BERLIN,
    "uuid": lambda: uuid.UUID(int=7),
    "uuid that is safe": lambda: uuid.UUID(int=8, is_safe=uuid.SafeUUID.safe),
    "path": lambda: pathlib.Path("/a/b"),
    "pure path": lambda: pathlib.PurePosixPath("a"),
    "Windows path": lambda: pathlib.PureWindowsPath("c:\\a"),
    "pattern": lambda: re.compile("a+", re.IGNORECASE),
    "pattern of bytes": lambda: re.compile(b"a"),
    "IPv4 address": lambda: ipaddress.ip_address("10.0.0.1"),
    "IPv6 network": lambda: ipaddress.ip_network("fe80::/64"),
    "ellipsis": lambda: [..., NotImplemented],
    # classes and functions
    "class": lambda: {"type": int, "model": Base},
    "generic alias": lambda: list[int],
    "local class": lambda: type(local_class()),
    "function": lambda: shared,
    "lambda": lambda: lambda: 1,
    "module": lambda: math,
    # dataclasses and their like
    "dataclass": lambda: Point(1, "a"),
    "dataclass with a tuple": lambda: Point(1, (2, Point(3))),
    "dataclass with __post_init__": lambda: Posted(1),
    "dataclass with init=False": lambda: Derived(2),
    "dataclass with an InitVar": lambda: Init(2),
    "dataclass without equality": lambda: Identity(1),
    "dataclass with compare=False": lambda: Loose(1, ["a"]),
    "dataclass of a subclass": lambda: Child(1, 2),
    "dataclass with more attributes": lambda: with_attribute(Point(1), "also", (2,)),
    "dataclass without a field": deleted,
    "frozen dataclass with slots": lambda: Slotted((1,)),
    "generic dataclass": lambda: GenericPoint(1),
    "generic dataclass of int": lambda: GenericPoint[int](1),
    "dataclass of pydantic": lambda: Checked(1),
    "dataclass with a lock": lambda: Point(1, threading.Lock()),
    "attrs": lambda: Attrs(1, [2]),
    "attrs with a cached hash": lambda: AttrsHash("a"),
    "named tuple": lambda: Pair(1, (2,)),
    "named tuple of a subclass": lambda: with_attribute(PairChild(1), "also", 3),
    "collections.namedtuple": lambda: local_pair(),
    "typed dict": lambda: Movie(name="tea"),
    # enums
    "enum": lambda: Colour.RED,
    "enum of a tuple": lambda: Colour.PAIR,
    "int enum": lambda: Number.ONE,
    "str enum": lambda: Word.A,
    "flag": lambda: Rights.READ,
    "flags": lambda: Rights.READ | Rights.WRITE,
    "no flag": lambda: Rights(0),
    "enum with a constructor": lambda: Planet.EARTH,
    # subclasses of what is built in
    "text of a subclass": lambda: Name("a"),
    "text with an attribute": lambda: with_attribute(Tagged("a"), "tag", (1,)),
    "int of a subclass": lambda: Count(3),
    "float of a subclass": lambda: Ratio(-0.0),
    "list of a subclass": lambda: Items([1, (2,)]),
    "dict of a subclass": lambda: Table({1: (2,)}),
    "dict with attributes": lambda: Attributes(a=1),
    # pydantic
    "model": lambda: Base(a=2),
    "model with defaults": lambda: Base(),
    "model in a list": lambda: [Base(), Sub()],
    "field of a subclass": lambda: Holder(v=Sub()),
    "field of any type with a tuple": lambda: AnyField(v=(1, 2)),
    "field of any type with a model": lambda: AnyField(v=Sub(b=3)),
    "field of any type with a lock": lambda: AnyField(v=[threading.Lock()]),
    "alias": lambda: Aliased(theX=1),
    "excluded field": lambda: Excluded(hidden=8),
    "strict datetime": lambda: Strict(at=dt.datetime(2026, 1, 1, tzinfo=BERLIN)),
    "computed field, extra forbidden": lambda: Computed(x=1),
    "extra fields": lambda: Extra.model_validate({"x": 1, "y": (2,)}),
    "private attribute": lambda: with_attribute(Private(), "_seen", [1]),
    "validator that changes": lambda: Validated(x=1),
    "serializer that changes": lambda: Serialized(x=1),
    "frozen model": lambda: Frozen(),
    "model that breaks its types": changed,
    "model without what was set": unset,
    "cached property": lambda: (value := Cached(), value.big)[0],
    "bytes that are no UTF-8": lambda: Raw(b=b"\xff"),
    "root model": lambda: Root([1, 2]),
    "secret": lambda: Secret(s=SecretStr("pw")),
    "secret alone": lambda: SecretStr("pw"),
    "generic model": lambda: Box[int](v=1),
    "generic model of a model": lambda: Box[Base](v=Sub()),
    "generic model of any": lambda: Box(v=(1,)),
    "keys of a model that are tuples": lambda: Keyed(v={(1, 2): "a"}),
    "set and decimal in a model": lambda: Setty(v={2, 1}),
    "model in a model": lambda: Node(name="a", next=Node(name="b")),
    "model of a local class": local_class,
    # numpy
    "array of ints": lambda: np.arange(6).reshape(2, 3),
    "array of floats": lambda: np.array([math.nan, -0.0, 1.5], dtype="f4"),
    "array in Fortran's order": lambda: np.asfortranarray(np.arange(6).reshape(2, 3)),
    "array of no dimension": lambda: np.array(3),
    "array of texts": lambda: np.array(["a", "bcd"]),
    "array of times": lambda: np.array(["2026-01-01"], dtype="datetime64[D]"),
    "array that is read-only": read_only,
    "array of objects": lambda: np.array([object()]),
    "array with fields": lambda: np.zeros(1, dtype=[("a", "i4")]),
    "numpy float": lambda: np.float64(0.1),
    "numpy int": lambda: np.int8(3),
    "numpy bool": lambda: np.bool_(True),
    # LangChain, and our own
    "human message": lambda: HumanMessage("hi", id="1", name="ann"),
    "system message": lambda: SystemMessage([{"type": "text", "text": "a"}]),
    "assistant message with tool calls": lambda: AIMessage(
        "", tool_calls=[{"name": "look", "args": {"a": (1,)}, "id": "1"}]
    ),
    "chunk of a message": lambda: AIMessageChunk(content="a", response_metadata={"x": 1}),
    "tool message with an artifact": lambda: ToolMessage("a", tool_call_id="1", artifact={1, 2}),
    "removed message": lambda: RemoveMessage(id="1"),
    "document": lambda: Document("a", metadata={"at": dt.date(2026, 1, 1)}),
    "reply": lambda: Reply(
        "tea",
        tool_calls=(ToolCall("look", {"a": 1}, "id"),),
        invalid_tool_calls=(InvalidToolCall("look", "{", "x"),),
        token_logprobs=(((3, -0.25), (4, -1.0)),),
        report=CallReport(service_s=0.5, steps=3, replica="a"),
        choices=(Reply("one"), Reply("two", finish_reason="length")),
    ),
    "event": lambda: Event("plant/a", {"x": [b"y"]}, 3),
    # what belongs to a process
    "object": lambda: object(),
    "instance of a plain class": lambda: Plain(1),
    "instance with a codec": lambda: [Registered(3)],
    "instance with a codec that errs": lambda: BadCodec(4),
    "instance whose repr fails": lambda: BadRepr(),
    "set of what has no order": lambda: {BadRepr()},
    "lock": lambda: {"items": [1, {"lock": threading.Lock()}]},
    "event of a thread": lambda: threading.Event(),
    "error that is returned": lambda: [ValueError("a", 1)],
    "partial": lambda: functools.partial(int, "1"),
}
