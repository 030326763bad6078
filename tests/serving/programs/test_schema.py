"""The schema of our own routes holds: schemathesis makes up requests, and none fails the server."""

from __future__ import annotations

import asyncio
from typing import Any

import hypothesis
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok

from agentrt import Context, program
from agentrt.serving.server import ServedProgram
from tests.serving.local import open_server

EXAMPLES = 20
"""For each operation; more by hand: the seeds are other ones then."""


@program(name="echo")
async def echo(ctx: Context, text: Any) -> Any:
    return text


async def test_no_made_up_request_fails_the_server() -> None:
    async with open_server(served={"echo": ServedProgram(echo, "here.py")}) as local:
        described = (await local.client.get("/openapi.json")).json()
        operations = [f"{m.upper()} {p}" for p, ms in described["paths"].items() for m in ms]
        assert "POST /v1/client-runs" in operations
        name_what_is_there(described)
        tried = await asyncio.to_thread(try_all, described, local.url)
    assert len(tried) == len(operations)
    for label in ("client-runs", "programs/{name}/runs"):
        assert {200, 201, 202} & tried[f"POST /v1/{label}"], "none of them came through"


def name_what_is_there(described: dict[str, Any]) -> None:
    """Requests for random names of programs would all be refused."""
    for path in described["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "name":
                    parameter["schema"] = {"enum": ["echo", "other"]}


def try_all(described: dict[str, Any], url: str) -> dict[str, set[int]]:
    """Which operations were tried, and how they were answered. Raises for a 5xx."""
    schema = schemathesis.openapi.from_dict(described)
    tried: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def attempt(case: schemathesis.Case[Any]) -> None:
            response = case.call(base_url=url, timeout=60)
            tried.setdefault(case.operation.label, set()).add(response.status_code)
            case.validate_response(response, checks=[not_a_server_error])

        attempt()
    return tried
