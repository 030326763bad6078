"""vLLM's own scheduler classes, under names of ours.

vLLM imports the module that its scheduler's name stands in, in the engine core's process. The
classes here are vLLM's, unchanged. That this module was imported opens the door through which
a client has them watched (`agentrt.lab.engine.probe`), and ties the process to its parent,
as our own scheduler does.
"""

from __future__ import annotations

from agentrt.executors.vllm._compat.core import install_control
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler, Scheduler
from agentrt.executors.vllm.processes import die_with_parent, leave_interrupts_to_parent

install_control()
# Nothing happens in a process that multiprocessing did not start.
leave_interrupts_to_parent()
die_with_parent()

__all__ = ["AsyncScheduler", "Scheduler"]
