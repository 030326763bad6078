"""Checks structured outputs in a thread of the engine's client, before a call is submitted.

vLLM would check them in the event loop. `compiling` compiles their grammars in the engine core.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from agentrt.executors.vllm._compat.grammars import validate
from agentrt.executors.vllm.turns import SharedThread

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_REMEMBERED = 1024
_DIGEST = "_agentrt_digest"


def digest_of(constraint: Any) -> bytes:
    """Return a hash of a constraint, and store it as an attribute of the constraint.

    The hash is stored, because hashing a large schema takes milliseconds of the event loop.
    """
    known: bytes | None = getattr(constraint, _DIGEST, None)
    if known is None:
        try:
            text = orjson.dumps(constraint)
        except TypeError:
            text = repr(constraint).encode("utf-8", "replace")
        known = hashlib.sha256(text).digest()
        setattr(constraint, _DIGEST, known)
    return known


class Grammars:
    """Checks the constraints of one engine's calls, one at a time, and remembers the results."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Any] = OrderedDict()
        self._thread = SharedThread("grammars")

    async def check(self, llm: AsyncLLM, params: Any, tenant: str) -> None:
        """Check the constraint of ``params``, if any, when it is the tenant's turn.

        The check changes the constraint: choices become a grammar, and the backend is chosen.
        Raises vLLM's error for a constraint that it refuses.
        """
        constraint = getattr(params, "structured_outputs", None)
        if constraint is None:
            return
        digest = digest_of(constraint)
        if digest not in self._known:
            await self._thread.run(partial(validate, llm, params), tenant)
            self._known[digest] = params.structured_outputs
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        params.structured_outputs = copy.copy(self._known[digest])
