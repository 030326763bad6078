"""Transmits a call's identity to an engine: as HTTP headers, or in a vLLM request's ``extra_args``.

agentrt's own executors send vLLM a single nested value. A client of `vllm serve` can send flat
values (``vllm_xargs``) or vLLM's own session id.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

from agentrt.request import Identity

PREFIX = "x-agentrt-"
VLLM_KEY = "agentrt"
"""The key of agentrt's data in vLLM's own dictionaries: of the settings in ``additional_config``,
of a call's identity in ``extra_args``, and of a call's report in ``kv_transfer_params``.
"""
# ``extra_args`` have no parents: the scheduler needs only the service of the path through them
# (`path_s`).
_SENT = tuple(field.name for field in fields(Identity) if field.name != "parents")
_sent = attrgetter(*_SENT)


class RequestIdentity(NamedTuple):
    """The identity of a vLLM request, with the fields of `Identity` except ``parents``; times are
    in seconds.

    ``report`` says that the client wants a report of its call, and ``lone`` that the request is a
    program of its own. This is a tuple, because the engine core creates one for every call, and
    tuples are created fast.
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


_PROCESS = [uuid4().hex[:12]]
"""The mark of this process, in a list, so that a forked process can replace it. The mark makes
program ids unique for a server, since each client process counts its programs from 1.
"""


def _after_fork() -> None:
    _PROCESS[:] = [uuid4().hex[:12]]


os.register_at_fork(after_in_child=_after_fork)


def to_headers(identity: Identity) -> dict[str, str]:
    """Return the HTTP headers that carry a call's identity.

    ``x-agentrt-program`` is unique over all processes. ``x-agentrt-call`` is the number of the
    call's node in its program's DAG, ``x-agentrt-parents`` has the numbers of its parents,
    separated by commas, and ``x-agentrt-node`` is the name of the node function that made the call.
    Characters outside ASCII, and a few others such as ``%``, are percent-encoded. ``X-Session-ID``
    repeats the program for a `vllm serve` with agentrt's scheduler, which reads no other header.
    """
    values = {
        "program": f"{identity.program_id}@{_PROCESS[0]}",
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
    """Return a call's identity as ``extra_args`` of vLLM's sampling parameters."""
    return {VLLM_KEY: {**dict(zip(_SENT, _sent(identity), strict=True)), "report": True}}


def from_extra_args(
    request_id: str, extra: Mapping[str, Any], session_id: str | None
) -> RequestIdentity:
    """Return a request's identity, read from its ``extra_args`` or from vLLM's ``session_id``.
    Malformed values are ignored. A request without an identity is a program of its own.
    """
    nested = extra.get(VLLM_KEY)
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
    """Read an identity in the form that `to_extra_args` writes."""
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
    # Numbers that are not finite cannot be ordered, and would stop the scheduler.
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
