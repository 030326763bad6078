"""The engine client of vLLM's application: over HTTP, it makes each call for its `caller`.

vLLM's `EngineClient` is an interface of some forty methods. Those that a front end needs are
implemented here; the others raise `NotImplementedError` with their name. Programs in this process
do not come here, but for the many calls of a beam search.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Any

from vllm.engine.protocol import EngineClient
from vllm.exceptions import (
    GracefulHTTPError,
    VLLMError,
    VLLMNotFoundError,
    VLLMServerError,
    VLLMValidationError,
)

from agentrt.errors import (
    AgentrtError,
    CallRejectedError,
    CallTimeoutError,
    EngineDiedError,
    NotServedError,
    PromptTooLongError,
)
from agentrt.executors.base import Executor, FrontSetup
from agentrt.executors.chat_api import CALLER, Caller, NoProgram, caller
from agentrt.executors.vllm._compat.api_server import render_prompt
from agentrt.executors.vllm.entrypoints.submit import submit


class ProgramEngineClient(EngineClient):
    """Stands for all engines of ``executor`` that have the model of ``setup``."""

    def __init__(
        self, setup: FrontSetup, renderer: Any, input_processor: Any, executor: Executor
    ) -> None:
        self.vllm_config = setup.vllm_config
        self.model_config = setup.vllm_config.model_config
        self.renderer = renderer
        self.input_processor = input_processor
        self._setup = setup
        self._executor = executor

    # -- calls -------------------------------------------------------------------------

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Not a coroutine: the `caller` is read here, and not where the output is read."""
        return self._outputs(caller(), prompt, sampling_params, request_id, options)

    def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Return what a pooling model makes of a prompt: the caller's call, if there is one."""
        pooling = CALLER.get() or NoProgram(self._executor)
        return self._outputs(pooling, prompt, pooling_params, request_id, options)

    def _outputs(
        self,
        caller: Caller,
        prompt: Any,
        params: Any,
        request_id: str,
        options: Mapping[str, Any],
    ) -> AsyncGenerator[Any, None]:
        def failed(raised: BaseException) -> Exception | None:
            return None if (error := caller.failed(raised)) is None else for_vllm(error)

        model = self._setup.model
        if isinstance(prompt, dict) and "type" in prompt:
            return submit(caller, model, prompt, params, options, request_id, failed)
        return self._raw(caller, prompt, params, request_id, options, failed)

    async def _raw(
        self,
        caller: Caller,
        prompt: Any,
        params: Any,
        request_id: str,
        options: Mapping[str, Any],
        failed: Callable[[BaseException], Exception | None],
    ) -> AsyncGenerator[Any, None]:
        """Yield the outputs of a prompt that is not rendered yet."""
        prompt = await render_prompt(self.renderer, self.model_config, prompt)
        made = submit(caller, self._setup.model, prompt, params, options, request_id, failed)
        async with contextlib.aclosing(made) as outputs:
            async for output in outputs:
                yield output

    # -- adapters and pooling models ---------------------------------------------------

    async def add_lora(self, lora_request: Any) -> bool:
        await self._executor.add_adapter(self._setup.model, lora_request)
        return True

    # -- state -------------------------------------------------------------------------

    async def get_supported_tasks(self) -> tuple[Any, ...]:
        return self._setup.tasks

    @property
    def errored(self) -> bool:
        # Replicas come back: a call waits for one, or its own error says that there is none.
        return False

    async def abort(self, request_id: Any) -> None:
        """Closing a call's output aborts it."""


def for_vllm(error: AgentrtError) -> Exception:
    """Return our error as vLLM's front end is to see it: a refusal of vLLM's own in its own words
    and fields, all others as one that it gives the right status.
    """
    refusal = error.__cause__
    if isinstance(error, CallRejectedError) and isinstance(refusal, VLLMError | ValueError):
        return refusal
    made = as_vllm(error)
    made.__cause__ = error
    return made


def as_vllm(error: AgentrtError) -> VLLMError:
    """Our error as one that vLLM's front end gives the right status."""
    text = str(error)
    if isinstance(error, CallRejectedError):
        return VLLMValidationError(text)
    if isinstance(error, NotServedError):
        return VLLMNotFoundError(text)
    if isinstance(error, EngineDiedError):
        return GracefulHTTPError(text, HTTPStatus.SERVICE_UNAVAILABLE)
    if isinstance(error, CallTimeoutError):
        return GracefulHTTPError(text, HTTPStatus.REQUEST_TIMEOUT)
    status = getattr(error, "status", None)  # an error of the server around it
    return VLLMServerError(text) if status is None else GracefulHTTPError(text, HTTPStatus(status))


def as_ours(error: Exception) -> CallRejectedError:
    """vLLM's refusal of a request that it rendered."""
    text = str(error.args[0]) if error.args else str(error)
    parameter, value = getattr(error, "parameter", None), getattr(error, "value", None)
    if (parameter, value) == ("max_tokens", 0):  # which vLLM sets to what is left
        return PromptTooLongError("the prompt fills the model's context, or max_tokens is 0")
    too_long = parameter in ("input_tokens", "input_text")
    return PromptTooLongError(text) if too_long else CallRejectedError(text)


def _refuse(name: str) -> Any:
    async def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{name} is not for clients of this server")

    return refuse


# Profiling, sleeping, weights, elastic scaling: the interface grows with each version of vLLM.
for _name in ProgramEngineClient.__abstractmethods__:
    setattr(ProgramEngineClient, _name, _refuse(_name))
ProgramEngineClient.__abstractmethods__ = frozenset()
