"""The engine client of vLLM's HTTP application. It makes each call for the current caller, which
`agentrt.executors.chat_api.caller` returns.

vLLM's `EngineClient` is an interface of about forty methods. The methods that a front end needs are
implemented here; the others raise `NotImplementedError` with their name. Programs in this process
use this client only for the calls of a beam search.
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
from vllm.v1.engine.exceptions import EngineGenerateError

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
    """An engine client for all engines of ``executor`` that have the model of ``setup``."""

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
        """Make a call for the current `caller`, and return its outputs.

        This is not a coroutine, because the caller must be looked up now: when the outputs are
        read, another caller may be set.
        """
        return self._outputs(caller(), prompt, sampling_params, request_id, options)

    def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Return the outputs of a pooling model, such as an embedding or a score.

        If no caller is set, the call is a program of its own (`NoProgram`).
        """
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
        """Render a raw prompt, and yield its outputs."""
        prompt = await render_prompt(self.renderer, self.model_config, prompt)
        submitted = submit(caller, self._setup.model, prompt, params, options, request_id, failed)
        async with contextlib.aclosing(submitted) as outputs:
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
        # Dead replicas are restarted: a call waits for a replica, or fails with its own error.
        return False

    async def abort(self, request_id: Any) -> None:
        """Do nothing: closing the generator of a call's outputs aborts the call."""


def for_vllm(error: AgentrtError) -> Exception:
    """Convert an error of agentrt's for vLLM's front end.

    If vLLM itself refused the call, return vLLM's error. Otherwise return an error of vLLM's that
    gets the right HTTP status, with ``error`` as its cause.
    """
    refusal = error.__cause__
    if isinstance(refusal, EngineGenerateError):
        # vLLM's handler of this error would look for a server of its own.
        return VLLMServerError(str(error))
    if isinstance(error, CallRejectedError) and isinstance(refusal, VLLMError | ValueError):
        return refusal
    converted = as_vllm(error)
    converted.__cause__ = error
    return converted


def as_vllm(error: AgentrtError) -> VLLMError:
    """Return an error of vLLM's with the text of ``error``, for which vLLM sends the right
    status.
    """
    text = str(error)
    if isinstance(error, CallRejectedError):
        return VLLMValidationError(text)
    if isinstance(error, NotServedError):
        return VLLMNotFoundError(text)
    if isinstance(error, EngineDiedError):
        return GracefulHTTPError(text, HTTPStatus.SERVICE_UNAVAILABLE)
    if isinstance(error, CallTimeoutError):
        return GracefulHTTPError(text, HTTPStatus.REQUEST_TIMEOUT)
    status = getattr(error, "status", None)  # an error of agentrt's server
    return VLLMServerError(text) if status is None else GracefulHTTPError(text, HTTPStatus(status))


def as_ours(error: Exception) -> CallRejectedError:
    """Return the `CallRejectedError` for an error with which vLLM refused to render a request."""
    text = str(error.args[0]) if error.args else str(error)
    parameter, value = getattr(error, "parameter", None), getattr(error, "value", None)
    if (parameter, value) == ("max_tokens", 0):  # vLLM lowers it to what the prompt leaves
        return PromptTooLongError(
            "the prompt fills the model's context, or max_tokens is 0; shorten the prompt, or set "
            "max_tokens to at least 1"
        )
    too_long = parameter in ("input_tokens", "input_text")
    return PromptTooLongError(text) if too_long else CallRejectedError(text)


def _refuse(name: str) -> Any:
    async def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"agentrt does not offer {name} to clients of its server")

    return refuse


# The other methods (profiling, sleep mode, weights, elastic scaling) differ between versions of
# vLLM, so they are taken from the interface.
for _name in ProgramEngineClient.__abstractmethods__:
    setattr(ProgramEngineClient, _name, _refuse(_name))
ProgramEngineClient.__abstractmethods__ = frozenset()
