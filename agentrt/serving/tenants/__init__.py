"""Who may use the server, how much, and in which order: keys, limits, quotas, fair sharing."""

from __future__ import annotations

from agentrt.serving.tenants.keys import KeyRing, new_key
from agentrt.serving.tenants.limits import BusyError, Limits, Tenants

__all__ = ["BusyError", "KeyRing", "Limits", "Tenants", "new_key"]
