"""What tools' schemas may ask for: those of real agents pass, and what would hold up others not."""

from __future__ import annotations

from typing import Any

import pytest

from agentrt.serving.frontend.bounds import MOST_REPEATS, check_bounds
from agentrt.serving.programs.errors import ApiError

PATH = "/v1/messages"


def tool(**schema: Any) -> dict[str, Any]:
    properties = {"script": {"type": "string", **schema}}
    return {"tools": [{"name": "run", "input_schema": {"properties": properties}}]}


def test_a_text_may_be_as_long_as_an_agent_allows() -> None:
    """Claude Code has a tool whose argument may have half a million characters."""
    check_bounds(PATH, tool(maxLength=524_288))


def test_a_text_that_must_be_long_is_refused() -> None:
    with pytest.raises(ApiError, match=r"tools\.0\.input_schema: 100001 lengths"):
        check_bounds(PATH, tool(minLength=MOST_REPEATS + 1))
