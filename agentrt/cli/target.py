"""What a file has for `agentrt run` beside agentrt's own programs: a LangGraph graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class GraphTarget:
    """A graph, its builder, or a function that makes one: ``value``, which is in ``path``.

    ``name`` is its type if it has no name of its own.
    """

    value: Any
    name: str
    path: Path
