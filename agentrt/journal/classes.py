"""The names of classes in a journal, and finding a class by its name.

A class of an installed package is named ``module:qualname``. A class in a user's own file is named
``/folder/./below/agent.py:qualname``, by the path of the file. If the file was below the working
folder of the recording process, ``/./`` marks the end of that folder. A module name would not be
enough, because the module names of two files called ``agent.py`` depend on the order in which they
are loaded. No module is imported to find a class.
"""

from __future__ import annotations

import builtins
import sys
import sysconfig
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

_BELOW = "/./"
"""The mark in a path at the end of the working folder of the process that recorded the class."""
_INSTALLED = ("site-packages", "dist-packages")
_HERE = Path(__file__).parents[1]
"""The folder of agentrt itself, which may be a checkout."""
MAIN = "__main__"


def name_of(kind: type[Any]) -> str | None:
    """Return the name by which `class_of` finds a class; None if it cannot find the class."""
    name = _name_of(cast(Hashable, kind))
    return name if class_of(name) is kind else None


def any_name_of(kind: type[Any]) -> str:
    """Return the name of a class, even if `class_of` would not find the class by this name."""
    return _name_of(cast(Hashable, kind))


def recorded_name(field: Any) -> str:
    """Return the name under which the journal records a field of a dataclass. A renamed field keeps
    its first name there, so that journals of other versions can be read.
    """
    return cast(str, field.metadata.get("recorded_as", field.name))


@lru_cache(maxsize=1024)
def attribute_of(kind: Any, recorded: str) -> str:
    """Return the name of the field that the journal records as ``recorded``; ``recorded`` itself if
    there is no such field.
    """
    fields = getattr(kind, "__dataclass_fields__", {}).values()
    return next((field.name for field in fields if recorded_name(field) == recorded), recorded)


def described(kind: type[Any]) -> str:
    """Return the name of a class for messages: with its module, such as ``decimal.Decimal``. The
    module is left out for a class that is built in or comes from a user's own file, such as
    ``Tea``.
    """
    module = kind.__module__
    path = _file_of(sys.modules.get(module))
    is_own = module in ("builtins", MAIN) or (path is not None and not _is_installed(path))
    return kind.__qualname__ if is_own else f"{module}.{kind.__qualname__}"


@lru_cache(maxsize=1024)
def _name_of(kind: Any) -> str:
    path = _file_of(sys.modules.get(kind.__module__))
    if path is None or _is_installed(path):
        return f"{kind.__module__}:{kind.__qualname__}"
    try:
        folder = Path.cwd()
        marked = f"{folder}{_BELOW}{path.relative_to(folder)}"
    except (ValueError, OSError):  # the file is elsewhere, or the working folder is gone
        marked = str(path)
    return f"{marked}:{kind.__qualname__}"


def class_of(name: str) -> type[Any] | None:
    """Return the class with this name; None if it is not in a loaded module."""
    place, _, qualname = name.rpartition(":")
    for module in _modules_of(place):
        value: Any = module
        for part in qualname.split("."):  # not getattr: a module's __getattr__ may import others
            value = getattr(value, "__dict__", {}).get(part)
        if isinstance(value, type):
            return value
    return None


def missing(name: str) -> str:
    """Return a text that says why `class_of` does not find a class."""
    place, _, qualname = name.rpartition(":")
    if "/" not in place:
        return f"there is no class {qualname} in {place} any more, or {place} is not imported"
    path = Path(place)  # drops the mark
    if not _at(path):
        return (
            f"the class {qualname} was recorded from {path}, which is not loaded now; load this "
            "file"
        )
    return f"there is no class {qualname} in {path} any more"


def _modules_of(place: str) -> list[ModuleType]:
    """Return the loaded modules that may have a class which was recorded from ``place``."""
    if place == "builtins":
        return [builtins]
    if "/" not in place:
        module = sys.modules.get(place)
        return [] if module is None else [module]
    path = Path(place)
    if there := _at(path):
        return there
    if _BELOW not in place or path.exists():
        return []
    # If the whole folder was moved, the file is at the same place below the current working folder.
    return _at(Path.cwd() / place.partition(_BELOW)[2])


_BY_FILE: dict[Path, list[ModuleType]] = {}


def _at(path: Path) -> list[ModuleType]:
    """Return the loaded modules of a file, with the main module first."""
    known = _BY_FILE.get(path, [])
    if not known or any(sys.modules.get(module.__name__) is not module for module in known):
        modules = [module for module in [*sys.modules.values()] if _file_of(module) == path]
        known = _BY_FILE[path] = sorted(modules, key=lambda module: module.__name__ != MAIN)
    return known


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__dict__", {}).get("__file__")
    return _absolute(file) if isinstance(file, str) else None


@lru_cache(maxsize=16384)
def _absolute(file: str) -> Path:
    return Path(file).resolve()


@lru_cache(maxsize=1024)
def _is_installed(path: Path) -> bool:
    """Return whether a module name identifies the file, because the file belongs to Python, to an
    installed package or to agentrt.
    """
    if any(part in _INSTALLED for part in path.parts) or path.is_relative_to(_HERE):
        return True
    return any(path.is_relative_to(folder) for folder in _standard_library())


@lru_cache(maxsize=1)
def _standard_library() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(Path(paths[name]).resolve() for name in ("stdlib", "platstdlib"))
