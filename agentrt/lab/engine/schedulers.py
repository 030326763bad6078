"""The schedulers of the laboratory's engines, in the engine core's process.

vLLM imports the module that its scheduler's name stands in. Importing this one adds the
utility through which a client has any scheduler watched (`agentrt.lab.engine.probe`), and
ties the process to its parent. vLLM's own classes are here under their names, unchanged.
"""

from __future__ import annotations

from agentrt.executors.vllm._compat.core import install_utility
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler, Scheduler
from agentrt.executors.vllm.processes import die_with_parent, leave_interrupts_to_parent
from agentrt.executors.vllm.scheduler import ProgramScheduler
from agentrt.lab.engine.probe import UTILITY, answer

__all__ = ["AsyncScheduler", "ProgramScheduler", "Scheduler"]

install_utility(UTILITY, answer)
# Nothing happens in a process that multiprocessing did not start.
leave_interrupts_to_parent()
die_with_parent()
