"""Delaying the timers of a program while it is resumed from a journal.

A program's own timers (`asyncio.timeout`, `asyncio.sleep`, `asyncio.wait`) are timers of its event
loop. On a busy machine, the loop may fire a timer before a recorded answer arrives, so that the
program would take another course than the recorded one. So the timers of a program that is resumed
ask its record before they fire.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from agentrt.tracking.current import SCOPE, current_scope


class Holding(Protocol):
    """The record of a resumed program, which decides when timers fire that were set while it
    ``holds``.
    """

    @property
    def holds(self) -> bool: ...

    def timer_is_due(self, timer: DueTimer) -> None: ...


class DueTimer:
    """The callback of a timer that was set while a program was resumed. It runs the timer's own
    function in ``context``.
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
        """Let the loop run the timer's function."""
        asyncio.get_running_loop().call_soon(self._unless_cancelled, context=self._context)

    def _unless_cancelled(self) -> None:
        if not self.is_cancelled:
            self._do(*self._args)


class _Timers:
    """The timers of a loop: the replaced methods that set them, and the programs whose timers are
    delayed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.of: dict[object, Holding] = {}
        self._call_later, self._call_at = loop.call_later, loop.call_at
        self._own = {"call_later": self.call_later, "call_at": self.call_at}
        self._before = {name: vars(loop)[name] for name in self._own if name in vars(loop)}
        vars(loop).update(self._own)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Restore the loop's methods, unless other code has wrapped ours since. A method that stays
        only calls the loop's own.
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
        ):  # call_later of a loop may call its call_at, so handle a timer once
            return None
        scope = current_scope() if context is None else context.get(SCOPE)
        if scope is None:
            return None
        holding = self.of.get(scope.owner)
        return holding if holding is not None and holding.holds else None


_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Timers] = WeakKeyDictionary()


def hold_timers(owner: object, holding: Holding) -> None:
    """Let ``holding`` decide from now on when timers of this program fire on the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _LOOPS:
        _LOOPS[loop] = _Timers(loop)
    _LOOPS[loop].of[owner] = holding


def release_timers(owner: object) -> None:
    """Stop delaying a program's timers: it has caught up with its record, or has ended.
    Idempotent.
    """
    loop = asyncio.get_running_loop()
    timers = _LOOPS.get(loop)
    if timers is not None and timers.of.pop(owner, None) is not None and not timers.of:
        del _LOOPS[loop]
        timers.close(loop)
