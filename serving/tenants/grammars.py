"""Grammars take seconds to compile, in a few threads of the engine for all: each tenant has two
of its own compiled at once, and its other calls that need one wait before the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from weakref import WeakValueDictionary

from agentrt.executors.vllm.grammars import digest_of
from agentrt.request import Call

AT_ONCE = 2
_REMEMBERED = 4096
"""Grammars that an engine has compiled; it keeps them, too."""


def grammar_of(call: Call) -> bytes | None:
    """A name for what the call's output is held to; None if it is free."""
    rendered = call.spec.rendered
    held = None if rendered is None else getattr(rendered.params, "structured_outputs", None)
    return None if held is None else digest_of(held)


class Compilations:
    """The grammars that are compiled now, and those that are known."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._known: OrderedDict[bytes, None] = OrderedDict()

    @contextlib.asynccontextmanager
    async def turn(self, call: Call) -> AsyncIterator[Callable[[], None] | None]:
        """Wait for the turn of the call's grammar, if it needs one.

        Call what is given, if anything is, when the call's output begins: then its grammar is
        compiled.
        """
        grammar = grammar_of(call)
        if grammar is None or grammar in self._known:
            yield None
            return

        turns = self._turns.setdefault(call.identity.tenant, asyncio.Semaphore(AT_ONCE))
        await turns.acquire()
        with contextlib.ExitStack() as turn:
            turn.callback(turns.release)

            def compiled() -> None:
                turn.close()
                self._known[grammar] = None
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)

            yield compiled
