"""Update the weights of a runtime's engines while its programs run, with a bound on staleness.

The staleness of a program is the number of versions between the weights with which it began and the
newest weights.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

from agentrt import tracking
from agentrt.errors import ConfigError
from agentrt.executors.base import Executor
from agentrt.executors.checkpoints import TensorStore
from agentrt.files import expanded
from agentrt.request.weights import PauseMode, check_mode
from agentrt.runtime.run import Run, cancel_while_stale

OnStale = Literal["wait", "end", "restart"]
"""The ways to treat programs that an update would make too stale: the update waits until they have
ended, they are ended with `StaleWeightsError`, or they run again from their beginning.
"""


class WeightUpdates:
    """The updates of the weights of ``executor``, one after another. ``runs`` are the live runs."""

    def __init__(self, executor: Executor, runs: Mapping[str, Run]) -> None:
        self._executor, self._runs = executor, runs
        self._turn = asyncio.Lock()
        self._engines = asyncio.Lock()
        """Held while the engines pause, resume or load weights: an update relies on it that the
        engines stay paused until they have loaded the weights.
        """
        self._store = TensorStore()
        self._held: asyncio.Event | None = None
        """An event that is set at the end of the current update, if a program that began before the
        end would be too stale; such a program begins after the update. None at all other times.
        """

    async def begin(self, run: Run) -> None:
        """Wait if a program has to begin after an update. Then note with which version of the
        weights the program begins.
        """
        while self._held is not None:
            await self._held.wait()
        run.weights_version = self._executor.weights.version

    async def pause(self, mode: PauseMode) -> None:
        """Pause the engines. Wait first while an update pauses them and loads weights."""
        check_mode(mode)
        async with self._engines:
            await self._executor.pause_generation(mode)

    async def resume(self) -> None:
        """Resume the engines. Wait first while an update pauses them and loads weights, or while a
        pause waits for calls.
        """
        async with self._engines:
            await self._executor.resume_generation()

    async def update(
        self,
        weights: Any,
        *,
        version: int | None,
        mode: PauseMode,
        clear_cache: bool,
        max_staleness: int | None,
        on_stale: OnStale,
    ) -> int:
        """Replace the weights and return their version; see `Runtime.update_weights`."""
        check_mode(mode)
        if on_stale not in get_args(OnStale):
            known = ", ".join(get_args(OnStale))
            raise ConfigError(f"unknown on_stale {on_stale!r}; available: {known}")
        if max_staleness is None and on_stale != "wait":
            raise ConfigError(
                f"on_stale {on_stale!r} has no effect without max_staleness; set max_staleness, or "
                "leave on_stale out"
            )
        if max_staleness is not None and max_staleness < 0:
            raise ConfigError(f"max_staleness is {max_staleness}; it must be at least 0, or None")
        async with self._turn:
            current = self._executor.weights.version
            new = current + 1 if version is None else version
            if new <= current:
                raise ConfigError(
                    f"version {new} is not newer than version {current}, which the engines have; "
                    f"use a version from {current + 1} on, or leave it out"
                )
            folder = await self._folder(weights, new)
            try:
                await self._executor.check_weights(folder)  # before programs are held up
                bound = None
                if max_staleness is not None:
                    bound = _Bound(self, new, max_staleness, on_stale)
                    if new - current > max_staleness:
                        self._held = asyncio.Event()
                    await bound.wait()
                async with self._engines:
                    await self._executor.update_weights(folder, new, mode, clear_cache=clear_cache)
                if bound is not None:
                    bound.end_stale()
            except BaseException:
                self._store.discard(folder)
                raise
            finally:
                if self._held is not None:
                    self._held.set()
                    self._held = None
            self._store.keep(folder)
            return new

    async def _folder(self, weights: Any, version: int) -> str:
        if isinstance(weights, str | os.PathLike):
            return _absolute(os.fspath(weights))
        return await asyncio.to_thread(self._store.save, weights, version)

    def close(self) -> None:
        """Remove the folders of tensors that were handed over in Python."""
        self._store.close()

    def stale_runs(self, version: int, max_staleness: int) -> list[Run]:
        """Return the runs that are too stale for weights of ``version``. Runs of client programs,
        runs whose code has not begun, and the run whose code calls this method are left out.
        """
        scope = tracking.current_scope()
        caller = None if scope is None else scope.owner
        return [
            run
            for run in self._runs.values()
            if run.task is not None
            and run is not caller
            and run.weights_version is not None
            and version - run.weights_version > max_staleness
        ]


def _absolute(path: str) -> str:
    """Return an absolute path, since engines may have another working directory."""
    return str(expanded(path).absolute())


def _is_recorded(run: Run) -> bool:
    """Return whether a journal or a batch records the run's calls, so that it can resume."""
    return run.record is not None or (run.tokens is not None and run.tokens.keep is not None)


class _Bound:
    """The bound on staleness in one update, to weights of ``version``.

    Raises `ConfigError` if a program that would have to run again is recorded (`_is_recorded`).
    """

    def __init__(self, updates: WeightUpdates, version: int, most: int, on_stale: OnStale) -> None:
        self._updates, self._version, self._most = updates, version, most
        self._on_stale = on_stale
        recorded = [run.id for run in self._stale() if _is_recorded(run)]
        if recorded and on_stale == "restart":
            raise ConfigError(
                f"run {recorded[0]} is recorded for a resume, so it cannot run again from its "
                "beginning; use on_stale 'wait' or 'end' (in a batch, the option '--retry "
                "failed' later repeats the programs that were ended)"
            )

    def _stale(self) -> list[Run]:
        return self._updates.stale_runs(self._version, self._most)

    async def wait(self) -> None:
        """Wait until no program is too stale, if the update has to wait for such programs. Programs
        that an earlier update has cancelled do not count: they may begin again only after this
        update.
        """
        while self._on_stale == "wait":
            tasks = [run.task for run in self._stale() if run.task is not None and not run.stale]
            if not tasks:
                return
            await asyncio.wait(tasks)

    def end_stale(self) -> None:
        """End the programs that are too stale now, or let them run again."""
        if self._on_stale != "wait":
            for run in self._stale():
                if run.stale != "end":  # else an earlier update has ended the program
                    run.stale = self._on_stale
                assert run.weights_version is not None
                cancel_while_stale(run, run.weights_version)
