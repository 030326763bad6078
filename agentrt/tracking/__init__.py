"""Which calls had to end before this one, found out from plain asyncio code.

`scope` has what is known of one task's past, `current` which scope code is in, `place`
where that is for a record, `tasks` the task factory and `emission_parents`, `timers` what holds a
program's timers back while it goes on, `frameworks` whose tasks are no branches of a program, and
`_compat` what is read inside asyncio.
"""

from __future__ import annotations

from agentrt.tracking.current import current_scope, enter, enter_node, is_alone_in, outside, within
from agentrt.tracking.tasks import (
    TrackedTask,
    all_wait,
    cancel_tasks,
    emission_parents,
    install,
    is_alone,
    is_single,
    is_stopped,
    only_rests,
    start_task,
    to_its_end,
    uninstall,
)
from agentrt.tracking.timers import DueTimer, hold_timers, release_timers

__all__ = [
    "DueTimer",
    "TrackedTask",
    "all_wait",
    "cancel_tasks",
    "current_scope",
    "emission_parents",
    "enter",
    "enter_node",
    "hold_timers",
    "install",
    "is_alone",
    "is_alone_in",
    "is_single",
    "is_stopped",
    "only_rests",
    "outside",
    "release_timers",
    "start_task",
    "to_its_end",
    "uninstall",
    "within",
]
