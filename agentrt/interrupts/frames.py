"""The messages between a runtime and its worker processes. Each message is a frame with a pickled
value.

Unpickling is safe here, because both ends belong to the same user on the same machine.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentrt.graph import Progress
from agentrt.interrupts.tool import MAX_BYTES

LENGTH = struct.Struct("!Q")


class Reference(NamedTuple):
    """The place where a worker finds a function.

    ``main`` is True if the file is the script that Python runs.
    """

    module: str
    file: str | None
    qualname: str
    main: bool = False


class Load(NamedTuple):
    """A request to import the module of a function, with ``path`` as `sys.path`."""

    reference: Reference
    path: list[str]


class Loaded(NamedTuple):
    """The answer to `Load`: the function is imported, or ``error`` says why not."""

    error: str | None = None


class CallFrame(NamedTuple):
    """A request to run a function with pickled arguments.

    ``context`` is the name of the function's parameter for the `ToolContext`; None if the function
    has no such parameter.
    """

    reference: Reference
    arguments: bytes
    context: str | None


class Returned(NamedTuple):
    """The result of a function, pickled."""

    result: bytes


class Raised(NamedTuple):
    """The exception of a function. ``error`` is the pickled exception; None if the exception cannot
    be pickled and unpickled, or is too large.
    """

    error: bytes | None
    type: str
    message: str
    traceback: str


class Refused(NamedTuple):
    """A message that the arguments could not be unpickled, or that the result could not be pickled
    or is too large.

    ``arguments`` is True for the arguments, and False for the result.
    """

    why: str
    arguments: bool


class Asked(NamedTuple):
    """A question of the running function to a human."""

    number: int
    question: str
    schema: Mapping[str, Any] | None


class Withdrawn(NamedTuple):
    """A message that the function does not wait for the answer to a question any more."""

    number: int


class Answered(NamedTuple):
    """The answer to a question, or the error that the question raised.

    ``fault`` describes the error, and is "" if there is an answer. ``error`` is the pickled error;
    None if the error cannot be pickled and unpickled, or is too large.
    """

    number: int
    answer: Any = None
    fault: str = ""
    error: bytes | None = None


Outcome = Returned | Raised | Refused
FromWorker = Outcome | Loaded | Progress | Asked | Withdrawn


def frame(message: object) -> bytes:
    """Return a message as a frame: the length of the pickled message, and the message."""
    body = pickle.dumps(message)
    return LENGTH.pack(len(body)) + body


def carried(error: BaseException) -> bytes | None:
    """Return a pickled error; None if it cannot be pickled and unpickled, or is too large."""
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        return None
    return pickled if len(pickled) <= MAX_BYTES else None


def error_in(pickled: bytes | None) -> Exception | None:
    """Return an error that `carried` has pickled; None if this process cannot unpickle it, or if
    there is none.
    """
    if pickled is None:
        return None
    try:
        error = pickle.loads(pickled)
    except Exception:
        return None
    return error if isinstance(error, Exception) else None
