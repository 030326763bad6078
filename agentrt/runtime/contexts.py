"""Carries the calls of a run's contexts into the registry and the engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TypeVar

from agentrt import tracking
from agentrt.contexts.saved import SavedContext
from agentrt.executors.base import Chunk, Notification
from agentrt.executors.frontend import Frontend
from agentrt.request import CallSpec
from agentrt.runtime.services import Services
from agentrt.tracking.scope import Scope

T = TypeVar("T")


async def next_outside(items: AsyncGenerator[T, None]) -> T | None:
    """The next of ``items``, None after the last; a task that this starts belongs to no program."""
    with tracking.outside():
        return await anext(items, None)


@dataclass(frozen=True, slots=True)
class ContextEmitter:
    """One run's `TokenEmitter`. ``scope`` says where the run's code is, and ``make`` makes a call
    there, with its node's name; the runtime's ``services`` have the tokenizer.
    """

    scope: Callable[[str], Scope]
    make: Callable[..., AsyncGenerator[Chunk, None]]
    services: Services
    tenant: str

    async def token_call(
        self, spec: CallSpec, name: str, *, stream: bool
    ) -> AsyncGenerator[Chunk, None]:
        """A call of token ids as its output grows. Raises `ConfigError` where the executor takes
        none, and what `Executor.generate` raises.
        """
        scope = self.scope(name)
        spec = (await self.frontend()).addressed(spec)
        made = self.make(spec, scope, (), stream=stream, name=name)
        async with contextlib.aclosing(made) as chunks:
            while (chunk := await next_outside(chunks)) is not None:
                yield chunk

    async def frontend(self) -> Frontend:
        """What turns text into token ids and back."""
        with tracking.outside():
            return await self.services.frontend()

    def save(self, name: str, context: SavedContext) -> None:
        """Keep a context for the tenant. Raises `ConfigError` past the budget."""
        self.services.saved.save(self.tenant, name, context)

    def open(self, name: str) -> SavedContext:
        """One that the tenant has saved. Raises `UnknownContextError`."""
        return self.services.saved.open(self.tenant, name)

    def dropped(self, call: str, shared: int) -> None:
        """A context is given up of which ``call`` was the last; others have its first tokens."""
        program_id = call.rpartition("/")[0]
        self.services.executor.notify(Notification(program_id, "dropped", call, shared))

    def forget(self, name: str) -> None:
        """Keep it no longer. Raises `UnknownContextError`."""
        self.services.saved.forget(self.tenant, name)
