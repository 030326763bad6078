"""SRTF: the call with the fewest tokens left to its next token first.

Source: the vLLM thesis, §4.5.2. A running call is one token from its next, so it always
goes before a waiting one; waiting calls go by how much of their prompt is to be computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.policies.base import Place, Policy

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall


class Srtf(Policy):
    """Shortest remaining token first. Long prompts can starve, as the thesis says."""

    name: ClassVar[str] = "srtf"
    starving: ClassVar[bool] = False

    def place(self, call: QueuedCall, now: float) -> Place:
        return Place(0, order=call.prompt_tokens)
