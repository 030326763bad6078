"""Dependency tracking: derive from plain asyncio code which calls had to end before a new call.

The module `scope` records for each task which nodes had ended, and `current` finds the scope of
running code. `place` identifies positions in the code for a journal. `tasks` has the task factory
and `emission_parents`. `timers` delays a program's timers while it is resumed. `frameworks` has the
frameworks whose tasks are not branches of a program, and `_compat` reads private parts of asyncio.
"""

from __future__ import annotations

from agentrt.tracking._compat import task_on
from agentrt.tracking.current import current_scope, enter, enter_node, is_alone_in, outside, within
from agentrt.tracking.frameworks import add_stream
from agentrt.tracking.tasks import (
    TrackedTask,
    all_wait,
    cancel_tasks,
    emission_parents,
    generators_closed,
    install,
    is_alone,
    is_single,
    is_stopped,
    only_rests,
    to_its_end,
    uninstall,
)
from agentrt.tracking.timers import DueTimer, hold_timers, release_timers

__all__ = [
    "DueTimer",
    "TrackedTask",
    "add_stream",
    "all_wait",
    "cancel_tasks",
    "current_scope",
    "emission_parents",
    "enter",
    "enter_node",
    "generators_closed",
    "hold_timers",
    "install",
    "is_alone",
    "is_alone_in",
    "is_single",
    "is_stopped",
    "only_rests",
    "outside",
    "release_timers",
    "task_on",
    "to_its_end",
    "uninstall",
    "within",
]
