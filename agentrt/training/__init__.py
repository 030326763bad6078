"""Rollouts for trainers: the samples of an input as a group, with rewards and exact tokens.

    async with groups(program, inputs, samples=8) as stream:
        async for group in stream:
            train(group)

The names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrt.training.group import Group, GroupCounts, Rollout, TrainingArrays, arrays, varied
    from agentrt.training.stream import GroupStream, groups

_HOMES = {
    "Group": "group",
    "GroupCounts": "group",
    "GroupStream": "stream",
    "Rollout": "group",
    "TrainingArrays": "group",
    "arrays": "group",
    "groups": "stream",
    "varied": "group",
}

__all__ = [
    "Group",
    "GroupCounts",
    "GroupStream",
    "Rollout",
    "TrainingArrays",
    "arrays",
    "groups",
    "varied",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agentrt.training' has no attribute {name!r}")
    value = getattr(import_module(f"agentrt.training.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
