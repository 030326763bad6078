"""The engine core and its client: what is called there by name, its reader, its process.

Importing this imports nothing of vLLM: clients do so before they load an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

UTILITY = "agentrt"
"""The name under which a client reaches our scheduler: `EngineCore.agentrt(op, argument)`."""


def install_control() -> None:
    """Let clients call ``scheduler.control(op, argument)`` in the engine core."""
    install_utility(UTILITY, lambda scheduler, op, argument: scheduler.control(op, argument))


def install_utility(name: str, answer: Callable[[Any, str, Any], Any]) -> None:
    """Let clients call ``answer(scheduler, op, argument)`` in the engine core, by this name.

    vLLM looks utility methods up on the engine core when a message arrives: setting one
    class attribute where the scheduler class is imported is enough. It counts the method's
    parameters, and takes no ``*args``.
    """
    from vllm.v1.engine.core import EngineCore

    def utility(self: Any, op: str, argument: Any = None) -> Any:
        return answer(self.scheduler, op, argument)

    setattr(EngineCore, name, utility)


async def ask_scheduler(
    llm: AsyncLLM, op: str, argument: Any = None, utility: str = UTILITY
) -> Any:
    """What a utility in the engine core answers. Raises what it raises, and vLLM's own errors."""
    return await llm.engine_core.call_utility_async(utility, op, argument)


def start_reader(llm: AsyncLLM) -> None:
    """Start the client's task that reads the engine core's outputs, before any program runs.

    vLLM would start it in the first call, whose context it would then keep alive.
    """
    llm._run_output_handler()


def stop_reader(llm: AsyncLLM) -> None:
    """Cancel the task that `start_reader` started."""
    if llm.output_handler is not None:
        llm.output_handler.cancel()


def close_context(llm: AsyncLLM) -> None:
    """Close the ZeroMQ context that vLLM's own shutdown leaves to the garbage collector."""
    llm.engine_core.resources.ctx.destroy(linger=0)


def core_pids(llm: AsyncLLM) -> list[int]:
    """The process of the engine core."""
    manager = llm.engine_core.resources.engine_manager
    return [] if manager is None else [process.pid for process in manager.processes]
