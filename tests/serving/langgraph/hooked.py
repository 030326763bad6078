"""A server whose authorization hooks do what a test says, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import Auth

from agentrt.serving.langgraph import api_with
from tests.serving.langgraph.graphs import all_graphs
from tests.serving.langgraph.hook_routes import OWN
from tests.serving.langgraph.serve import serving

OR_SHARED = {"$or": [{"owner": "ann"}, {"shared": True}]}
FILTERS = {
    "equal": OWN,
    "eq": {"owner": {"$eq": "ann"}},
    "or": OR_SHARED,
    "and": {"$and": [OWN, {"owner": {"$eq": "ann"}}]},
}


@dataclass(slots=True)
class Hooks:
    """Hooks that do for each request what `returns` says, and note what they got."""

    auth: Auth = field(default_factory=Auth)
    got: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    returns: Any = None
    of: str = ""
    raises: BaseException | None = None

    def __post_init__(self) -> None:
        @self.auth.authenticate
        async def authenticate(authorization: str | None) -> str:
            return authorization or "nobody"

        @self.auth.on
        async def on(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
            name = f"{ctx.resource}.{ctx.action}"
            self.got.append((name, dict(value)))
            if not name.startswith(self.of):
                return None
            if self.raises is not None:
                raise self.raises
            if callable(self.returns):
                return self.returns(ctx, value)
            return self.returns


HOOKS = Hooks()


@dataclass(slots=True)
class Client:
    """A user's requests; for each of which the hooks return something."""

    http: httpx.Client

    def ask(
        self, method: str, path: str, body: Any = None, returns: Any = None, of: str = ""
    ) -> httpx.Response:
        HOOKS.got.clear()
        HOOKS.returns, HOOKS.of = returns, of
        try:
            return self.http.request(method, path, json=body)
        finally:
            HOOKS.returns, HOOKS.of = None, ""

    def made(self, path: str, body: Any, key: str) -> str:
        answer = self.ask("POST", path, body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()[key])


@contextmanager
def hooked(database: str | Path) -> Iterator[Client]:
    """A server with `HOOKS`, and a client of it whose user is ann."""
    with (
        serving(all_graphs(), database, api_with(HOOKS.auth)) as it,
        httpx.Client(base_url=it.url, headers={"authorization": "ann"}, timeout=60) as http,
    ):
        yield Client(http)


def usual(ctx: Any, value: dict[str, Any]) -> dict[str, Any]:
    """The owner hook of LangGraph's documentation."""
    filters = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(filters)
    return filters
