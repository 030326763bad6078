"""What a runtime and its worker processes say to each other: one pickled value to a frame.

Both ends are one user's on one machine; nothing that comes from elsewhere is read here.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentrt.graph import Progress

LENGTH = struct.Struct("!Q")


class Reference(NamedTuple):
    """Where a worker finds a function. ``main``: its file is the script that python was given."""

    module: str
    file: str | None
    qualname: str
    main: bool = False


class Load(NamedTuple):
    """Import the function's module, as with ``path`` as `sys.path`."""

    reference: Reference
    path: list[str]


class Loaded(NamedTuple):
    """It is there, unless ``error`` says why not."""

    error: str | None = None


class Call(NamedTuple):
    """Run it with these pickled arguments, and with a `ToolContext` as ``context``."""

    reference: Reference
    arguments: bytes
    context: str | None


class Returned(NamedTuple):
    """A pickled result."""

    result: bytes


class Raised(NamedTuple):
    """The function raised: a pickled exception, where it can be carried."""

    error: bytes | None
    type: str
    message: str
    traceback: str


class Refused(NamedTuple):
    """The arguments could not be read (``arguments``), or the result could not be carried."""

    why: str
    arguments: bool


class Asked(NamedTuple):
    """The function asks a human."""

    number: int
    question: str
    schema: Mapping[str, Any] | None


class Withdrawn(NamedTuple):
    """It does not wait for the answer any more."""

    number: int


class Answered(NamedTuple):
    """What was answered, or why nothing was."""

    number: int
    answer: Any
    error: Exception | None = None


Outcome = Returned | Raised | Refused
FromWorker = Outcome | Loaded | Progress | Asked | Withdrawn


def frame(message: object) -> bytes:
    """The bytes of a message."""
    body = pickle.dumps(message)
    return LENGTH.pack(len(body)) + body
