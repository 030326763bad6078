"""What one engine learns of programs that others had, by what it is told."""

from __future__ import annotations

from typing import Any

import pytest

from agentrt.executors.vllm.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.scheduler import ProgramTotals

pytestmark = pytest.mark.engine

SIZE = 12
"""Steps, of a second each, that programs come to."""


class Engine(HeadlessEngine):
    """Programs of one call here, whatever else they did elsewhere."""

    @property
    def ours(self) -> ProgramScheduler:
        assert isinstance(self.scheduler, ProgramScheduler)
        return self.scheduler

    def serve(self, name: str, steps: int, **more: Any) -> None:
        nested = {"program_id": name, "program_type": "t", "call_id": name, **more}
        self.add(f"{name}/{self.now}", [11, 12, 13], steps, {"agentrt": nested})
        self.run()

    def ages(self) -> dict[tuple[str, str, int], tuple[float, float]]:
        """What is known of each age of each tenant's types: count, and mean still to come."""
        cells = self.ours.control("learned")["cells"]
        return {(ten, kind, age): (n, mean) for ten, kind, age, what, n, mean in cells if not what}


def engine(policy: str = "adaptive", **settings: Any) -> Engine:
    scheduler = make_scheduler(
        ProgramScheduler, max_num_seqs=2, blocks=500, settings={"policy": policy, **settings}
    )
    return Engine(scheduler)


def came_to(name: str, service_s: float = SIZE, **more: Any) -> ProgramTotals:
    return ProgramTotals(name, "t", service_s=service_s, path_s=service_s, **more)


def test_who_had_none_of_a_program_learns_its_size_as_who_had_it_all() -> None:
    """Its turns and its nodes, too."""
    whole, apart = engine(), engine()
    for n in range(10):
        whole.serve(f"p{n}", SIZE, node="plan")
        visits = whole.ours.control("end", came_to(f"p{n}"))
        apart.ours.control("learn", [[*came_to(f"p{n}")[:-1], [list(one) for one in visits]]])
    learned = whole.ours.control("learned")
    assert apart.ours.control("learned") == learned
    assert whole.ages()["default", "t", 0] == (10.0, SIZE)
    assert {cell[3] for cell in learned["cells"]} == {"", "turn 0", "node plan"}


def test_who_had_its_beginning_learns_its_whole_size() -> None:
    """Its own row says 3 seconds; and what it saw at the program's age then is about the rest."""
    e = engine()
    e.serve("p", 3)
    assert e.ours.control("end", came_to("p")) is not None
    assert e.ages()["default", "t", 0] == (1.0, SIZE)
    assert "p" not in e.ours.table


def test_who_had_its_end_learns_it_no_larger_than_it_was() -> None:
    e = engine()
    e.serve("p", 3, service_s=SIZE - 3.0)
    e.ours.control("end", came_to("p"))
    assert e.ages()["default", "t", 0] == (1.0, SIZE)


def test_it_is_learned_for_the_right_tenant_session_and_hint() -> None:
    e = engine()
    totals = came_to("p", tenant="acme", session="monday", size_hint=40.0, finished_calls=3)
    e.ours.control("learn", [totals])
    learned = e.ours.control("learned")
    assert {(cell[0], cell[1]) for cell in learned["cells"]} == {("acme", "t")}
    assert learned["sessions"] == [["acme", "monday", SIZE]]
    assert [(row[0], row[1]) for row in learned["hints"]] == [("acme", "t")]


def test_nothing_is_learned_of_a_program_without_service_nor_by_a_policy_that_does_not() -> None:
    e = engine()
    e.ours.control("learn", [came_to("p", 0.0)])
    e.ours.control("end", came_to("q", 0.0))
    e.ours.control("end", "unknown")
    assert e.ages() == {}
    atlas = engine("atlas")
    atlas.ours.control("learn", [came_to("p")])
    assert atlas.ours.control("learned") is None


def test_a_program_that_was_dropped_for_its_silence_is_learned_of_at_its_end() -> None:
    e = engine(stale_after_s=10.0)
    e.serve("p", 2)
    e.now += 100.0
    e.serve("busy", 600)
    assert "p" not in e.ours.table
    assert e.ages() == {}
    assert e.ours.control("end", came_to("p")) is None, "it was not known"
    assert e.ages()["default", "t", 0] == (1.0, SIZE)


def test_one_that_is_taught_knows_what_its_teacher_does() -> None:
    """Hints, ages and gaps included, in place of what it had learned."""
    teacher, pupil = engine(retention="cost"), engine(retention="cost")
    for n in range(20):
        teacher.serve(f"p{n}", 3 + n, size_hint=1.0 + n, session="s", node="plan")
        teacher.ours.control("boundary", [(f"p{n}", "tool", "build")])
        teacher.now += 50.0
        teacher.ours.control("boundary", [(f"p{n}", "returned", "build")])
        teacher.ours.control("end", f"p{n}")
    pupil.ours.control("learn", [came_to("x", 900.0, tenant="acme", size_hint=4.0)])
    assert len(pupil.ours.control("learned")["ages"]) == 2
    pupil.serve("live", 2, size_hint=2.0)
    learned = teacher.ours.control("learned")
    assert learned["gaps"]
    assert learned["ages"]
    pupil.ours.control("learn", [came_to("y"), learned])
    assert pupil.ours.control("learned") == learned
    pupil.serve("live", 2, size_hint=2.0)
    assert pupil.ours.control("end", came_to("live", 4.0, size_hint=2.0)) is not None
