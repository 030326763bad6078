"""Access to the engine core and to its client: calls of utility methods of the core, pauses, the
client's task that reads outputs, outputs that it cannot read, the ids of the core's processes, and
the client's metrics.

This module does not import vLLM when it is imported, because clients import it before they load an
engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import length_hint
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from agentrt.errors import EngineError, text_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor

UTILITY = "agentrt"
"""The utility method by which a client reaches our scheduler: `EngineCore.agentrt(op, argument)`.
"""
_LAST_OUTPUTS_S = 0.02
_LOG = logging.getLogger(__name__)


def install_control() -> None:
    """Let clients call ``scheduler.control(op, argument)`` in the engine core."""
    install_utility(UTILITY, lambda scheduler, op, argument: scheduler.control(op, argument))


def install_utility(name: str, answer: Callable[[Any, str, Any], Any]) -> None:
    """Let clients call ``answer(scheduler, op, argument)`` in the engine core, under ``name``.

    vLLM looks a utility method up on the engine core when a message arrives, so it is enough to set
    a class attribute in the process that imports the scheduler class. vLLM counts the method's
    parameters, so it must not have ``*args``.
    """
    from vllm.v1.engine.core import EngineCore

    def utility(self: Any, op: str, argument: Any = None) -> Any:
        return answer(self.scheduler, op, argument)

    setattr(EngineCore, name, utility)


async def ask_scheduler(
    llm: AsyncLLM, op: str, argument: Any = None, utility: str = UTILITY
) -> Any:
    """Call a utility method in the engine core, and return its result.

    Raises the method's own errors, and vLLM's if the engine is dead, or dies before it answers
    (after `start_reader`).
    """
    return await llm.engine_core.call_utility_async(utility, op, argument)


async def pause(llm: AsyncLLM, mode: str) -> None:
    """Pause generation in the engine core as `AsyncLLM.pause_generation` does, with vLLM's ``mode``
    and without clearing caches. New calls wait until generation is resumed.

    In vLLM 0.33, `AsyncLLM.pause_generation` would make the core refuse new calls in all modes but
    ``keep``.
    """
    await llm.engine_core.pause_scheduler_async(mode=mode, clear_cache=False)
    # As in vLLM's method: the last outputs of calls that have ended arrive first.
    await asyncio.sleep(_LAST_OUTPUTS_S)


def start_reader(llm: AsyncLLM) -> None:
    """Start the client's task that reads the engine core's outputs, before any program runs.

    vLLM itself would start the task in the first call, and the task would keep that call's context
    variables. An output that cannot be read ends only its own call. When the task ends, because the
    engine core has died or because of `stop_reader`, all calls and utility calls that wait for the
    engine core raise vLLM's error for a dead engine. vLLM itself would leave utility calls, and
    after its shutdown also calls, waiting for ever.
    """
    _read_each(llm.output_processor)
    llm._run_output_handler()
    reader: asyncio.Task[None] = llm.output_handler
    # Without a reference to the AsyncLLM, because vLLM frees an engine that nobody refers to.
    reader.add_done_callback(
        partial(_end_waits, llm.output_processor, llm.engine_core.utility_results)
    )


def _end_waits(
    calls: OutputProcessor, answers: Mapping[int, asyncio.Future[Any]], reader: asyncio.Task[None]
) -> None:
    """Make all that wait for the engine core raise `EngineDeadError`, after the ``reader`` of its
    outputs has ended. The ``answers`` are those of utility calls.
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    if reader.cancelled():  # if the reader fails, it makes the calls fail itself
        calls.propagate_error(EngineDeadError())
    # The answers stay in vLLM's table, because vLLM looks up each answer that still arrives.
    for answer in answers.values():
        if not answer.done():
            answer.set_exception(EngineDeadError())


