"""The rooms of a server by name, each loaded when the server opens."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.serving.app import Room

APIS = ("openai", "langgraph", "observability")


def load_apis(projects: Sequence[Path] = ()) -> list[Room]:
    """All rooms. ``projects`` are the ``langgraph.json`` files that are served.

    Raises `ConfigError` where two of these have authentication hooks.
    """
    modules = [import_module(f"agentrt.serving.{name}") for name in APIS]
    return [_room(module, projects) for module in modules if hasattr(module, "room")]


def _room(module: Any, projects: Sequence[Path]) -> Room:
    if projects and hasattr(module, "room_with"):
        authfile: Any = import_module(f"{module.__name__}.authfile")
        hooks = {path: auth for path in projects if (auth := authfile.load_auth(path)) is not None}
        if len(hooks) > 1:
            names = ", ".join(map(str, hooks))
            raise ConfigError(f"one server takes the auth hooks of one project: {names}")
        room: Room = module.room_with(next(iter(hooks.values()), None))
        return room
    own: Room = module.room
    return own
