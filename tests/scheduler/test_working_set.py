"""The working set under thousands of programs, against sums that are computed again each time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler.admission.memory import OLDEST_EVERY
from agentrt.scheduler.state import CallState
from tests.scheduler.admitting import BLOCK, Admitting, held
from tests.scheduler.integrity import check_queues

BLOCKS, SLOTS = 400, 16


@dataclass
class Told:
    """The facts of a program from which its claim is computed, by the wording of the rule."""

    kind: str
    shared: int
    context: int = 0
    own: dict[str, int] = field(default_factory=dict)

    def blocks(self, most: int) -> int:
        tokens = max(self.context + sum(self.own.values()) - self.shared, 0)
        return min(math.ceil(tokens / BLOCK) + len(self.own), most)


class Crowd(Admitting):
    """Programs of a few calls with tools between them; many of the programs are cancelled."""

    def __init__(self, seed: int, policy: str, target: float | None, programs: int) -> None:
        super().__init__(
            "memory", blocks=BLOCKS, slots=SLOTS, policy=policy, ttft_target=target, lane=0.1
        )
        self.rng = Random(seed)
        self.left = {f"p{n}": self.rng.randint(1, 4) for n in range(programs)}
        self.doomed = set(self.rng.sample(sorted(self.left), programs // 4))
        self.stuck = set(self.rng.sample(sorted(self.left), programs // 10))
        self.coming = list(self.left)
        self.tools: list[tuple[float, str]] = []
        self.ends: dict[str, float] = {}
        self.told: dict[str, Told] = {}
        self.overtaken: dict[str, int] = {}
        self.longest_s = 0.0
        self.outgrown = False

    # -- the programs --------------------------------------------------------------------

    def ask(self, program: str) -> None:
        kind = f"t{int(program[1:]) % 3}"
        learned, key = self.learned, ("default", kind)
        if program not in self.told:
            self.told[program] = Told(kind, int(learned.of_type(key).shared.value))
        tokens = self.rng.choice((20, 200, 900))
        adds, told = tokens + learned.output(key) // 2, self.told[program]
        told.context = max(told.context, self.contexts.get(program, 0))
        call_id = self.arrive(program, tokens, kind)
        told.own[call_id] = adds
        if self.core.calls[call_id].state is CallState.NOT_ADMITTED:
            outside = {self.core.calls[one].program for one in self.outside()}
            self.overtaken.setdefault(call_id, OLDEST_EVERY * (1 + len(outside)))

    def began(self, call_id: str) -> None:
        program = call_id.partition("/")[0]
        call, told = self.core.calls[call_id], self.told[program]
        cached = self.contexts.get(program, 0)
        output = self.learned.output(("default", told.kind)) // 2
        adds = max(call.prompt_tokens - cached, 0) + output
        if adds < told.own[call_id]:
            told.context, told.own[call_id] = max(told.context, cached), adds
        self.ends[call_id] = self.now + self.rng.uniform(0.2, 6.0)

    def finish(self, call_id: str) -> None:
        program = call_id.partition("/")[0]
        output = self.rng.choice((5, 60, 300))
        del self.ends[call_id]
        told, prompt = self.told[program], self.core.calls[call_id].prompt_tokens
        self.end(call_id, output)
        del told.own[call_id]
        told.context = max(told.context, prompt + output)
        self.left[program] -= 1
        if not self.left[program]:
            self.give_up(program)
        elif program in self.stuck or self.rng.random() < 0.5:
            what = self.rng.choice(("tool", "tool", "human"))
            self.begins(program, what)
            if program not in self.stuck:
                self.tools.append((self.now + self.rng.uniform(0.0, 20.0), program))
        else:
            self.ask(program)

    def give_up(self, program: str) -> None:
        """End or cancel a program in any state."""
        for call in [c for c in self.core.calls.values() if c.program.program_id == program]:
            self.ends.pop(call.call_id, None)
            self.overtaken.pop(call.call_id, None)
            self.end(call.call_id, 0)
        if self.table.get(program) is not None:
            self.end_program(program)
        self.told.pop(program, None)
        self.left[program] = 0

    def restart(self) -> None:
        """The engine dies: its state is lost, and its calls arrive again."""
        again = [call.program.program_id for call in self.core.calls.values()]
        self.__dict__.update(
            Admitting("memory", blocks=BLOCKS, slots=SLOTS, **self._settings()).__dict__
            | {"now": self.now, "_named": self._named}
        )
        self.ends, self.told, self.overtaken = {}, {}, {}
        for program in again:
            self.ask(program)

    def _settings(self) -> dict[str, object]:
        config = self.config
        return {"policy": config.policy, "ttft_target": config.ttft_target, "lane": config.lane}

    # -- a second of it ----------------------------------------------------------------

    def second(self) -> None:
        for program in [self.coming.pop() for _ in range(min(len(self.coming), 6))]:
            self.ask(program)
        for at, program in [one for one in self.tools if one[0] <= self.now]:
            self.tools.remove((at, program))
            if self.left[program]:
                self.answered(program)
                self.ask(program)
        if self.doomed and self.rng.random() < 0.9:
            program = min(self.doomed)
            if program not in self.coming:
                self.doomed.discard(program)
                self.give_up(program)
        before = self.working.admissions
        for call_id in self.step():
            self.began(call_id)
        self.check(self.working.admissions - before, deep=self.now % 8 < 1)
        for call_id in [one for one, at in self.ends.items() if at <= self.now]:
            self.finish(call_id)

    def check(self, came_in: int, *, deep: bool) -> None:
        """No program waits longer than its bound, and the claims are what they should be."""
        for call_id in list(self.overtaken):
            call = self.core.calls.get(call_id)
            if call is None or call.state is not CallState.NOT_ADMITTED:
                del self.overtaken[call_id]
                continue
            self.overtaken[call_id] -= came_in
            assert self.overtaken[call_id] >= -came_in, f"{call_id} was passed by too many"
            waited = self.now - (call.since or 0.0)
            self.longest_s = max(self.longest_s, waited)
        if not deep:
            return
        check_queues(self.core)
        members = {name for name, told in self.told.items() if name in self.inside()}
        shared = {self.told[name].kind: self.told[name].shared for name in members}
        claims = sum(self.told[name].blocks(BLOCKS) for name in members)
        idle = sum(self.told[name].blocks(BLOCKS) for name in members if not self.told[name].own)
        assert len(self.working.residents) == len(members)
        assert held(self.working) == idle
        assert (
            claims
            <= self.working.claimed
            <= claims
            + sum(
                math.ceil(max(t.shared for t in self.told.values() if t.kind == kind) / BLOCK)
                for kind in shared
            )
        )


def through(seed: int, policy: str, target: float | None, programs: int) -> Crowd:
    """Run a crowd to its end; the engine dies twice meanwhile."""
    crowd = Crowd(seed, policy, target, programs)
    for second in range(20_000):
        crowd.second()
        if second in (programs // 40, programs // 10):
            crowd.restart()
        if not crowd.coming and not crowd.core.calls and not crowd.tools:
            break
    for program, left in crowd.left.items():
        if left:
            assert program in crowd.stuck, f"{program} never went on"
            crowd.give_up(program)
    assert (
        len(crowd.working.residents)
        == crowd.working.claimed
        == held(crowd.working)
        == len(crowd.admission._not_admitted)
        == 0
    )
    assert len(crowd.core.queue) == 0
    if target is not None:
        assert crowd.longest_s <= target + 1.0
    return crowd


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["fcfs", "adaptive", "atlas"]),
    st.sampled_from([None, 20.0]),
)
def test_no_state_is_left_and_no_program_waits_beyond_the_bound(
    seed: int, policy: str, target: float | None
) -> None:
    through(seed, policy, target, 96)


def test_hundreds_of_programs_leave_no_state() -> None:
    crowd = through(18, "adaptive", None, 512)
    assert crowd.longest_s > 20.0, "many did wait"
