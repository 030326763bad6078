"""The engine core's report of a call that ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from agentrt.request import CallReport
from agentrt.scheduler.account import noted, spans_of
from agentrt.scheduler.limits import MOST_KINDS
from agentrt.scheduler.state import QueuedCall


class RecentReports:
    """Reports of calls that ended a short time ago, kept for clients that do not get a call's last
    output, which contains the report.

    An aborted request has no last output. A client that stops reading a stream does not get the
    last output either, even if the call has already ended in the engine core. When there are too
    many reports, the oldest are dropped.
    """

    def __init__(self) -> None:
        self._reports: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def keep(self, call_id: str, report: dict[str, Any]) -> None:
        """Keep the report of a call."""
        self._reports[call_id] = report
        if len(self._reports) > MOST_KINDS:
            self._reports.popitem(last=False)

    def take(self, call_id: str) -> dict[str, Any] | None:
        """Return the report of a call and forget it; None if there is none."""
        return self._reports.pop(call_id, None)


def report_of(call: QueuedCall, step: int) -> dict[str, Any]:
    """Return the report of a call that ended in ``step``, as plain values for `read_report`."""
    began, cached = call.cached_tokens is not None, call.cached_tokens or 0
    return {
        "service_s": call.served_s,
        "waiting_s": call.waited_s,
        "preemptions": call.preemptions,
        "demotions": call.demotions,
        "promotions": call.promotions,
        "steps": call.steps,
        "arrived_step": call.arrived_step,
        "finished_step": step,
        "prompt_tokens": call.item.num_prompt_tokens,
        "output_tokens": len(call.item.output_token_ids),
        "cached_tokens": cached,
        "recomputed_tokens": call.recomputed_tokens,
        "returned_tokens": call.known_tokens if began else 0,
        "lost_tokens": max(0, call.known_tokens - cached) if began else 0,
        "loaded_tokens": call.loaded_tokens,
        "unused_loaded_tokens": call.unused_loaded_tokens,
        "level": call.level,
        "versions": call.versions,
        "notes": noted(call),
    }


def read_report(values: Mapping[str, Any]) -> CallReport:
    """Return the `CallReport` of the values that `report_of` returned in the engine core."""
    fields = {name: value for name, value in values.items() if name != "notes"}
    return CallReport(**fields, spans=spans_of(values.get("notes", ())))
