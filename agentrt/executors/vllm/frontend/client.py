"""The engine client of vLLM's front end: it makes each call for the program that asks.

vLLM's `EngineClient` is an interface of some forty methods. Those that a front end needs are
implemented here; the others raise `NotImplementedError` with their name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RequestOutputKind

from agentrt.errors import (
    AgentrtError,
    CallRejectedError,
    CallTimeoutError,
    EngineDiedError,
    NotServedError,
    PromptTooLongError,
)
from agentrt.executors.base import Chunk, Executor, FrontSetup
from agentrt.executors.frontend import CALLER, Caller, NoProgram, caller
from agentrt.executors.vllm._compat.frontend import render_prompt
from agentrt.request import CallSpec, RenderedCall

_NOT_OPTIONS = ("session_id", "trace_headers", "priority", "data_parallel_rank", "prompt_text")
"""Options of vLLM's front end that we set ourselves: a call's program, replica and priority."""


@dataclass(slots=True)
class ProgramRequest(Caller):
    """A chat request of a program, which is the ``program`` that makes its calls.

    ``error`` is the error of a call that failed: vLLM's front end replaces it by one of its own.
    ``outputs`` are closed at the end of the block: vLLM 0.33 leaves those of a stream with several
    choices to the garbage collector.
    """

    program: Caller
    error: AgentrtError | None = None
    outputs: list[AsyncGenerator[Any, None]] = field(default_factory=list)

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None:
        for output in self.outputs:
            await output.aclose()

    def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        return self.program.chunks(spec, stream=stream)

    def siblings(self, count: int) -> contextlib.AbstractContextManager[Sequence[Caller]]:
        return self.program.siblings(count)

    def failed(self, error: BaseException) -> AgentrtError | None:
        self.error = self.program.failed(error)
        return self.error

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise a call's own error where vLLM's stands for it, and vLLM's refusals as ours."""
        try:
            yield
        except VLLMError as error:
            raise self.error or as_ours(error) from error
        except AgentrtError:
            raise
        except (ValueError, TypeError, NotImplementedError) as error:
            raise self.error or CallRejectedError(str(error)) from error


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
        chosen = _chosen(options)
        outputs = self._outputs(who := caller(), prompt, sampling_params, request_id, chosen)
        if isinstance(who, ProgramRequest):
            who.outputs.append(outputs)
        return outputs

    def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """What a pooling model makes of a prompt: the caller's call, if there is one."""
        who = CALLER.get() or NoProgram(self._executor)
        return self._outputs(who, prompt, pooling_params, request_id, _chosen(options))

    async def _outputs(
        self,
        who: Caller,
        prompt: Any,
        params: Any,
        request_id: str,
        options: Mapping[str, Any],
    ) -> AsyncGenerator[Any, None]:
        if not (isinstance(prompt, dict) and "type" in prompt):
            prompt = await render_prompt(self.renderer, self.model_config, prompt)
        await asyncio.sleep(0)  # calls that came together begin right after each other
        made = self._one if getattr(params, "n", 1) == 1 else self._several
        try:
            async with contextlib.aclosing(made(who, prompt, params, options)) as chunks:
                async for chunk in chunks:
                    chunk.output.request_id = request_id
                    yield chunk.output
        except (asyncio.CancelledError, Exception) as raised:
            if (error := who.failed(raised)) is None:
                raise
            refusal = error.__cause__
            if isinstance(error, CallRejectedError) and isinstance(refusal, VLLMError | ValueError):
                raise refusal from None  # in its own words, and its own fields
            raise as_vllm(error) from error

    def _one(
        self, who: Caller, prompt: Any, params: Any, options: Mapping[str, Any]
    ) -> AsyncGenerator[Chunk, None]:
        stream = params.output_kind is not RequestOutputKind.FINAL_ONLY
        return who.chunks(self._spec(prompt, params, options), stream=stream)

    def _spec(self, prompt: Any, params: Any, options: Mapping[str, Any]) -> CallSpec:
        sampled: dict[str, Any] = {"max_tokens": 1}
        is_pooled = isinstance(params, PoolingParams)
        if not is_pooled:
            sampled = {
                "max_tokens": params.max_tokens or 1,
                "temperature": params.temperature,
                "seed": params.seed,
                "ignore_eos": params.ignore_eos,
            }
        return CallSpec(
            prompt_token_ids=tuple(prompt.get("prompt_token_ids") or ()),
            cache_salt=prompt.get("cache_salt"),
            model=self._setup.model,
            rendered=RenderedCall(prompt, params, options, is_pooled),
            **sampled,
        )

    async def _several(
        self, who: Caller, prompt: Any, params: Any, options: Mapping[str, Any]
    ) -> AsyncGenerator[Chunk, None]:
        """Make ``n`` calls beside each other, and merge their outputs into those of one request."""
        queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        async def feed(index: int, one: Caller) -> None:
            own = params.clone()
            own.n = 1
            own.seed = None if params.seed is None else params.seed + index
            try:
                async with contextlib.aclosing(self._one(one, prompt, own, options)) as chunks:
                    async for chunk in chunks:
                        queue.put_nowait((index, chunk.output))
            except (asyncio.CancelledError, Exception) as raised:
                error = who.failed(raised) or raised
                if not isinstance(error, Exception):
                    raise
                queue.put_nowait((index, error))

        async def begin(each: Sequence[Caller]) -> None:
            # One in each pass of the event loop: a hundred at once would hold all others up.
            for index, one in enumerate(each):
                tasks.append(asyncio.create_task(feed(index, one)))
                await asyncio.sleep(0)

        with who.siblings(params.n) as each:
            tasks = [asyncio.create_task(begin(each))]
            try:
                async for output in _merged(queue, params):
                    yield Chunk("", output=output)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

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


async def _merged(queue: asyncio.Queue[tuple[int, Any]], params: Any) -> AsyncGenerator[Any, None]:
    """The outputs of ``n`` calls as vLLM gives those of one request with ``n`` choices."""
    whole = params.output_kind is RequestOutputKind.FINAL_ONLY
    finished: dict[int, Any] = {}
    while len(finished) < params.n:
        index, output = await queue.get()
        if isinstance(output, Exception):
            raise output
        completion = output.outputs[0]
        completion.index = index
        if output.finished:
            finished[index] = completion
        output.finished = len(finished) == params.n
        if whole and output.finished:
            output.outputs = [finished[i] for i in range(params.n)]
        if not whole or output.finished:
            yield output


def _chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in options.items() if v is not None and n not in _NOT_OPTIONS}


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
