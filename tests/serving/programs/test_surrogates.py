"""Half of a surrogate pair, which UTF-8 does not have, in what a program says."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from agentrt import Context, program
from agentrt.serving import observability
from agentrt.serving.programs.api import api as programs
from tests.serving.langgraph.serve import serving


@program
async def fails(ctx: Context) -> None:
    raise ValueError("half \ud800")


def test_a_text_that_is_not_utf_8_breaks_no_answer(tmp_path: Path) -> None:
    """The run's answer and all lists that have the run were a 500."""
    with (
        serving({"fails": fails}, tmp_path / "a.db", programs, None, observability.api) as it,
        httpx.Client(base_url=it.url, timeout=60) as http,
    ):
        run = http.post("/v1/programs/fails/runs", json={}).json()
        assert run["error"] == {"type": "ValueError", "message": "half ?"}
        stream = http.post("/v1/programs/fails/runs", json={"stream": True}).text
        last = json.loads(stream.strip().rpartition("data: ")[2])
        assert last["error"] == run["error"]
        recent = http.get("/v1/runs").json()["recent"]
        assert {row["error"] for row in recent} == {"ValueError: half ?"}
