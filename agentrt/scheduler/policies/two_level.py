"""Two-level: first come, first served into a small staging queue; shortest prompt first out of it.

Source: the vLLM thesis, §4.5.3. The staging queue bounds both the cost of looking at
waiting prompts and how long a long one is passed over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.base import Place, Policy

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall

STAGED = 8
"""Calls in the staging queue. The thesis leaves it open: "small"."""
_STAGING, _LINE = 0, 1


class TwoLevel(Policy):
    """SRTF among the calls that waited longest."""

    name: ClassVar[str] = "two-level"
    starving: ClassVar[bool] = False

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._staged: set[str] = set()
        self._line: OrderedDict[str, QueuedCall] = OrderedDict()

    def place(self, call: QueuedCall, now: float) -> Place:
        if call.call_id in self._staged or len(self._staged) < STAGED:
            self._staged.add(call.call_id)
            return Place(_STAGING, order=call.prompt_tokens)
        self._line[call.call_id] = call
        return Place(_LINE)

    def call_left(self, call: QueuedCall) -> Iterable[QueuedCall]:
        self._line.pop(call.call_id, None)
        self._staged.discard(call.call_id)
        if self._line and len(self._staged) < STAGED:
            return (self._line.popitem(last=False)[1],)
        return ()
