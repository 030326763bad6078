"""Makes the calls of a rendered request, and merges their outputs into the outputs of one request.

Programs in this process use this module through their front end, and vLLM's HTTP application
through its engine client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RequestOutputKind

from agentrt.executors.base import Chunk
from agentrt.executors.chat_api import Caller
from agentrt.request import CallSpec, RenderedCall

_NOT_OPTIONS = ("session_id", "trace_headers", "priority", "data_parallel_rank", "prompt_text")
"""Options of vLLM's front end that agentrt sets itself, such as a call's program and priority."""


async def submit(
    caller: Caller,
    model: str,
    prompt: Any,
    params: Any,
    options: Mapping[str, Any],
    request_id: str,
    failed: Callable[[BaseException], Exception | None],
) -> AsyncGenerator[Any, None]:
    """Make the calls of a rendered request for ``caller`` on ``model``, and yield vLLM's outputs.

    ``prompt``, ``params`` and ``options`` are an engine's input. ``request_id`` is set in the
    outputs. ``failed`` gets the error of a call, and returns the error to raise instead, or None to
    raise the error itself.
    """
    options = {n: v for n, v in options.items() if v is not None and n not in _NOT_OPTIONS}
    await asyncio.sleep(0)  # so that calls that arrived together begin right after each other
    try:
        # This raises if the program has ended, or has passed its deadline, before the call begins.
        if getattr(params, "n", 1) == 1:
            spec = _spec(model, prompt, params, options)
            submitted = caller.chunks(spec, stream=_streams(params))
        else:
            submitted = _several(caller, model, prompt, params, options)
        async with contextlib.aclosing(submitted) as chunks:
            async for chunk in chunks:
                chunk.output.request_id = request_id
                yield chunk.output
    except (asyncio.CancelledError, Exception) as raised:
        error = failed(raised)
        if error is None or error is raised:
            raise
        raise error from error.__cause__


def _streams(params: Any) -> bool:
    return params.output_kind is not RequestOutputKind.FINAL_ONLY


def _spec(model: str, prompt: Any, params: Any, options: Mapping[str, Any]) -> CallSpec:
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
        model=model,
        rendered=RenderedCall(prompt, params, options, is_pooled),
        **sampled,
    )


async def _several(
    caller: Caller, model: str, prompt: Any, params: Any, options: Mapping[str, Any]
) -> AsyncGenerator[Chunk, None]:
    """Make ``params.n`` calls at the same time, and merge their outputs into the outputs of one
    request.
    """
    queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

    async def feed(index: int, sibling: Caller) -> None:
        own = params.clone()
        own.n = 1
        own.seed = None if params.seed is None else params.seed + index
        try:
            spec = _spec(model, prompt, own, options)
            stream = sibling.chunks(spec, stream=_streams(own))
            async with contextlib.aclosing(stream) as chunks:
                async for chunk in chunks:
                    queue.put_nowait((index, chunk.output))
        except (asyncio.CancelledError, Exception) as raised:
            error = caller.failed(raised) or raised
            if not isinstance(error, Exception):
                raise
            queue.put_nowait((index, error))

    async def begin(siblings: Sequence[Caller]) -> None:
        # One call in each pass of the event loop: a hundred at once would delay all other work.
        for index, sibling in enumerate(siblings):
            tasks.append(asyncio.create_task(feed(index, sibling)))
            await asyncio.sleep(0)

    read = [0] * params.n
    with caller.siblings(params.n) as siblings:
        tasks = [asyncio.create_task(begin(siblings))]
        try:
            async for output in _merged(queue, params):
                for completion in output.outputs:
                    read[completion.index] += len(completion.token_ids)
                yield Chunk("", output=output)
        except GeneratorExit:
            for sibling, count in zip(siblings, read, strict=True):
                sibling.closed(count)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _merged(queue: asyncio.Queue[tuple[int, Any]], params: Any) -> AsyncGenerator[Any, None]:
    """Yield the outputs of ``n`` calls as vLLM does for one request with ``n`` choices."""
    whole = not _streams(params)
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
