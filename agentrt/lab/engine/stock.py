"""vLLM without us: its own scheduler, and what a clever client can tell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrt.lab.engine.virtual import StockPolicy

if TYPE_CHECKING:
    from agentrt.lab.program import LiveProgram


@dataclass(frozen=True, slots=True)
class Stock:
    """vLLM's own scheduler class, as it is.

    With feed ``none`` it serves calls first come, first served. With the others it runs its
    policy ``priority``, and each call's integer priority (lower goes first) is set when the
    call is emitted: with ``service`` to the tokens that its program's finished calls have
    generated, with ``path`` to those on the longest path that leads to the call. A client
    can count both. Prompt tokens are not counted: a step computes many of them at once.
    """

    feed: Literal["none", "service", "path"] = "none"

    @property
    def scheduling(self) -> StockPolicy:
        return "fcfs" if self.feed == "none" else "priority"

    def priority(self, program: LiveProgram, index: int) -> int:
        """What vLLM is told of a call that is emitted now."""
        match self.feed:
            case "service":
                return program.served_tokens
            case "path":
                return program.path_to(index)
            case _:
                return 0
