"""Writes down the way of a call: which functions of agentrt hand it on until vLLM has it.

A function is a hop if it waits while vLLM's ``add_request`` begins, or has returned what waits
there, such as a coroutine or an asynchronous generator that somebody else awaits. A task continues
where it was created. Functions that return before, such as those that fill in a process table, are
no hops.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import agentrt
from agentrt.tracking import TrackedTask

_ROOT = Path(agentrt.__file__).parent
_STARTED = TrackedTask.__init__.__code__
_FRAMES = ("cr_frame", "ag_frame", "gi_frame")


@dataclass(slots=True)
class Way:
    """The ``hops`` of one call, each a file and a function, in the order in which they hand it
    on. ``ran`` are the files of which any code ran meanwhile, for other tasks included.
    """

    hops: list[tuple[str, str]] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)

    @property
    def files(self) -> set[str]:
        """The files of the hops."""
        return {file for file, _ in self.hops}

    def since(self, function: str) -> Way:
        """Return the part of the way from ``function`` on, which is one of its hops."""
        first = [name for _, name in self.hops].index(function)
        return Way(self.hops[first:], self.ran)


class _Walker:
    def __init__(self) -> None:
        self.way = Way()
        self._returned: dict[int, list[CodeType]] = {}  # by the frame of what was returned
        self._kept: list[object] = []  # so that no frame's id is given again
        self._created: WeakKeyDictionary[asyncio.Task[Any], list[list[CodeType]]]
        self._created = WeakKeyDictionary()

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        file = _own(frame.f_code)
        if file is None:
            return
        if event == "call":
            self.way.ran.add(file)
            if frame.f_code is _STARTED:  # a program's root, which no task factory makes
                self._created[frame.f_locals["self"]] = self._chain(frame.f_back)
        elif event == "return" and (inner := _frame_of(argument)) is not None:
            self._returned.setdefault(id(inner), []).append(frame.f_code)
            self._kept.append(inner)

    def created(self, task: asyncio.Task[Any], frame: FrameType) -> None:
        """The code in ``frame`` has created a task."""
        self._created[task] = self._chain(frame)

    def _chain(self, frame: FrameType | None) -> list[list[CodeType]]:
        """What waits for the code in ``frame``, itself last, with who returned it before it."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return []
        last = None if task is None else _frame_of(task.get_coro())
        chain: list[list[CodeType]] = []
        while frame is not None:
            chain.append([*reversed(self._returned.get(id(frame), ())), frame.f_code])
            if frame is last:
                above = [] if task is None else self._created.get(task, [])
                return [*above, *reversed(chain)]
            frame = frame.f_back
        return []

    def arrived(self, frame: FrameType) -> None:
        """The call that the code in ``frame`` hands on is at vLLM."""
        hops: list[tuple[str, str]] = []
        for code in itertools.chain.from_iterable(self._chain(frame)):
            file = _own(code)
            # A function that is on the way twice at once is one hop; a comprehension is none.
            if file is None or code.co_name.startswith("<"):
                continue
            hop = (file, code.co_qualname)
            if hop not in hops[-1:]:
                hops.append(hop)
        self.way.hops = hops


def _own(code: CodeType) -> str | None:
    path = Path(code.co_filename)
    return str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else None


def _frame_of(value: Any) -> FrameType | None:
    for name in _FRAMES:
        frame = getattr(value, name, None) if type(value).__module__ == "builtins" else None
        if isinstance(frame, FrameType):
            return frame
    return None


@contextmanager
def returned(since: str) -> Iterator[list[tuple[str, str]]]:
    """Write down the functions that return or yield from the first call of ``since`` on, each once,
    in the order of their first time.
    """
    order: dict[tuple[str, str], None] = {}
    begun = False

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal begun
        begun = begun or (event == "call" and frame.f_code.co_qualname == since)
        if begun and event == "return" and (file := _own(frame.f_code)) is not None:
            order.setdefault((file, frame.f_code.co_qualname))

    functions: list[tuple[str, str]] = []
    sys.setprofile(profile)
    try:
        yield functions
    finally:
        sys.setprofile(None)
        functions += order


@contextmanager
def walked() -> Iterator[Way]:
    """Follow the first call that the block makes; its way is known once vLLM has it."""
    from vllm.v1.engine.async_llm import AsyncLLM

    walker, loop = _Walker(), asyncio.get_running_loop()
    add_request, factory = AsyncLLM.add_request, loop.get_task_factory()

    async def added(self: Any, *args: Any, **options: Any) -> Any:
        if not walker.way.hops:
            sys.setprofile(None)
            walker.arrived(sys._getframe(1))
        return await add_request(self, *args, **options)

    def create(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        if factory is None:
            task: Any = asyncio.Task(coro, loop=loop, **options)
        else:
            task = factory(loop, coro, **options)
        walker.created(task, sys._getframe(1))
        return task

    loop.set_task_factory(create)
    sys.setprofile(walker.profile)
    try:
        with patch.object(AsyncLLM, "add_request", added):
            yield walker.way
    finally:
        sys.setprofile(None)
        loop.set_task_factory(factory)
