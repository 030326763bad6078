"""The token ids of an engine call, in the form in which a journal records them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

FLOAT: Literal["f"] = "f"
"""Type code of a log probability in memory: engines compute log probabilities with 32 bits."""


@dataclass(frozen=True, slots=True)
class CallTokens:
    """The tokens of one engine call: the tokens of the prompt, and the tokens that the model wrote.

    The prompt is recorded as a difference to an earlier call of the same program, whose key is
    ``base`` ("" if there is none). The first ``shared`` tokens are the first tokens of the earlier
    call's prompt and output together; ``prompt`` has all tokens after these. So a growing chat is
    not recorded again with each of its calls. ``key`` is unique in the program. ``logprobs`` are
    the natural log probabilities of the ``written`` tokens, packed by `pack`. ``versions`` are the
    versions of the weights that wrote the tokens (`agentrt.request.weights.Versions`).
    """

    key: str
    base: str = ""
    shared: int = 0
    prompt: tuple[int, ...] = field(default=(), metadata={"packed": True})
    written: tuple[int, ...] = field(default=(), metadata={"packed": True})
    logprobs: bytes = b""
    versions: Sequence[Sequence[int]] = field(default=(), metadata={"plain": True})


def pack(logprobs: Iterable[float]) -> bytes:
    """Return log probabilities as bytes: 32 bits each, the least significant byte first."""
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
