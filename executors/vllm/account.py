"""What the engine core notes of one request, beside its place in the queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrt.executors.identity import RequestIdentity
from agentrt.scheduler.call import QueuedCall
from agentrt.scheduler.retention import Context


@dataclass(slots=True, eq=False)
class Account:
    """A request's owner, its retained context, and tokens; `CallReport` says which."""

    identity: RequestIdentity
    arrived_step: int
    context: Context | None = None
    returned_tokens: int = 0
    cached_tokens: int | None = None
    computed_at_stop: int = 0
    recomputed_tokens: int = 0
    deferred_since: float | None = None
    """Since when the call has waited for memory that others are expected back for."""

    def began(self, call: QueuedCall, scheduled: int) -> None:
        """The request was admitted, with ``scheduled`` tokens in its first step."""
        # vLLM has counted this step's tokens as computed by now; the rest was cached.
        cached = call.item.num_computed_tokens - scheduled
        if self.cached_tokens is None:
            self.cached_tokens = min(cached, call.item.num_prompt_tokens)
        else:
            self.recomputed_tokens += max(0, self.computed_at_stop - cached)

    def defers(self, costly: Callable[[], bool], now: float, most_s: float) -> bool:
        """Whether the request waits on while its memory is too ``costly``, at most for so long."""
        since = now if self.deferred_since is None else self.deferred_since
        deferred = now - since <= most_s and costly()
        self.deferred_since = since if deferred or now - since > most_s else None
        return deferred

    def report(self, call: QueuedCall, step: int) -> dict[str, Any]:
        """The fields of the `CallReport` of a call that ended in the engine's ``step``."""
        request = call.item
        cached = self.cached_tokens
        return {
            "service_s": call.served_s,
            "waiting_s": call.waited_s,
            "preemptions": call.preemptions,
            "demotions": call.demotions,
            "promotions": call.promotions,
            "steps": call.steps,
            "arrived_step": self.arrived_step,
            "finished_step": step,
            "prompt_tokens": request.num_prompt_tokens,
            "output_tokens": len(request.output_token_ids),
            "cached_tokens": cached or 0,
            "recomputed_tokens": self.recomputed_tokens,
            "returned_tokens": 0 if cached is None else self.returned_tokens,
            "lost_tokens": 0 if cached is None else max(0, self.returned_tokens - cached),
            "level": call.level,
        }
