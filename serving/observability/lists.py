"""The list of programs: which of them, and which page."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from agentrt.runtime.run import Run
from agentrt.serving.observability.render import JSON, Renderer


def programs_page(
    live: Iterable[Run],
    ended: Iterable[Run],
    render: Renderer,
    *,
    state: str | None,
    type: str | None,
    limit: int,
    offset: int,
) -> JSON:
    """A page of live programs, the oldest first, and as many ended ones, the latest first.

    ``state`` and ``type`` choose among both; ``live`` and ``ended`` count all that were chosen.
    """

    def chosen(runs: Iterable[Run]) -> list[JSON]:
        rendered = (render.program(run) for run in runs if type is None or run.type == type)
        return [one for one in rendered if state is None or one["state"] == state]

    here, gone = chosen(live), chosen(ended)
    return {
        "at": render.now,
        "live": len(here),
        "ended": len(gone),
        "limit": limit,
        "offset": offset,
        "programs": list(islice(here, offset, offset + limit)),
        "recent": list(islice(gone, offset, offset + limit)),
    }
