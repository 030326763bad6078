"""Whose request it is."""

from __future__ import annotations

from starlette.requests import Request

DEFAULT_TENANT = "default"


def tenant_of(request: Request) -> str:
    """The tenant whose key came with the request; without keys there is one tenant."""
    tenant: str = getattr(request.state, "tenant", DEFAULT_TENANT)
    return tenant
