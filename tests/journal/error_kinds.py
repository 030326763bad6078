"""Kinds of errors that tools raise, each raised by a function."""

from __future__ import annotations

import asyncio
import decimal
import importlib
import json
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any, NoReturn

import httpx
import pydantic
from pydantic_core import PydanticCustomError

from agentrt.errors import ToolFailedError
from tests.journal.value_kinds import Aliased, Base, Plain


class ShopError(Exception):
    """An error whose constructor takes other arguments than it keeps."""

    def __init__(self, goods: str, *, code: int) -> None:
        super().__init__(f"{goods} is sold out")
        self.code = code


class TextError(Exception):
    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class SlotError(ValueError):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


class DiskError(OSError):
    pass


class BothError(KeyError, ValueError):
    pass


class TextlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NewError(Exception):
    def __new__(cls, *args: Any, needed: int) -> NewError:
        return super().__new__(cls, *args)

    def __init__(self, needed: int) -> None:
        super().__init__(needed)


class Checked(pydantic.BaseModel):
    x: int
    y: int = 0

    @pydantic.field_validator("y")
    @classmethod
    def positive(cls, value: int) -> int:
        if value == 1:
            raise ValueError("not {one}")
        if value == 2:
            raise PydanticCustomError("odd", "odd {n}", {"n": 2})
        return value


def throw(error: BaseException) -> NoReturn:
    raise error


def caused() -> None:
    try:
        dict[str, int]()["x"]
    except KeyError as error:
        raise ShopError("tea", code=3) from error


def in_context() -> None:
    try:
        caused()
    except ShopError:
        raise RuntimeError("later") from None


def noted() -> None:
    error = ValueError("a")
    error.add_note("first")
    error.add_note("second")
    raise error


def local() -> None:
    class LocalError(ShopError):
        pass

    raise LocalError("milk", code=4)


def grouped() -> None:
    raise ExceptionGroup("several", [ValueError(1), ExceptionGroup("inner", [OSError(2, "x")])])


def answered() -> None:
    httpx.Response(404, request=httpx.Request("GET", "http://tea")).raise_for_status()


def circular() -> None:
    first, other = ValueError("one"), ValueError("other")
    first.__cause__, other.__cause__ = other, first
    raise first


ERRORS: dict[str, Callable[[], Any]] = {
    "missing file": lambda: open("/no/such"),  # noqa: PTH123, SIM115
    "folder": lambda: pathlib.Path("/").read_text("utf-8"),
    "rename": lambda: pathlib.Path("/no/a").rename("/no/b"),
    "error number": lambda: throw(OSError(99, "made up")),
    "OS error with a text": lambda: throw(OSError("text")),
    "OS error of a subclass": lambda: throw(DiskError(28, "full", "/d")),
    "timeout": lambda: throw(TimeoutError()),
    "asyncio's timeout": lambda: throw(asyncio.TimeoutError("t")),
    "key": lambda: dict[str, int]()["x"],
    "index": lambda: [][0],
    "attribute": lambda: object().nothing,  # type: ignore[attr-defined]
    "name": lambda: eval("nothing"),
    "type": lambda: len(3),  # type: ignore[arg-type]
    "value": lambda: int("x"),
    "division": lambda: 1 / 0,
    "overflow": lambda: 2.0**10000,
    "assertion": lambda: throw(AssertionError()),
    "not implemented": lambda: throw(NotImplementedError("later")),
    "recursion": lambda: throw(RecursionError("deep")),
    "decoding": lambda: b"\xff".decode(),
    "encoding": lambda: "\ud800".encode(),
    "JSON": lambda: json.loads("{"),
    "syntax": lambda: compile("a b", "f.py", "exec"),
    "import": lambda: importlib.import_module("no.such"),
    "decimal": lambda: decimal.Decimal("x"),
    "command": lambda: subprocess.run(["false"], check=True),
    "command not found": lambda: subprocess.run(["/no/such"], check=True),
    "HTTP status": answered,
    "validation": lambda: Aliased.model_validate({}),
    "validation of several": lambda: Checked.model_validate({"x": "a", "y": 1}),
    "validation with its own error": lambda: Checked.model_validate({"x": 1, "y": 2}),
    "validation of an object": lambda: Checked.model_validate({"x": Plain(1)}),
    "validation of a model": lambda: Checked.model_validate({"x": Base()}),
    "tool": lambda: throw(ToolFailedError("no", name="look", type="Odd")),
    "constructor that wants more": lambda: throw(ShopError("tea", code=3)),
    "__new__ that wants more": lambda: throw(NewError(needed=3)),
    "text of its own": lambda: throw(TextError(7)),
    "slots": lambda: throw(SlotError(3)),
    "two built-in classes": lambda: throw(BothError("a")),
    "text that fails": lambda: throw(TextlessError("a")),
    "class of a function": local,
    "argument that cannot be kept": lambda: throw(ValueError("a", Plain(1))),
    "tuple and enum as arguments": lambda: throw(ValueError((1, 2), "\ud800", 10**30)),
    "notes": noted,
    "cause": caused,
    "context that is suppressed": in_context,
    "cause of itself": circular,
    "group": grouped,
}
