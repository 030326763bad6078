"""Saved contexts, which are kept in memory, by tenant and name, after their program has ended."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from agentrt.errors import ConfigError, UnknownContextError

BUDGET = 16 * 2**20
"""Maximum size of all saved contexts of a tenant, in bytes: four million tokens."""
ENTRY = 256
"""Bytes that are counted for each saved context in addition to the bytes of its tokens."""
_LONGEST_NAME = 128


@dataclass(frozen=True, slots=True)
class SavedContext:
    """The tokens of a context, its model or adapter, and the positions in ``opened`` at which the
    tokens that opened the model's last turn begin and end (see `Chat`).
    """

    token_ids: array[int]
    model: str | None = None
    opened: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """The size of the context in bytes, including `ENTRY`."""
        return len(self.token_ids) * self.token_ids.itemsize + ENTRY


class SavedContexts:
    """The saved contexts of all tenants, up to ``budget`` bytes for each tenant.

    The blocks that the engine has computed for these contexts stay in the prefix cache until they
    are evicted.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._kept: dict[str, dict[str, SavedContext]] = {}

    def save(self, tenant: str, name: str, context: SavedContext) -> None:
        """Save a context. It replaces a context that the tenant has saved under the same name.

        Raises `ConfigError` if the tenant's budget is exceeded or the name is empty or too long.
        """
        if not 0 < len(name) <= _LONGEST_NAME:
            raise ConfigError(
                f"the name of a saved context has {len(name)} characters; allowed are 1 to "
                f"{_LONGEST_NAME}"
            )
        own = self._kept.get(tenant, {})
        others = sum(kept.size for other, kept in own.items() if other != name)
        if others + context.size > self._budget:
            raise ConfigError(
                f"context {name!r} needs {context.size} bytes, and other saved contexts already "
                f"take {others} of {self._budget}; forget some of them first"
            )
        self._kept.setdefault(tenant, {})[name] = context

    def open(self, tenant: str, name: str) -> SavedContext:
        """Return a context that ``tenant`` has saved. Raises `UnknownContextError` if the tenant
        has saved no context with this name.
        """
        own = self._kept.get(tenant, {})
        if name not in own:
            names = ", ".join(map(repr, sorted(own))) or "none"
            raise UnknownContextError(f"unknown saved context {name!r}; available: {names}")
        return own[name]

    def get(self, tenant: str, name: str) -> SavedContext | None:
        """Return the context that the tenant has saved with this name; None if there is none."""
        return self._kept.get(tenant, {}).get(name)

    def forget(self, tenant: str, name: str) -> None:
        """Remove a saved context. Raises `UnknownContextError` if the tenant has saved no context
        with this name.
        """
        self.open(tenant, name)
        del self._kept[tenant][name]
