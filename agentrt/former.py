"""Former public names, which still work with a warning until version 0.4 (docs/versions.md)."""

from __future__ import annotations

import dis
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from types import FrameType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

_WRITTEN = ("IMPORT_FROM", "LOAD_ATTR", "LOAD_METHOD")


def former_names(**names: str) -> Callable[[type[T]], type[T]]:
    """Let a class also accept former names of its attributes. Each keyword is a former name, and
    the keyword's value is the present name.

    ``value.former`` returns the attribute, and ``Kind(former=…)`` sets it. Both warn.
    """

    def add(kind: type[T]) -> type[T]:
        constructor = "__new__" if issubclass(kind, tuple) else "__init__"
        make, renamed = getattr(kind, constructor), tuple(names.items())

        @wraps(make)
        def accept(first: Any, /, *args: Any, **options: Any) -> Any:
            for former, name in renamed:
                if former in options:
                    _warn(f"{kind.__name__}({former}=…)", f"{name}=", level=3)
                    options[name] = options.pop(former)
            return make(first, *args, **options)

        setattr(kind, constructor, accept)
        for former, name in names.items():
            setattr(kind, former, _FormerName(f"{kind.__name__}.{former}", name))
        return kind

    return add


class _FormerName:
    """A descriptor that reads an attribute by its former name."""

    def __init__(self, former: str, name: str) -> None:
        self._former, self._name = former, name

    def __get__(self, instance: Any, kind: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        _warn(self._former, self._name, level=3)
        return getattr(instance, self._name)


def warn_of_former_place(module_name: str, *names: str, now: str = "agentrt.engines") -> None:
    """Make a module warn users of the ``names`` that the names have moved to the module ``now``.

    The names still work. agentrt's own modules get no warning. Neither does ``getattr``, by which
    libraries look a name up to pickle or inspect a value.
    """

    class FormerPlace(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name in names:
                caller = sys._getframe(1)
                package = caller.f_globals.get("__name__", "").partition(".")[0]
                if package != "agentrt" and _is_written(caller):
                    _warn(f"{module_name}.{name}", f"{now}.{name}", level=3)
            return super().__getattribute__(name)

    sys.modules[module_name].__class__ = FormerPlace


def _is_written(caller: FrameType) -> bool:
    """Whether the caller's source code names the attribute that it reads, in an import or after a
    dot, instead of reading the attribute with ``getattr``.
    """
    return dis.opname[caller.f_code.co_code[caller.f_lasti]] in _WRITTEN


def show_warnings() -> None:
    """Let Python print the warnings about former names. By default, Python prints a
    `DeprecationWarning` only for code of the module ``__main__``, and a user's program is another
    module.
    """
    warnings.filterwarnings("default", ".* until version 0", DeprecationWarning)


def _warn(former: str, name: str, *, level: int) -> None:
    text = f"{former} is now {name}; the old name works until version 0.4"
    warnings.warn(text, DeprecationWarning, stacklevel=level)
