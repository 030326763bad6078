"""Updates the weights of running engines: of all engines, or of none.

All engines are paused, load the weights, and resume together. If an engine cannot load them, all
engines go back to the weights that they had.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from agentrt import tracking
from agentrt.errors import AgentrtError, EngineDiedError, EngineError
from agentrt.request.weights import PauseMode

T = TypeVar("T")
_NONE_LEFT = "the weights were not updated: no engine is up; update them when an engine runs again"


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of a model's weights.

    ``folder`` has the safetensors; "" means the model's own files. ``mark`` changes when the files
    in the folder are replaced.
    """

    version: int = 0
    folder: str = ""
    mark: str = ""


class Updated(Protocol):
    """An engine whose weights can be updated. The methods are those of `Executor`."""

    @property
    def weights(self) -> Weights: ...

    @property
    def paused(self) -> bool: ...

    async def check_weights(self, folder: str) -> str: ...

    async def pause_generation(self, mode: PauseMode) -> None: ...

    async def resume_generation(self) -> None: ...

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None: ...


async def update_engines(
    engines: Sequence[Updated],
    folder: str,
    version: int,
    mode: PauseMode,
    *,
    clear_cache: bool = False,
) -> Weights:
    """Replace the weights of all ``engines``, and return the new weights.

    Engines that were paused before the update stay paused. An engine that dies meanwhile is left
    out; the code that starts it again must load the weights. Raises `ConfigError` if an engine
    cannot update its weights, `WeightsError` if the engines cannot use the folder, `EngineError` if
    an engine could not load it, and `EngineDiedError` if no engine is left. After an error, all
    engines that are alive have their old weights, except engines that had loaded the new weights
    and cannot load the old weights again, for example because their files are gone; the error says
    how many. If the task is cancelled while the engines load the weights, this function returns,
    and `CancelledError` is raised where the task next waits.
    """
    if not engines:
        raise EngineDiedError(_NONE_LEFT)
    old = engines[0].weights
    marks, engines = await survivors(engines, lambda each: each.check_weights(folder))
    new = Weights(version, folder, marks[0])
    pausing = [each for each in engines if not each.paused]
    try:
        _, still = await survivors(pausing, lambda each: each.pause_generation(mode), least=0)
        engines = [each for each in engines if each in still or each not in pausing]
        if not engines:
            raise EngineDiedError(_NONE_LEFT)
        await tracking.to_its_end(_load(engines, old, new, clear_cache))
    finally:
        await tracking.to_its_end(_resume(pausing))
    return new


async def _load(engines: Sequence[Updated], old: Weights, new: Weights, clear_cache: bool) -> None:
    results = await asyncio.gather(
        *(each.load_weights(new, clear_cache=clear_cache) for each in engines),
        return_exceptions=True,
    )
    loaded = [each for each, result in zip(engines, results, strict=True) if result is None]
    errors = [result for result in results if result is not None]
    # If all other engines have loaded the weights, an engine that died did not die of them.
    if loaded and all(isinstance(error, EngineDiedError) for error in errors):
        return
    errors.sort(key=lambda error: isinstance(error, EngineDiedError))
    if isinstance(errors[0], EngineDiedError):
        raise EngineDiedError(
            f"all engines died while they loaded version {new.version} of the weights: {errors[0]}"
        ) from errors[0]
    # An engine that could not load the weights has gone back by itself.
    results = await asyncio.gather(
        *(each.load_weights(old) for each in loaded), return_exceptions=True
    )
    message = (
        f"the weights were not updated to version {new.version}, and the engines go on with "
        f"version {old.version}: {errors[0]}"
    )
    if ahead := [
        result
        for result in results
        if result is not None and not isinstance(result, EngineDiedError)
    ]:
        message += (
            f"; {len(ahead)} of {len(engines)} engines had loaded version {new.version} and keep "
            f"it, because they cannot go back ({ahead[0]}); update the weights again, to version "
            f"{new.version + 1} or later"
        )
    raise EngineError(message) from errors[0]


async def _resume(engines: Sequence[Updated]) -> None:
    for each in engines:
        with contextlib.suppress(AgentrtError):  # it is dead
            await each.resume_generation()


async def survivors(
    engines: Sequence[Updated], work: Callable[[Updated], Awaitable[T]], least: int = 1
) -> tuple[list[T], list[Updated]]:
    """Return the results of ``work`` for the engines that did not die, and these engines.

    If an engine fails without dying, raises its error. Raises `EngineDiedError` if fewer than
    ``least`` engines are left.
    """
    results = await asyncio.gather(*map(work, engines), return_exceptions=True)
    values: list[T] = []
    alive: list[Updated] = []
    for each, result in zip(engines, results, strict=True):
        if not isinstance(result, BaseException):
            values.append(result)
            alive.append(each)
        elif not isinstance(result, EngineDiedError):
            raise result
    if len(alive) < least:
        raise EngineDiedError(_NONE_LEFT)
    return values, alive
