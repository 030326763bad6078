"""SRPT: the program with the least remaining service first. It knows the future.

No policy can know it, so this one exists in the simulator only, as the mark to come
close to (Agentix, Fig. 20).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from agentrt.lab.gittins import Gittins, Laws
from agentrt.scheduler import policies
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy, Priority

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall

_LEVELS_PER_DOUBLING = 4
"""How finely remaining service is told apart: a call gives way to one with 16% less."""


class Srpt(Policy):
    """Shortest remaining processing time of programs, from an oracle."""

    name: ClassVar[str] = "srpt"
    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig, remaining_s: Callable[[str], float]) -> None:
        super().__init__(config)
        self._remaining_s = remaining_s

    def priority(self, call: QueuedCall, now: float) -> Priority:
        remaining = max(self._remaining_s(call.program.program_id), 1e-6)
        level = math.floor(_LEVELS_PER_DOUBLING * math.log2(remaining))
        return Priority(level, quantum_s=remaining / 8, order=remaining)


KNOWING = (Gittins.name, Srpt.name)
"""The policies that know what no engine is told."""


def policy_names() -> list[str]:
    """All policies that the simulator knows: the engine's, and those that know more."""
    return [*policies.policy_names(), *KNOWING]


def make_policy(
    config: SchedulerConfig, remaining_s: Callable[[str], float], laws: Laws | None = None
) -> Policy:
    """A fresh policy; one that knows more asks ``remaining_s`` or ``laws``."""
    if config.policy == Srpt.name:
        return Srpt(config, remaining_s)
    if config.policy == Gittins.name:
        return Gittins(config, laws or Laws(1.0))
    return policies.make_policy(config)
