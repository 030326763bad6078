"""Values inside a thread, by paths such as ``values.messages[-1].content``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ROOTS = ("config", "interrupts", "metadata", "values")
MAX_PATHS = 10
PATH = re.compile(rf"({'|'.join(ROOTS)})(\.[^.\[\]]+|\[-?\d{{1,9}}\])*")
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")


def check_paths(paths: Mapping[str, str]) -> Mapping[str, str]:
    """These paths, by their names. Raises `ValueError` for what is none."""
    if len(paths) > MAX_PATHS:
        raise ValueError(f"at most {MAX_PATHS} paths")
    for path in paths.values():
        if PATH.fullmatch(path) is None:
            raise ValueError(
                f"{path!r} is no path; begin with one of {', '.join(ROOTS)}, and go on as in "
                "values.messages[-1].content"
            )
    return paths


def extracted(thread: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """What a thread has at these paths; None where it has nothing."""
    return {name: _at(thread, path) for name, path in paths.items()}


def _at(value: Any, path: str) -> Any:
    for key, index in _STEP.findall(path):
        if key and isinstance(value, Mapping):
            value = value.get(key)
        elif index and isinstance(value, list) and -len(value) <= int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value
