"""What is seen of a run of replicas that die, and what came of it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from agentrt.executors.base import Chunk, Executor, ForwardingExecutor
from agentrt.lab.reports.tables import markdown
from agentrt.request import Call


class CallAudit:
    """Sees every call begin on an engine and every reply delivered, by the call's id.

    ``delivered`` counts the replies that reached the program, ``begun`` the engines that the
    call was given to. ``faults`` are calls that ran after they had been delivered, and streams
    whose pieces are not their reply.
    """

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.faults: list[str] = []

    def engine(self, executor: Executor) -> Executor:
        """One engine of several, watched."""
        return _WatchedEngine(executor, self)

    def front(self, executor: Executor) -> Executor:
        """What programs call, watched."""
        return _WatchedFront(executor, self)

    def begins(self, call: Call) -> None:
        """An engine was given the call."""
        self.begun[call.call_id] += 1
        if self.delivered[call.call_id]:
            self.faults.append(f"{call.call_id} ran again after it was delivered")

    def gives(self, call: Call, streamed: str, chunk: Chunk) -> None:
        """A program got a chunk, after so much text."""
        if chunk.reply is None:
            return
        self.delivered[call.call_id] += 1
        if self.delivered[call.call_id] > 1:
            self.faults.append(f"{call.call_id} was delivered twice")
        if streamed != chunk.reply.text and not (call.spec.request or {}).get("tools"):
            self.faults.append(f"{call.call_id} streamed other text than its reply has")


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
    """What came of it. All is well if `wrong` has no line."""

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
        """Everything that must not be, in words."""
        lines = list(self.faults)
        if self.right < self.programs:
            lines.append(f"{self.programs - self.right} programs gave other answers")
        lines += [f"{count} {what} left" for what, count in self.left.items() if count]
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
            "calls run or delivered again after delivery": str(len(self.faults)),
            **{f"{what} left": str(count) for what, count in self.left.items()},
        }
        return markdown(["", "value"], [[what, value] for what, value in rows.items()])
