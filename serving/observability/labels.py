"""Bounded label sets: what clients name must not grow the metrics without end."""

from __future__ import annotations

OTHER = "other"
"""The label of all whose own would be one too many."""


class Labels:
    """Labels for tenants and for the types of their programs, the first ones by their names.

    At most ``tenants`` tenants, and of each ``types`` types, have a label of their own.
    """

    def __init__(self, tenants: int = 50, types: int = 20) -> None:
        self._tenants = tenants
        self._types = types
        self._known: dict[str, set[str]] = {}

    def of(self, tenant: str, type: str) -> tuple[str, str]:
        """The labels for a program: tenant and type."""
        types = self._known.get(tenant)
        if types is None:
            if len(self._known) == self._tenants or tenant == OTHER:
                return OTHER, OTHER
            types = self._known[tenant] = set()
        if type not in types:
            if len(types) == self._types or type == OTHER:
                return tenant, OTHER
            types.add(type)
        return tenant, type
