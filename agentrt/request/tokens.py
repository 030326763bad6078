"""The token ids of an engine call, in the form in which a journal records them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

FLOAT: Literal["f"] = "f"
"""Type code of a log probability in memory: engines compute them with 32 bits."""


@dataclass(frozen=True, slots=True)
class CallTokens:
    """The tokens of one engine call: those of its prompt, and those that the model wrote.

    The prompt is recorded as a difference: its first ``shared`` tokens are those of the prompt and
    output of the call with the key ``base``, an earlier call of the same program, and ``prompt``
    has the tokens after these. So a growing chat is not recorded again with each of its calls.
    ``key`` is unique in the program. ``logprobs`` are the natural log probabilities of the
    ``written`` tokens, packed by `pack`. ``version`` is the version of the weights that wrote the
    tokens.
    """

    key: str
    base: str = ""
    shared: int = 0
    prompt: tuple[int, ...] = field(default=(), metadata={"packed": True})
    written: tuple[int, ...] = field(default=(), metadata={"packed": True})
    logprobs: bytes = b""
    version: int = 0


def pack(logprobs: Iterable[float]) -> bytes:
    """Return log probabilities as 32 bits each, the least significant byte first."""
    packed = array(FLOAT, logprobs)
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()


def unpack(data: bytes) -> array[float]:
    """Return the log probabilities that `pack` packed."""
    logprobs: array[float] = array(FLOAT)
    logprobs.frombytes(data)
    if sys.byteorder != "little":
        logprobs.byteswap()
    return logprobs
