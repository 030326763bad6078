"""The rooms of a server by name, each loaded when the server opens."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from agentrt.serving.app import Room

ROOMS = ("openai", "langgraph", "seeing")


def load_rooms(names: Sequence[str] = ROOMS) -> list[Room]:
    """The rooms of these names that there are, in this order."""
    modules = [import_module(f"agentrt.serving.{name}") for name in names]
    return [module.room for module in modules if hasattr(module, "room")]
