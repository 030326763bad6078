"""Ten workloads whose every decision is kept in ``golden/``, and what records them again.

Each workload is random programs from one seed on vLLM's real scheduler in virtual time, under one
combination of policy, retention and admission. After a change that is meant to decide otherwise:
``python -m tests.lab.engine.golden_workloads``, and say in the commit what decides better now.
"""

from __future__ import annotations

import gzip
import heapq
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from agentrt.executors.identity import to_extra_args
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.request import Identity
from tests.lab.engine.recording import Event, RecordedScheduler, Recorder

FOLDER = Path(__file__).parent / "golden"
_STEPS = StepTimeModel()
_VOCABULARY = 300


@dataclass(frozen=True)
class Workload:
    """What one recording holds: scheduler settings, the engine's size, and its programs.

    ``programs`` arrive at ``rate`` a second. A program makes 1 to ``calls`` calls, waits for a
    tool or a human between two of them with chance ``gap``, and makes up to ``branches`` calls at
    a time. Prompts have ``prompt`` tokens at the most, outputs ``output``.
    """

    settings: dict[str, Any]
    seed: int
    programs: int = 40
    rate: float = 15.0
    calls: int = 5
    gap: float = 0.5
    branches: int = 1
    prompt: int = 200
    output: int = 40
    slots: int = 4
    blocks: int = 120
    step_tokens: int = 256
    in_flight: int = 1
    aborts: float = 0.0
    sessions: bool = False
    tells: bool = True
    """Whether programs tell of their tools and their end."""


_KEPT = {"retention": "cost", "admission": "memory"}
WORKLOADS = {
    "defaults-chains": Workload({"policy": "adaptive", **_KEPT}, 11),
    "defaults-branches": Workload({"policy": "adaptive", **_KEPT}, 12, branches=4, gap=0.3),
    "defaults-silent": Workload({"policy": "adaptive", **_KEPT}, 13, tells=False, calls=3),
    "defaults-sessions": Workload(
        {"policy": "adaptive", **_KEPT}, 14, sessions=True, in_flight=2, aborts=0.05
    ),
    "defaults-overload": Workload(
        {"policy": "adaptive", **_KEPT}, 15, programs=70, rate=40.0, blocks=100
    ),
    "defaults-target": Workload(
        {"policy": "adaptive", **_KEPT, "ttft_target": 2.0}, 16, rate=20.0, blocks=90
    ),
    "atlas-little-memory": Workload(
        {"policy": "atlas", "quanta": [0.2, 0.4, 0.8], "beta": 0.5},
        17,
        rate=20.0,
        blocks=90,
        branches=3,
    ),
    "plas-admission": Workload(
        {"policy": "plas", "quanta": [0.2, 0.4, 0.8], "beta": 0.3, **_KEPT}, 18, rate=20.0
    ),
    "mlfq-retention": Workload(
        {"policy": "mlfq", "quanta": [0.1, 0.3, 0.9], "beta": 0.5, "retention": "cost"},
        19,
        rate=20.0,
        aborts=0.05,
    ),
    "fcfs-retention": Workload({"policy": "fcfs", **_KEPT}, 20, rate=10.0, in_flight=2),
}


@dataclass
class _Program:
    """One random program under way; ``left`` are the calls that it has not made yet."""

    name: str
    type: str
    tenant: str
    session: str | None
    left: int
    context: list[int]
    open: set[str] = field(default_factory=set)
    waits_for: tuple[str, str] | None = None


