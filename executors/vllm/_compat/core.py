"""The engine core and its client: what is called there by name, its reader, its process.

Importing this imports nothing of vLLM: clients do so before they load an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

UTILITY = "agentrt"
"""The name under which a client reaches our scheduler: `EngineCore.agentrt(op, argument)`."""
PROBE = "agentrt_probe"
"""The name under which a client has any scheduler watched: `EngineCore.agentrt_probe(op)`."""


def install_control() -> None:
    """Let clients call ``scheduler.control(op, argument)`` in the engine core, and a `Probe`.

    vLLM looks utility methods up by name on the engine core when a message arrives, so
    one class attribute, set where the scheduler class is imported, is the whole door.
    """
    from vllm.v1.engine.core import EngineCore

    def agentrt(self: Any, op: str, argument: Any = None) -> Any:
        return self.scheduler.control(op, argument)

    def agentrt_probe(self: Any, op: str) -> Any:
        from agentrt.lab.engine.probe import answer

        return answer(self.scheduler, op)

    setattr(EngineCore, UTILITY, agentrt)
    setattr(EngineCore, PROBE, agentrt_probe)


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
    """The process of the engine core, or several with data parallelism."""
    manager = llm.engine_core.resources.engine_manager
    return [] if manager is None else [process.pid for process in manager.processes]
