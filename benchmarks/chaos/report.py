"""The audit of calls on engines that die, and the report of a run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from agentrt.executors.base import Chunk, Executor, ForwardingExecutor
from agentrt.lab.reports.tables import markdown
from agentrt.request import Call


class CallAudit:
    """An audit of all calls on engines that may die.

    ``delivered`` counts, by the id of a call, how many of the call's replies reached the program.
    ``faults`` has a line for each call that ran again or was delivered again after its delivery,
    and for each stream whose pieces differ from the reply.
    """

    def __init__(self) -> None:
        self.delivered: Counter[str] = Counter()
        self.faults: list[str] = []

    def engine(self, executor: Executor) -> Executor:
        """Return an engine that records its calls in this audit."""
        return _WatchedEngine(executor, self)

    def front(self, executor: Executor) -> Executor:
        """Return the executor that programs call. It records the replies in this audit."""
        return _WatchedFront(executor, self)

    def begins(self, call: Call) -> None:
        """Record a fault if an engine gets a call that was already delivered."""
        if self.delivered[call.call_id]:
            self.faults.append(f"{call.call_id} ran again after it was delivered")

    def gives(self, call: Call, streamed: str, chunk: Chunk) -> None:
        """Record a chunk that a program got. ``streamed`` is the text of the call's chunks so far,
        including this chunk.
        """
        if chunk.reply is None:
            return
        self.delivered[call.call_id] += 1
        if self.delivered[call.call_id] > 1:
            self.faults.append(f"{call.call_id} was delivered twice")
        if streamed != chunk.reply.text and not (call.spec.request or {}).get("tools"):
            self.faults.append(f"{call.call_id} streamed a text that differs from its reply")


class _WatchedEngine(ForwardingExecutor):
    def __init__(self, inner: Executor, audit: CallAudit) -> None:
        super().__init__(inner)
        self._audit = audit

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self._audit.begins(call)
        return self.inner.generate(call, stream=stream)


class _WatchedFront(_WatchedEngine):
    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        streamed = ""
        async with contextlib.aclosing(self.inner.generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                streamed += chunk.text
                self._audit.gives(call, streamed, chunk)
                yield chunk


@dataclass(slots=True)
class Report:
    """The results of a run. The run succeeded if `wrong` has no lines."""

    programs: int = 0
    right: int = 0
    calls: int = 0
    kills: int = 0
    hangs: int = 0
    starts: int = 0
    reruns: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)

    def wrong(self) -> list[str]:
        """Return a line for each thing that must not happen."""
        lines = list(self.faults)
        if self.right < self.programs:
            lines.append(f"{self.programs - self.right} programs gave wrong answers")
        lines += [f"{count} {name} left" for name, count in self.left.items() if count]
        return lines

    def table(self) -> str:
        rows = {
            "minutes": f"{self.seconds / 60:.1f}",
            "programs, of which right": f"{self.programs}, {self.right}",
            "calls delivered": str(self.calls),
            "engines killed (SIGKILL)": str(self.kills),
            "engines stopped (SIGSTOP)": str(self.hangs),
            "engines started again": str(self.starts),
            "calls run again": str(self.reruns),
            "calls run or delivered again, or streamed unlike their reply": str(len(self.faults)),
            **{f"{name} left": str(count) for name, count in self.left.items()},
        }
        return markdown(["", "value"], [[name, value] for name, value in rows.items()])