class _Run:
    """Feeds a workload to an engine: what arrives, returns and ends, in the order of its time."""

    def __init__(self, workload: Workload, sink: Callable[[Event], None]) -> None:
        self._workload, self._random = workload, random.Random(workload.seed)
        scheduler = make_scheduler(
            RecordedScheduler,
            settings={"min_running_steps": 2, **workload.settings},
            max_num_seqs=workload.slots,
            blocks=workload.blocks,
            max_num_batched_tokens=workload.step_tokens,
        )
        self._engine = HeadlessEngine(
            scheduler, workload.in_flight, _STEPS.seconds, lambda name, index: index % 5
        )
        self._recorder = Recorder(scheduler, sink)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._calls = count(), count()
        self._owner: dict[str, _Program] = {}

    def run(self) -> None:
        """Run the workload until everything has ended."""
        self._recorder.attach()
        at = 0.0
        for number in range(self._workload.programs):
            at += self._random.expovariate(self._workload.rate)
            self._at(at, lambda number=number: self._start(number))  # type: ignore[misc]
        engine = self._engine
        while self._due or engine.requests:
            while self._due and self._due[0][0] <= engine.now:
                heapq.heappop(self._due)[2]()
            if not engine.requests:
                if self._due:
                    engine.now = max(engine.now, self._due[0][0])
                continue
            before = engine.now
            step = engine.step()
            if engine.now == before:
                engine.now += 0.05
            for name in step.finished:
                self._call_ended(name)
            if self._owner and self._random.random() < self._workload.aborts * 0.2:
                name = self._random.choice(sorted(self._owner))
                engine.abort(name)
                self._call_ended(name)
        self._recorder.detach()

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (moment, next(self._numbers), act))

    def _start(self, number: int) -> None:
        draw, workload = self._random, self._workload
        type = draw.choice(("short", "long"))
        session = f"s{number % 7}" if workload.sessions else None
        shared = [_VOCABULARY + (type == "long")] * 48
        program = _Program(
            f"p{number}",
            type,
            draw.choice(("a", "b")),
            session,
            draw.randint(1, workload.calls if type == "long" else 2),
            shared + self._tokens(workload.prompt),
        )
        self._next(program)

    def _tokens(self, most: int) -> list[int]:
        return [self._random.randrange(_VOCABULARY) for _ in range(self._random.randint(8, most))]

    def _next(self, program: _Program) -> None:
        """Make the program's next calls, or end it."""
        draw, workload = self._random, self._workload
        if program.left <= 0:
            if workload.tells:
                self._engine.scheduler.control("ends", [program.name])
            return
        width = draw.randint(1, min(workload.branches, program.left))
        program.left -= width
        for branch in range(width):
            call_id = f"{program.name}/{next(self._calls)}"
            program.open.add(call_id)
            self._owner[call_id] = program
            identity = Identity(
                call_id,
                program.name,
                program.type,
                tenant=program.tenant,
                session=program.session,
                node=f"n{branch}",
            )
            prompt = program.context + ([_VOCABULARY + 5 + branch] * 20 if width > 1 else [])
            output = draw.randint(1, workload.output)
            self._engine.add(call_id, prompt, output, to_extra_args(identity))

    def _call_ended(self, call_id: str) -> None:
        program = self._owner.pop(call_id, None)
        if program is None:
            return
        program.open.discard(call_id)
        if program.open:
            return
        draw, now = self._random, self._engine.now
        program.context = program.context + self._tokens(60)
        if program.left > 0 and draw.random() < self._workload.gap:
            kind = draw.choice(("tool", "tool", "human"))
            name = draw.choice(("search", "python"))
            if self._workload.tells:
                self._boundary(program, kind, name)
            wait = draw.expovariate(2.0 if kind == "tool" else 0.4)
            self._at(now + wait, lambda: self._return(program, kind, name))
        else:
            self._at(now + 0.01, lambda: self._next(program))

    def _return(self, program: _Program, kind: str, name: str) -> None:
        if self._workload.tells:
            self._boundary(program, "returned" if kind == "tool" else "answered", name)
        self._next(program)

    def _boundary(self, program: _Program, what: str, name: str) -> None:
        self._engine.scheduler.control("boundary", [(program.name, what, name)])


def path(name: str) -> Path:
    """Where the recording of this name is kept."""
    return FOLDER / f"{name}.jsonl.gz"


def record(name: str) -> list[Event]:
    """Run a workload, and return all that the scheduler was told and decided."""
    events: list[Event] = []
    _Run(WORKLOADS[name], lambda event: events.append(json.loads(json.dumps(event)))).run()
    return events


def read_golden(name: str) -> list[Event]:
    """The kept recording of this name."""
    with gzip.open(path(name), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def main() -> None:
    """Record all workloads anew."""
    FOLDER.mkdir(exist_ok=True)
    for name in WORKLOADS:
        events = record(name)
        text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        path(name).write_bytes(gzip.compress(text.encode(), mtime=0))
        steps = [event for event in events if event["event"] == "schedule"]
        summary = (
            f"{name}: {len(steps)} steps, "
            f"{sum(len(step['preempted']) for step in steps)} preemptions, "
            f"{path(name).stat().st_size} bytes\n"
        )
        sys.stdout.write(summary)


if __name__ == "__main__":
    main()
