"""Delaying the timers of a program while it is resumed from a journal.

A program's own timers (`asyncio.timeout`, `asyncio.sleep`, `asyncio.wait`) are timers of its event
loop. On a busy machine, the loop may fire a timer before a recorded answer arrives. Then the
program would take another course than the recorded program. So while a program is resumed, its
record decides when its timers fire.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from agentrt.tracking.current import SCOPE, current_scope


class Holding(Protocol):
    """The record of a resumed program. For the timers that were set while ``holds`` was True, the
    record decides when they fire.
    """

    @property
    def holds(self) -> bool: ...

    def timer_is_due(self, timer: DueTimer) -> None: ...


class DueTimer:
    """The callback of a timer that was set while a program was resumed. `go_off` runs the timer's
    own function ``do`` in ``context``.
    """

    __slots__ = ("_args", "_context", "_do", "_holding", "handle")

    handle: asyncio.TimerHandle

    def __init__(
        self,
        holding: Holding,
        do: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self._holding, self._do, self._args, self._context = holding, do, args, context

    def __call__(self) -> None:
        """Tell the record that the timer is due by the loop's clock."""
        self._holding.timer_is_due(self)

    @property
    def is_cancelled(self) -> bool:
        """Whether the timer was cancelled, also after it was due."""
        return self.handle.cancelled()

    def go_off(self) -> None:
        """Let the loop run the timer's function, unless the timer was cancelled."""
        asyncio.get_running_loop().call_soon(self._unless_cancelled, context=self._context)

    def _unless_cancelled(self) -> None:
        if not self.is_cancelled:
            self._do(*self._args)


class _Timers:
    """The timers of an event loop: replacements for the loop's methods that set timers, and the
    programs whose timers are delayed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.of: dict[object, Holding] = {}
        self._call_later, self._call_at = loop.call_later, loop.call_at
        self._own = {"call_later": self.call_later, "call_at": self.call_at}
        self._before = {name: vars(loop)[name] for name in self._own if name in vars(loop)}
        vars(loop).update(self._own)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Restore the loop's methods. A method that other code has wrapped in the meantime is not
        removed; from now on, it only calls the loop's own method.
        """
        for name, own in self._own.items():
            if vars(loop).get(name) == own:
                del vars(loop)[name]
                vars(loop).update({name: self._before[name]} if name in self._before else {})

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if (holding := self._holding(callback, context)) is None:
            return self._call_later(delay, callback, *args, context=context)
        context = contextvars.copy_context() if context is None else context
        due = DueTimer(holding, callback, args, context)
        due.handle = self._call_later(delay, due, context=context)
        return due.handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if (holding := self._holding(callback, context)) is None:
            return self._call_at(when, callback, *args, context=context)
        context = contextvars.copy_context() if context is None else context
        due = DueTimer(holding, callback, args, context)
        due.handle = self._call_at(when, due, context=context)
        return due.handle

    def _holding(
        self, callback: Callable[..., object], context: contextvars.Context | None
    ) -> Holding | None:
        if isinstance(
            callback, DueTimer
        ):  # a loop's call_later may call its call_at, so the timer was handled already
            return None
        scope = current_scope() if context is None else context.get(SCOPE)
        if scope is None:
            return None
        holding = self.of.get(scope.owner)
        return holding if holding is not None and holding.holds else None


_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Timers] = WeakKeyDictionary()


def hold_timers(owner: object, holding: Holding) -> None:
    """From now on, let ``holding`` decide when the timers of a program fire on the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _LOOPS:
        _LOOPS[loop] = _Timers(loop)
    _LOOPS[loop].of[owner] = holding


def release_timers(owner: object) -> None:
    """Stop delaying a program's timers, because the program has caught up with its record or has
    ended. Idempotent.
    """
    loop = asyncio.get_running_loop()
    timers = _LOOPS.get(loop)
    if timers is not None and timers.of.pop(owner, None) is not None and not timers.of:
        del _LOOPS[loop]
        timers.close(loop)
