"""How a call says over HTTP whose it is: one name for each thing, the same for all clients."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote
from uuid import uuid4

PREFIX = "x-agentrt-"
# Program ids count from 1 in each process; a server must tell its clients' apart.
_PROCESS = uuid4().hex[:12]


def identity_headers(
    *,
    program_id: str,
    program_type: str,
    tenant: str,
    session: str | None,
    node_id: int,
    node: str,
    parents: Iterable[int],
) -> dict[str, str]:
    """The headers of one call.

    ``x-agentrt-program`` is unique over processes; ``-call`` is the call's node in its
    program's DAG and ``-parents`` the calls that had to end last before it, by number, with
    commas; ``-node`` is the node function that made it. What is no ASCII is percent-encoded.
    ``X-Session-ID`` repeats the program for a plain `vllm serve` with our scheduler, which
    reads no other header.
    """
    values = {
        "program": f"{program_id}@{_PROCESS}",
        "type": program_type,
        "tenant": tenant,
        "session": session,
        "call": str(node_id),
        "node": node or None,
        "parents": ",".join(map(str, parents)),
    }
    headers = {f"{PREFIX}{name}": _safe(v) for name, v in values.items() if v is not None}
    return headers | {"x-session-id": headers[f"{PREFIX}program"]}


def _safe(value: str) -> str:
    return quote(value, safe=" /:;,.@+-_~!*'()=<>[]{}|")
