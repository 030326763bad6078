"""Programs and calls that end, come back, or change settings in an unusual order."""

from __future__ import annotations

from typing import Any

import pytest

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.executors.vllm.logprobs import COMPUTE_FROM
from agentrt.lab.engine.headless import HeadlessEngine, make_request, make_scheduler
from agentrt.scheduler.admission.memory import WorkingSet
from agentrt.scheduler.config import SchedulerConfig
from tests.scheduler.admitting import held

pytestmark = pytest.mark.engine
DEFAULT = SchedulerConfig().to_dict()
COMMON = list(range(100, 260))


def engine(blocks: int = 200) -> tuple[HeadlessEngine, ProgramScheduler]:
    made = make_scheduler(ProgramScheduler, max_num_seqs=4, blocks=blocks, settings=DEFAULT)
    return HeadlessEngine(made), made


def of(program: str, **more: Any) -> dict[str, Any]:
    return {"agentrt": {"program_id": program, "program_type": "t", "report": True, **more}}


def accounts(scheduler: ProgramScheduler) -> tuple[int, int, int]:
    """Return the number of residents, the blocks that they claim, and those of idle residents."""
    found = scheduler.core.admission
    assert isinstance(found, WorkingSet)
    return len(found.residents), found.claimed, held(found)


def test_settings_change_while_programs_are_away() -> None:
    """Their records start over, and none is counted in a set that it never joined."""
    running, scheduler = engine()
    for name in "abcd":
        running.add(f"{name}1", [*COMMON, *[ord(name)] * 40], 3, of(name))
        running.run()
    assert accounts(scheduler)[0] == 4
    scheduler.control("configure", DEFAULT)
    assert accounts(scheduler) == (0, 0, 0)
    running.add("a2", [*COMMON, *[ord("a")] * 60], 3, of("a"))
    running.run()
    assert accounts(scheduler)[0] == 1
    running.now += 10_000.0
    scheduler.steps = 255  # the next looks for stale programs
    running.add("z", [1] * 20, 3, of("z"))
    running.run()
    assert [row.program_id for row in scheduler.table] == ["z"]
    scheduler.control("ends", ["z"])
    assert accounts(scheduler) == (0, 0, 0)
    assert not scheduler.core.owners.sharers("t")


def test_a_call_that_outlives_its_program_leaves_another_of_the_same_id_alone() -> None:
    running, scheduler = engine()
    running.add("p1", COMMON[:80], 30, of("P"))
    running.step()
    scheduler.control("ends", ["P"])
    running.add("p2", [7, *COMMON[:80]], 3, of("P"))
    running.step()
    row = scheduler.table.get("P")
    assert row is not None
    running.run()
    assert scheduler.table.get("P") is row
    scheduler.control("ends", ["P"])
    assert (len(scheduler.table), accounts(scheduler)) == (0, (0, 0, 0))
    assert not scheduler.core.policy._visits  # type: ignore[attr-defined]  # adaptive's


def test_the_blocks_of_a_cancelled_program_go_first() -> None:
    """The program ended during one of its calls: no later call will use what that had computed."""
    running, scheduler = engine()
    running.add("p1", COMMON[:80], 3, of("P"))
    running.run()
    running.add("p2", [*COMMON[:80], *[5] * 40], 30, of("P"))
    running.step()
    scheduler.control("ends", ["P"])
    running.abort("p2")
    assert scheduler.retention.protected == 0


def test_the_message_of_a_sessions_end_may_come_late() -> None:
    """The next program of the session finds what the program before it had computed."""
    running, scheduler = engine()
    running.add("a", COMMON, 3, of("turn-1", session="chat"))
    running.run()
    running.add("b", [*COMMON, 9, 9, 9], 3, of("turn-2", session="chat"))
    running.step()
    scheduler.control("ends", ["turn-1"])
    assert scheduler.core.calls["b"].known_tokens == len(COMMON)
    running.run()
    row = scheduler.table.get("turn-2")
    assert row is not None
    assert row.cached is not None
    assert row.cached.session == ("default", "chat")


@pytest.mark.parametrize(
    ("position", "prompt_logprobs", "returned"), [(None, None, 144), (40, None, 32), (None, 1, 0)]
)
def test_tokens_whose_log_probabilities_are_wanted_are_not_lost(
    position: int | None, prompt_logprobs: int | None, returned: int
) -> None:
    """They are in the cache, but the call does not read them from there."""
    running, _ = engine()
    running.add("first", COMMON, 1, of("P"))
    running.run()
    extra = of("P") if position is None else {**of("P"), COMPUTE_FROM: position}
    running.submit(
        make_request(
            "scored",
            COMMON,
            running.scheduler.block_size,
            max_tokens=1,
            extra_args=extra,
            prompt_logprobs=prompt_logprobs,
        )
    )
    report = running.run()[-1].reports["scored"]
    counts = [report[name] for name in ("cached_tokens", "returned_tokens", "lost_tokens")]
    assert counts == [returned, returned, 0]


@pytest.mark.parametrize("seconds", [1e308, 1e-300])
def test_made_up_numbers_of_a_client_stop_nothing(seconds: float) -> None:
    running, _ = engine()
    running.add("p", COMMON, 3, of("P", service_s=seconds, program_path_s=seconds))
    assert running.run()
