"""Which calls had to end before this one, found out from plain asyncio code."""

from __future__ import annotations

from agentrt.tracking.tasks import (
    TrackedTask,
    bind,
    cancel_tasks,
    current_scope,
    emission_parents,
    enter,
    enter_node,
    install,
    is_alone_in,
    outside,
    start_task,
    uninstall,
)

__all__ = [
    "TrackedTask",
    "bind",
    "cancel_tasks",
    "current_scope",
    "emission_parents",
    "enter",
    "enter_node",
    "install",
    "is_alone_in",
    "outside",
    "start_task",
    "uninstall",
]
