"""Who a vLLM request belongs to, read from what its client attached.

agentrt's own executor sends one nested value; a client of `vllm serve` can send flat
ones (``vllm_xargs``) or vLLM's own session id. Without any of them a request is a
program of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrt.request import Call

NESTED = "agentrt"


@dataclass(frozen=True, slots=True)
class Identity:
    """The program of a request and what its client knows of it (seconds of service)."""

    program_id: str
    program_type: str = "unknown"
    tenant: str = "default"
    call_id: str | None = None
    path_s: float | None = None
    service_s: float = 0.0
    program_path_s: float = 0.0
    waiting_s: float = 0.0
    node: str = ""
    session: str | None = None
    size_hint: float | None = None
    report: bool = False
    lone: bool = False


def attach(call: Call) -> dict[str, Any]:
    """A call's identity as ``extra_args`` of vLLM's sampling parameters."""
    return {
        NESTED: {
            "program_id": call.program_id,
            "program_type": call.program_type,
            "tenant": call.tenant,
            "call_id": call.call_id,
            "path_s": call.path_s,
            "service_s": call.program_service_s,
            "program_path_s": call.program_path_s,
            "waiting_s": call.program_waiting_s,
            "node": call.node,
            "session": call.session,
            "size_hint": call.size_hint,
            "report": True,
        }
    }


def identify(request_id: str, extra: Mapping[str, Any], session_id: str | None) -> Identity:
    """Read a request's identity; whatever is malformed counts as not given."""
    nested = extra.get(NESTED)
    if isinstance(nested, Mapping) and nested.get("program_id"):
        return _of_nested(nested)
    program_id = extra.get("agentrt_program") or session_id
    if not program_id:
        return Identity(program_id=request_id, lone=True)
    return Identity(
        program_id=str(program_id),
        program_type=str(extra.get("agentrt_type", "unknown")),
        tenant=str(extra.get("agentrt_tenant", "default")),
        path_s=_number(extra.get("agentrt_path_s")),
        node=str(extra.get("agentrt_node", "")),
        size_hint=_number(extra.get("agentrt_size_hint")),
        report=bool(extra.get("agentrt_report", False)),
    )


def _of_nested(values: Mapping[str, Any]) -> Identity:
    """What `attach` wrote, or a client in its manner."""
    return Identity(
        program_id=str(values["program_id"]),
        program_type=_text(values.get("program_type")) or "unknown",
        tenant=_text(values.get("tenant")) or "default",
        call_id=_text(values.get("call_id")),
        path_s=_number(values.get("path_s")),
        service_s=_number(values.get("service_s")) or 0.0,
        program_path_s=_number(values.get("program_path_s")) or 0.0,
        waiting_s=_number(values.get("waiting_s")) or 0.0,
        node=_text(values.get("node")) or "",
        session=_text(values.get("session")),
        size_hint=_number(values.get("size_hint")),
        report=bool(values.get("report", False)),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    # A number that is not finite has no place in any order, and would stop the scheduler.
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
