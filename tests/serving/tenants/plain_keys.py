"""Keys for tests of who sees what."""

from __future__ import annotations


class PlainKeys:
    """A `KeyCheck`: each key is its tenant's name, and ``root`` is an operator's."""

    def tenant_of(self, key: str) -> str | None:
        return key or None

    def is_operator(self, tenant: str) -> bool:
        return tenant == "root"
