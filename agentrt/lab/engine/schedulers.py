"""The schedulers of the laboratory's engines, for the engine core's process.

The engine core imports the module of its scheduler class. Importing this module installs the
function by which a client starts a probe (`agentrt.lab.engine.probe`), and makes the process end
when its parent ends. vLLM's own classes are re-exported unchanged.
"""

from __future__ import annotations

from agentrt.executors.vllm._compat.core import install_utility
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler, Scheduler
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.executors.vllm.processes import die_with_parent, leave_interrupts_to_parent
from agentrt.lab.engine.probe import UTILITY, answer

__all__ = ["AsyncScheduler", "ProgramScheduler", "Scheduler"]

install_utility(UTILITY, answer)
# These calls have no effect in a process that was not started by multiprocessing.
leave_interrupts_to_parent()
die_with_parent()
