"""Names under which a journal finds classes again: by the file that they came from.

A class of an installed package is ``module:qualname``. A class of a user's own file is
``/folder/./below/agent.py:qualname``: the file's path, in which ``/./`` marks the working folder at
that time, if the file is below it. Module names do not tell two files called ``agent.py`` apart:
they depend on the order in which the files are loaded. Nothing is imported to find a class.
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
"""What comes before it is the folder in which the process ran."""
_INSTALLED = ("site-packages", "dist-packages")
_HERE = Path(__file__).parents[1]
"""The folder of agentrt itself, which may be a checkout."""
MAIN = "__main__"


def name_of(kind: type[Any]) -> str | None:
    """The name under which `class_of` finds this class again; None if it does not."""
    name = _name_of(cast(Hashable, kind))
    return name if class_of(name) is kind else None


def any_name_of(kind: type[Any]) -> str:
    """The name of a class, whether or not that finds it again."""
    return _name_of(cast(Hashable, kind))


def described(kind: type[Any]) -> str:
    """A class, for people and for code that they write: ``decimal.Decimal``, ``Tea``."""
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
    """The class of this name, if its module is loaded."""
    place, _, qualname = name.rpartition(":")
    for module in _modules_of(place):
        value: Any = module
        for part in qualname.split("."):  # no getattr: a module's own may import others
            value = getattr(value, "__dict__", {}).get(part)
        if isinstance(value, type):
            return value
    return None


def missing(name: str) -> str:
    """Why `class_of` does not find a class, and what to do."""
    place, _, qualname = name.rpartition(":")
    if "/" not in place:
        return f"there is no class {qualname} in {place} any more, or that is not imported"
    path = Path(place)  # which drops the mark
    if not _at(path):
        return f"its class {qualname} was recorded from {path}, which is not loaded now"
    return f"there is no class {qualname} in {path} any more"


def _modules_of(place: str) -> list[ModuleType]:
    """The loaded modules that may have a class which was recorded from this place."""
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
    # All of the folder was moved: the file is at the same place below the working folder now.
    return _at(Path.cwd() / place.partition(_BELOW)[2])


_BY_FILE: dict[Path, list[ModuleType]] = {}


def _at(path: Path) -> list[ModuleType]:
    """The loaded modules of a file, the one that runs as the program first."""
    known = _BY_FILE.get(path, [])
    if not known or any(sys.modules.get(one.__name__) is not one for one in known):
        modules = [one for one in [*sys.modules.values()] if _file_of(one) == path]
        known = _BY_FILE[path] = sorted(modules, key=lambda one: one.__name__ != MAIN)
    return known


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__dict__", {}).get("__file__")
    return _absolute(file) if isinstance(file, str) else None


@lru_cache(maxsize=16384)
def _absolute(file: str) -> Path:
    return Path(file).resolve()


@lru_cache(maxsize=1024)
def _is_installed(path: Path) -> bool:
    """Whether module names find a file again: it belongs to Python, to a package, or to us."""
    if any(part in _INSTALLED for part in path.parts) or path.is_relative_to(_HERE):
        return True
    return any(path.is_relative_to(folder) for folder in _standard_library())


@lru_cache(maxsize=1)
def _standard_library() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(Path(paths[name]).resolve() for name in ("stdlib", "platstdlib"))
