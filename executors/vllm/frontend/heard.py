"""What is heard of the calls that vLLM's front end makes: their errors, and that they are over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrt.errors import AgentrtError, CallRejectedError, PromptTooLongError
from agentrt.executors.base import Chunk
from agentrt.executors.frontend import Caller
from agentrt.request import CallSpec


@dataclass(slots=True)
class Heard:
    """A caller whose ``error`` is kept: vLLM's front end tells clients its own words for it.

    ``outputs`` are its calls' outputs. They end with its block: closing vLLM's stream over them
    leaves them to the garbage collector where the stream is made of several (0.33).
    """

    inner: Caller
    error: AgentrtError | None = None
    outputs: list[AsyncGenerator[Any, None]] = field(default_factory=list)

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None:
        for output in self.outputs:
            await output.aclose()

    async def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        async with contextlib.aclosing(self.inner.chunks(spec, stream=stream)) as chunks:
            with self._heard():
                async for chunk in chunks:
                    yield chunk

    @contextlib.contextmanager
    def siblings(self, count: int) -> Iterator[Sequence[Caller]]:
        with self.inner.siblings(count) as each, self._heard():
            yield each

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except AgentrtError as error:
            self.error = error
            raise

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise our own error where vLLM's stands for it, and vLLM's refusals as ours."""
        from vllm.exceptions import VLLMError

        try:
            yield
        except VLLMError as error:
            raise self.error or as_ours(error) from error
        except AgentrtError:
            raise
        except (ValueError, TypeError, NotImplementedError) as error:
            raise self.error or CallRejectedError(str(error)) from error


def as_ours(error: Exception) -> CallRejectedError:
    """vLLM's refusal of a request that it rendered."""
    text = str(error.args[0]) if error.args else str(error)
    too_long = getattr(error, "parameter", None) in ("input_tokens", "input_text")
    return PromptTooLongError(text) if too_long else CallRejectedError(text)
