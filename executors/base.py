"""The seam between the runtime and whatever runs its LLM calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentrt.request import Call, CallReport, Reply, TokenLogprob
from agentrt.scheduler.totals import ProgramTotals, Visits

Progress = Callable[[str], None]
"""Told, in a few words, what a slow start is doing now."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a call's output. The last chunk, and only it, carries the whole ``reply``.

    ``logprobs`` are those of the piece's tokens, where the call asked for them.
    """

    text: str
    reply: Reply | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Executor(Protocol):
    """Runs LLM calls. One per replica; all methods belong to one event loop.

    It may have, for those who ask: ``model``, the name of the model that it serves, known
    once it has started, or ``models``, if there are several; ``alive()``, false once its engine
    is known to be gone, at no cost; ``pulse()``, a coroutine that gives the processor time which
    its engine has used (seconds); and ``native_tools``, true where the text beside tool calls is
    the answer's own and not in the form of `toolcalls`.
    """

    async def start(self, progress: Progress) -> None:
        """Come up, or raise `ModelLoadError`, `ConfigError` or `EngineStartError`."""

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Run one call, yielding its text as it grows, or with ``stream`` off all at once.

        Closing the iterator, or cancelling the task that reads it, aborts the call and
        frees its KV cache. Raises `CallRejectedError` or `EngineDiedError`.
        """

    async def aborted(self, call_id: str) -> CallReport:
        """What a call that was aborted had used; an empty report where nothing is known."""

    async def end_program(
        self, program_id: str, totals: ProgramTotals | None = None
    ) -> Visits | None:
        """Forget a program: it ended, failed or was cancelled. Idempotent.

        ``totals`` are what it came to over all engines, to learn from; they are given once, where
        they are known. An executor that learns may return what it had noted of the program.
        """

    async def snapshot(self) -> Mapping[str, Any]:
        """What runs and what waits, and behind what: JSON-able, for people and tests."""

    async def close(self) -> None:
        """Stop within seconds, leaving no process behind. Idempotent."""
