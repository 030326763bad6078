"""Tenants of a server: their API keys, limits and quotas, and fair sharing between them."""

from __future__ import annotations

from agentrt.serving.tenants.keys import KeyRing, SingleKey, new_key
from agentrt.serving.tenants.limits import BusyError, Limits, Tenants

__all__ = ["BusyError", "KeyRing", "Limits", "SingleKey", "Tenants", "new_key"]
