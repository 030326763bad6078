"""Whether the server is up, and what it is."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter

from agentrt import __version__
from agentrt.serving.langgraph.answers import JSON, Route
from agentrt.serving.langgraph.tenant_state import TenantState


class InfoRoutes:
    """``/ok`` and ``/info``, which anybody may ask."""

    def __init__(self, tenant_state: TenantState) -> None:
        self._tenant_state = tenant_state

    def add_to(self, router: APIRouter) -> None:
        """Enter the routes."""
        own = APIRouter(route_class=Route, tags=["langgraph"])
        own.add_api_route("/ok", self.ok)
        own.add_api_route("/info", self.info)
        router.include_router(own)

    async def ok(self) -> JSON:
        """The server answers."""
        return JSON({"ok": True})

    async def info(self) -> JSON:
        """Its version, and which parts of the API it has."""
        return JSON(
            {
                "version": __version__,
                "langgraph_py_version": version("langgraph"),
                "flags": {"assistants": True, "crons": False, "langsmith": False},
                "strict_resume": True,
                "host": {"kind": "agentrt"},
            }
        )
