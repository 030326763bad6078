"""An engine for tests of admission: calls arrive, begin when they may, grow, and end."""

from __future__ import annotations

from typing import Any

from agentrt.scheduler import LevelQueues, ProcessTable, QueuedCall, SchedulerConfig
from agentrt.scheduler.admission import Admission, Capacity, make_admission
from agentrt.scheduler.admission.memory import WorkingSet

BLOCK = 16
KIND = ("default", "t")
TOKEN_S = 1 / 1024
"""What a token of a prompt takes in `Counted`."""


class Admitting:
    """Calls are named after their programs: 'a/0' is the first of program 'a'.

    ``contexts`` is what a program has computed (tokens), from which its next call goes on.
    """

    def __init__(self, admission: str, *, blocks: int = 100, slots: int = 8, **more: Any) -> None:
        self.config = SchedulerConfig(**{"policy": "fcfs", "admission": admission, **more})
        made = make_admission(self.config, Capacity(blocks, BLOCK, slots))
        assert made is not None
        self.admission: Admission = made
        self.queues = LevelQueues(self.config, slots=slots, admission=made)
        self.table = ProcessTable()
        self.running: list[QueuedCall] = []
        self.contexts: dict[str, int] = {}
        self.slots, self.now, self._named = slots, 0.0, 0

    def arrive(
        self, program: str, tokens: int, type: str = "t", *, fresh: bool = False, beside: int = 0
    ) -> str:
        """A call adds ``tokens`` of prompt to its program's context; ``fresh``, it shares none.

        Its first ``beside`` are another call's of its program, in the engine now, too.
        """
        row = self.table.get(program) or self.table.start_program(program, type, self.now)
        call_id, known = f"{program}/{self._named}", 0 if fresh else self.contexts.get(program, 0)
        self._named += 1
        self.table.call_arrived(row, call_id, self.now)
        call = self.queues.add(call_id, row, None, None, self.now, "", known + tokens)
        self.admission.call_arrived(call, known, beside, self.now)
        self.queues.put(call, held=not self.admission.goes_on(call, self.now))
        return call_id

    def step(self, seconds: float = 1.0) -> list[str]:
        """Let in who may come in, fill the slots, and let time pass. What began."""
        self.queues.let_in(self.now, len(self.running))
        began = []
        while len(self.running) < self.slots and self.queues.head() is not None:
            call = self.queues.take()
            self.queues.start(call, self.now)
            self.admission.call_began(call, self.contexts.get(call.program.program_id, 0), self.now)
            self.running.append(call)
            began.append(call.call_id)
        for call in self.running:
            self.queues.charge(call, seconds, self.now)
        self.now += seconds
        return began

    def end(self, call_id: str, output: int = 16) -> None:
        """A call ends, in whatever state, with so many tokens of output."""
        call = self.queues.calls[call_id]
        tokens = call.prompt_tokens + output
        if call in self.running:
            self.running.remove(call)
            self.contexts[call.program.program_id] = tokens
        self.queues.remove(call, self.now)
        times = call.served_s, call.waited_s
        self.table.call_ended(call.program, call_id, self.now, call.path_s, *times)
        self.queues.call_ended(call, self.now)
        self.admission.call_ended(call, tokens, self.now)
        if call.program.program_id not in self.table:
            self.admission.program_ended(call.program.program_id, self.now)

    def end_program(self, program: str) -> None:
        """A program ends, or is cancelled."""
        row = self.table.end_program(program)
        assert row is not None
        self.admission.program_ended(program, self.now)
        self.queues.program_ended(row, self.now)


class Counted(Admitting):
    """A working set over 100 blocks of 16 tokens, of which 95 are given out.

    Programs are as long as they say, in blocks: a call claims those of its prompt and one for its
    rest; nothing more, since it is known to put out nothing.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__("memory", **more)
        self.working.growth.call_ended(KIND, 0)
        self.working.costs.step(0.0, 1, 1)
        self.working.costs.step(1024 * TOKEN_S, 1025, 1)

    @property
    def working(self) -> WorkingSet:
        assert isinstance(self.admission, WorkingSet)
        return self.admission

    def wants(self, program: str, blocks: int, type: str = "t") -> str:
        return self.arrive(program, (blocks - 1) * BLOCK, type)

    def let_in(self, running: int = 1) -> None:
        self.queues.let_in(self.now, running)

    def inside(self) -> set[str]:
        return {row.program_id for row in self.table if self.working.has(row.program_id)}
