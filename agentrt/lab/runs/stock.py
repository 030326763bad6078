"""vLLM without us: its own scheduler, and what a clever user feeds its priorities with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentrt.errors import ConfigError
from agentrt.lab.engine.virtual import StockPolicy
from agentrt.lab.program import LiveProgram

STOCK = "stock"
_Feed = Literal["none", "service", "path"]
_FEEDS: dict[str, _Feed] = {STOCK: "none", "priority-service": "service", "priority-path": "path"}


@dataclass(frozen=True, slots=True)
class Stock:
    """vLLM's own scheduler class, as it is.

    With feed ``none`` it serves calls first come, first served. With the others it runs its
    policy ``priority``, and each call's integer priority (lower goes first) is set when the
    call is emitted: with ``service`` to the tokens that its program's finished calls have
    generated, with ``path`` to those on the longest path that leads to the call. A client
    can count both. Prompt tokens are not counted: a step computes many of them at once.
    """

    feed: _Feed = "none"

    @classmethod
    def named(cls, name: str) -> Stock:
        """Of one of `stock_names`. Raises `ConfigError` for any other."""
        if name not in _FEEDS:
            raise ConfigError(f"{name!r} is not vLLM's own; known: {', '.join(_FEEDS)}")
        return cls(_FEEDS[name])

    @property
    def name(self) -> str:
        """What tables call it."""
        return next(name for name, feed in _FEEDS.items() if feed == self.feed)

    @property
    def scheduling(self) -> StockPolicy:
        """vLLM's ``scheduling_policy``."""
        return "fcfs" if self.feed == "none" else "priority"

    def priority(self, program: LiveProgram, index: int) -> int:
        """What vLLM is told of a call that is emitted now."""
        match self.feed:
            case "service":
                return program.served_tokens
            case "path":
                return program.path_to(index)
            case _:
                return 0


def stock_names() -> tuple[str, ...]:
    """The names of all that vLLM can do without us."""
    return tuple(_FEEDS)
