"""Which workers are there, and what they offer, as their announcements say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrt.integrations.mqtt.messages import Announcement
from agentrt.interrupts import Tool, ToolTransport


@dataclass(slots=True)
class Announced:
    """One worker. ``calls`` are those that it has now from this client.

    It is ``unsure`` after the connection to the broker broke, until it is heard of again.
    """

    name: str
    tools: Mapping[str, Tool] = field(default_factory=dict)
    calls: int = 0
    unsure: bool = False


@dataclass(slots=True)
class Fleet:
    """The workers of one tenant, by name."""

    workers: dict[str, Announced] = field(default_factory=dict)

    def announce(self, name: str, said: Announcement) -> None:
        """A worker says what it offers now."""
        worker = self.workers.setdefault(name, Announced(name))
        worker.tools = {} if said.draining else {one.name: one.tool() for one in said.tools}
        worker.unsure = False

    def leave(self, name: str) -> bool:
        """A worker is gone. Whether it was known."""
        return self.workers.pop(name, None) is not None

    def doubt(self) -> None:
        """Nobody knows who is still there."""
        for worker in self.workers.values():
            worker.unsure = True

    def doubtful(self) -> list[str]:
        """Who has not been heard of since `doubt`."""
        return [name for name, worker in self.workers.items() if worker.unsure]

    def offering(self, tool: str) -> list[Announced]:
        """Who offers a tool; those that are surely there come first, then the least busy."""
        fitting = [worker for worker in self.workers.values() if tool in worker.tools]
        return sorted(fitting, key=lambda worker: (worker.unsure, worker.calls))

    def tools(self, transport: ToolTransport) -> list[Tool]:
        """All tools that are offered, reached through ``transport``."""
        names = sorted({name for worker in self.workers.values() for name in worker.tools})
        return [self._tool(name, transport) for name in names]

    def _tool(self, name: str, transport: ToolTransport) -> Tool:
        """One tool of several workers: idempotent if they all say so."""
        first, *others = (worker.tools[name] for worker in self.offering(name))
        joined = first.but(idempotent=all(one.options.idempotent for one in (first, *others)))
        joined.transport = transport
        return joined
