"""Contexts that were saved by name: kept beyond the program, each tenant's apart, in memory."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from agentrt.errors import ConfigError, UnknownContextError

BUDGET = 16 * 2**20
"""Bytes that the saved contexts of one tenant may take: four million tokens."""
ENTRY = 256
"""Bytes that a saved context takes beside its tokens."""
_LONGEST_NAME = 128


@dataclass(frozen=True, slots=True)
class SavedContext:
    """The tokens of a context, and the model or adapter that it was for."""

    token_ids: array[int]
    model: str | None = None

    @property
    def size(self) -> int:
        """Bytes that it takes, its place in the list included."""
        return len(self.token_ids) * self.token_ids.itemsize + ENTRY


class SavedContexts:
    """Saved contexts of all tenants; those of one take up to ``budget`` bytes together.

    What the engine has computed for them stays in its prefix cache as long as that has room.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._kept: dict[str, dict[str, SavedContext]] = {}

    def save(self, tenant: str, name: str, context: SavedContext) -> None:
        """Keep ``context``, in place of one of that name. Raises `ConfigError` past the budget,
        and for a name that cannot be.
        """
        if not 0 < len(name) <= _LONGEST_NAME:
            raise ConfigError(f"a saved context's name has 1 to {_LONGEST_NAME} characters")
        own = self._kept.get(tenant, {})
        others = sum(kept.size for other, kept in own.items() if other != name)
        if others + context.size > self._budget:
            raise ConfigError(
                f"context {name!r} has {context.size} bytes, and {others} of {self._budget} are "
                "taken by others that were saved: forget one of them"
            )
        self._kept.setdefault(tenant, {})[name] = context

    def open(self, tenant: str, name: str) -> SavedContext:
        """The context that ``tenant`` has saved. Raises `UnknownContextError`."""
        own = self._kept.get(tenant, {})
        if name not in own:
            names = ", ".join(map(repr, sorted(own))) or "none"
            raise UnknownContextError(f"there is no saved context {name!r}; saved are: {names}")
        return own[name]

    def has(self, tenant: str, name: str) -> bool:
        """Whether the tenant has saved one."""
        return name in self._kept.get(tenant, {})

    def forget(self, tenant: str, name: str) -> None:
        """Keep it no longer. Raises `UnknownContextError`."""
        self.open(tenant, name)
        del self._kept[tenant][name]
