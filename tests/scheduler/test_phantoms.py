"""A program that is cancelled while it waits leaves every state as if it had never arrived."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from agentrt.scheduler import policy_names
from agentrt.scheduler.admission.memory import WorkingSet
from agentrt.scheduler.config import ADMISSIONS, RETENTIONS
from tests.scheduler.admitting import BLOCK, KIND, Admitting, held
from tests.scheduler.integrity import check_queues

PHANTOM = "phantom"
BLOCKS, SLOTS, CAP = 40, 3, 2
WAYS = ("its call first", "its program first")
CASES = [
    (*settings, WAYS[number % len(WAYS)])
    for number, settings in enumerate(product(policy_names(), RETENTIONS, ADMISSIONS))
]
"""Every policy with every retention and admission, and both ways with every two of them."""


def state(engine: Admitting) -> dict[str, Any]:
    """The members, the waiting calls in order, the claims, and the learned statistics."""
    core, admission, learned = engine.core, engine.core.admission, engine.learned
    live = core.owners
    found: dict[str, Any] = {
        "rows": {
            row.program_id: (row.resident, row.was_resident, row.claim, row.context_tokens)
            for row in engine.table
        },
        "order": [call.program.program_id for call in core.in_order()],
        "owners": (live.sharers("t"), len(live), sorted(map(str, live._sessions))),
        "output": learned.output(KIND),
        "learned": [
            (kind, age, known.left_s.n, known.left_s.value, known.well.value)
            for durations in (learned.gaps, learned.service)
            for kind, age, known in durations.entries()
        ],
    }
    if admission is not None:
        found["members"] = [row.program_id for row in admission.residents]
        found["outside"] = len(admission._not_admitted)
    if isinstance(admission, WorkingSet):
        found["claims"] = admission.claimed, held(admission), admission.admissions
        found["types"] = dict(admission._sharers)
        found["away"] = len(admission._held), len(admission._by_age)
    return found


class Life:
    """Programs in one engine, which get the same random events as in another engine."""

    def __init__(self, seed: int, **settings: str) -> None:
        self.engine = Admitting(blocks=BLOCKS, slots=SLOTS, admission_cap=CAP, **settings)
        # A context is worth keeping for long: who is away gives way to nobody meanwhile.
        self.engine.learned.costs.step(0.0, 1, 1)
        self.engine.learned.costs.step(1024.0, 1025, 1)
        self.rng = random.Random(seed)
        self.began = 0
        self.steps: list[list[str]] = []

    def begin(self) -> None:
        """A program without a call makes a call or ends; calls that may begin do so."""
        engine, rng = self.engine, self.rng
        if rng.random() < 0.7:
            self.began += 1
            engine.arrive(f"p{self.began}", rng.randint(1, 12) * BLOCK)
        for row in [row for row in engine.table if not row.queued]:
            if rng.random() < 0.3:
                engine.end_program(row.program_id)
            elif rng.random() < 0.4:
                engine.arrive(row.program_id, rng.randint(1, 4) * BLOCK)
        began = engine.step()
        self.steps.append([name.partition("/")[0] for name in began])

    def go_on(self) -> None:
        """Each running call continues, or ends."""
        for call in list(self.engine.running):
            if self.rng.random() < 0.4:
                self.engine.end(call.call_id, self.rng.randint(1, 40))

    def haunt(self, way: str, session: str | None = None) -> bool:
        """A program arrives, has to wait, and is cancelled: first its call, first the program, or
        both together. Return whether it arrived: it does not if it might be admitted.
        """
        engine = self.engine
        most = CAP if engine.config.admission == "cap" else SLOTS
        if len(engine.running) < (1 if engine.config.admission == "memory" else most):
            return False  # it might come in
        row = engine.table.start_program(PHANTOM, "t", engine.now, session=session)
        call_id = engine.arrive(PHANTOM, BLOCKS * BLOCK)
        engine.let_in(len(engine.running))
        assert engine.core.calls[call_id].queued
        assert engine.core.admission is None or not row.resident
        if way == "its program first":
            engine.end_program(PHANTOM)
            engine.let_in(len(engine.running))
        engine.end(call_id, 0)
        if way == "its call first":
            engine.let_in(len(engine.running))
            engine.end_program(PHANTOM)
        check_queues(engine.core)
        return True


@pytest.mark.parametrize(("policy", "retention", "admission", "way"), CASES)
def test_a_program_cancelled_while_waiting_leaves_no_trace(
    policy: str, retention: str, admission: str, way: str
) -> None:
    settings = {"policy": policy, "retention": retention, "admission": admission}
    plain, haunted = Life(0, **settings), Life(0, **settings)
    haunts = 0
    for _ in range(40):
        plain.begin()
        haunted.begin()
        assert plain.steps == haunted.steps
        haunts += haunted.haunt(way)
        plain.engine.let_in(len(plain.engine.running))
        assert state(plain.engine) == state(haunted.engine)
        plain.go_on()
        haunted.go_on()
    assert haunts > 10
