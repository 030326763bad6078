"""Finds the hooks that a ``langgraph.json`` names: ``"auth": {"path": "./auth.py:auth"}``."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from langgraph_sdk import Auth

from agentrt.errors import ProgramLoadError

_SHAPE = '{"path": "./auth.py:auth"}'
_KNOWN = {"path", "disable_studio_auth"}


def load_auth(project: Path) -> Auth | None:
    """The `Auth` of a project, or None if it has none.

    Raises `ProgramLoadError` for what is no such thing, and for keys that ask for more.
    """
    section = json.loads(project.read_text(encoding="utf-8")).get("auth")
    if section is None:
        return None
    if not isinstance(section, dict) or not isinstance(section.get("path"), str):
        raise ProgramLoadError(f"{project}: auth must be as {_SHAPE}")
    if more := sorted(section.keys() - _KNOWN):
        raise ProgramLoadError(f"{project}: auth: {', '.join(more)}: not supported; see {_SHAPE}")
    file, colon, variable = section["path"].rpartition(":")
    path = project.parent / file
    if not (file and colon and variable and path.is_file()):
        raise ProgramLoadError(f"{project}: auth {section['path']!r}: no such file; see {_SHAPE}")
    found = getattr(_import(path), variable, None)
    if not isinstance(found, Auth):
        raise ProgramLoadError(f"{path}: {variable!r} is no langgraph_sdk.Auth")
    return found


def _import(path: Path) -> Any:
    name = f"agentrt_auth_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProgramLoadError(f"{path}: it raised {type(error).__name__}: {error}") from error
    return module
