"""How a call's identity travels: as HTTP headers, and in ``extra_args`` of a vLLM request.

The names are the same for all clients. agentrt's own executors send vLLM one nested value; a
client of `vllm serve` can send flat ones (``vllm_xargs``) or vLLM's own session id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

from agentrt.request import Identity

PREFIX = "x-agentrt-"
NESTED = "agentrt"
# Program ids count from 1 in each process; a server must tell its clients' apart.
_PROCESS = uuid4().hex[:12]
# The scheduler needs no edges: the path's service sums up what it has to know of them.
_SENT = tuple(field.name for field in fields(Identity) if field.name != "parents")
_sent = attrgetter(*_SENT)


class RequestIdentity(NamedTuple):
    """What a vLLM request says, as `Identity` has it; times are seconds of service.

    The client wants a ``report`` of its call; a ``lone`` request is a program of its own. A
    tuple, since the engine core makes one of every call that comes, and a tuple is made fast.
    """

    call_id: str
    program_id: str
    program_type: str = "unknown"
    tenant: str = "default"
    session: str | None = None
    node: str = ""
    path_s: float | None = None
    service_s: float = 0.0
    program_path_s: float = 0.0
    waiting_s: float = 0.0
    size_hint: float | None = None
    report: bool = False
    lone: bool = False


def to_headers(identity: Identity) -> dict[str, str]:
    """The headers of one call.

    ``x-agentrt-program`` is unique over processes; ``-call`` is the call's node in its
    program's DAG and ``-parents`` the calls that had to end last before it, by number, with
    commas; ``-node`` is the node function that made it. What is no ASCII is percent-encoded.
    ``X-Session-ID`` repeats the program for a plain `vllm serve` with our scheduler, which
    reads no other header.
    """
    values = {
        "program": f"{identity.program_id}@{_PROCESS}",
        "type": identity.program_type,
        "tenant": identity.tenant,
        "session": identity.session,
        "call": identity.call_id.rpartition("/")[2],
        "node": identity.node or None,
        "parents": ",".join(map(str, identity.parents)),
    }
    headers = {f"{PREFIX}{name}": _safe(v) for name, v in values.items() if v is not None}
    return headers | {"x-session-id": headers[f"{PREFIX}program"]}


def to_extra_args(identity: Identity) -> dict[str, Any]:
    """A call's identity as ``extra_args`` of vLLM's sampling parameters."""
    return {NESTED: {**dict(zip(_SENT, _sent(identity), strict=True)), "report": True}}


def from_extra_args(
    request_id: str, extra: Mapping[str, Any], session_id: str | None
) -> RequestIdentity:
    """Read a request's identity; whatever is malformed counts as not given."""
    nested = extra.get(NESTED)
    if isinstance(nested, dict) and nested.get("program_id"):
        return _of_nested(nested)
    program_id = extra.get("agentrt_program") or session_id
    if not program_id:
        return RequestIdentity("", request_id, lone=True)
    return RequestIdentity(
        "",
        str(program_id),
        str(extra.get("agentrt_type", "unknown")),
        str(extra.get("agentrt_tenant", "default")),
        path_s=_number(extra.get("agentrt_path_s")),
        node=str(extra.get("agentrt_node", "")),
        size_hint=_number(extra.get("agentrt_size_hint")),
        report=bool(extra.get("agentrt_report", False)),
    )


def _of_nested(values: Mapping[str, Any]) -> RequestIdentity:
    """What `to_extra_args` wrote, or a client in its manner."""
    get = values.get
    return RequestIdentity(
        call_id=_text(get("call_id")) or "",
        program_id=str(values["program_id"]),
        program_type=_text(get("program_type")) or "unknown",
        tenant=_text(get("tenant")) or "default",
        session=_text(get("session")),
        node=_text(get("node")) or "",
        path_s=_number(get("path_s")),
        service_s=_number(get("service_s")) or 0.0,
        program_path_s=_number(get("program_path_s")) or 0.0,
        waiting_s=_number(get("waiting_s")) or 0.0,
        size_hint=_number(get("size_hint")),
        report=bool(get("report", False)),
    )


def _safe(value: str) -> str:
    return quote(value, safe=" /:;,.@+-_~!*'()=<>[]{}|")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    # A number that is not finite has no place in any order, and would stop the scheduler.
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