def _read_each(processor: Any) -> None:
    """Make the output ``processor`` of an engine's client go on after an output that it cannot
    read, and make the call of this output raise `EngineError`.

    In vLLM, such an output ends the task that reads outputs, and all calls with it. Each further
    engine that the call was run on would end in the same way. Check at an upgrade:
    `OutputProcessor.process_outputs`, which goes through the outputs once, in order, and returns
    the ids of the requests that have ended at a stop string, so that the core aborts them.
    """

    def process_outputs(outputs: Sequence[Any], *args: Any, **options: Any) -> Any:
        unread, position, to_abort = iter(outputs), 0, list[str]()
        while True:
            try:
                processed = type(processor).process_outputs(processor, unread, *args, **options)
            except Exception as error:
                before, position = position, len(outputs) - length_hint(unread)
                if position == before:  # the failure is not that of an output
                    raise
                *read, failed = outputs[before:position]
                # vLLM has lost the ids that it would have returned. To abort a call that was
                # aborted already does nothing.
                live = processor.request_states
                ids = [output.request_id for output in read if not output.finished]
                to_abort += [request_id for request_id in ids if request_id not in live]
                _end_call(processor, failed.request_id, error)
                if not failed.finished:
                    to_abort.append(failed.request_id)
            else:
                processed.reqs_to_abort.extend(to_abort)
                return processed

    processor.process_outputs = process_outputs


def _end_call(processor: Any, request_id: str, error: Exception) -> None:
    """Make a call raise `EngineError`, because its output cannot be read, and forget the call."""
    state = processor.request_states.get(request_id)
    if state is None:  # the call has got its last output, and its statistics failed
        return
    _LOG.error("an output of call %s cannot be read", state.external_req_id, exc_info=error)
    fault = EngineError(
        f"call {state.external_req_id}: vLLM's client cannot read the call's output "
        f"({text_of(error)})"
    )
    fault.__cause__ = error
    state.queue.put(fault)
    processor.lora_states.request_finished(request_id, state.lora_name)
    processor._finish_request(state)


def stop_reader(llm: AsyncLLM) -> None:
    """Cancel the task that `start_reader` started."""
    if llm.output_handler is not None:
        llm.output_handler.cancel()


_CLOSING_S = 0.5
"""Seconds to wait for a ZeroMQ context to close."""


def close_context(llm: AsyncLLM) -> None:
    """Close the ZeroMQ context that vLLM's own shutdown leaves to the garbage collector.

    A context closes when all its sockets are closed. If vLLM has left a socket open, this can take
    forever, so another thread waits for it: the event loop goes on after `_CLOSING_S` seconds.
    """
    destroy = partial(llm.engine_core.resources.ctx.destroy, linger=0)
    closing = Thread(target=destroy, name="agentrt-context", daemon=True)
    closing.start()
    closing.join(_CLOSING_S)


def core_pids(llm: AsyncLLM) -> list[int]:
    """Return the ids of the engine core's processes; empty if it runs in this process."""
    manager = llm.engine_core.resources.engine_manager
    return [] if manager is None else [process.pid for process in manager.processes]


# -- the client's metrics --------------------------------------------------------------------

_REGISTERING = Lock()
"""A lock that is held while metrics are registered, since several engines may start at once, each
in a thread.
"""
_PREFIX = "vllm:"


def stat_logger(registry: CollectorRegistry) -> type[Any]:
    """Return a stat-logger class for vLLM's ``AsyncLLM`` that registers its metrics (``vllm:…``) in
    ``registry``.

    vLLM registers them for the whole process, where the metrics of a second engine replace those of
    the first. Check at an upgrade: `vllm.v1.metrics.loggers.PrometheusStatLogger`, which registers
    in its constructor and in `log_engine_initialized`, and
    `vllm.v1.metrics.prometheus.unregister_vllm_metrics`.
    """
    from vllm.config import VllmConfig
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class OwnStatLogger(PrometheusStatLogger):
        def __init__(
            self, vllm_config: VllmConfig, engine_indexes: list[int] | None = None
        ) -> None:
            with _moved_to(registry):
                super().__init__(vllm_config, engine_indexes)

        def log_engine_initialized(self) -> None:
            with _moved_to(registry):
                super().log_engine_initialized()

    return OwnStatLogger


@contextlib.contextmanager
def _moved_to(registry: CollectorRegistry) -> Iterator[None]:
    """Move the vLLM metrics that the ``with`` block registers from the process's registry to
    ``registry``.
    """
    from prometheus_client import REGISTRY

    with _REGISTERING:
        yield
        for collector in list(REGISTRY._collector_to_names):
            if getattr(collector, "_name", "").startswith(_PREFIX):
                REGISTRY.unregister(collector)
                registry.register(collector)
