"""What our scheduler, inside vLLM's own, tells people about its calls, with real blocks.

Times are virtual: one step is one second.
"""

from __future__ import annotations

import pytest

from agentrt.lab.engine.headless import HeadlessEngine
from agentrt.serving.observability.engines import EnginesView
from tests.executors.vllm.engine_core.test_scheduler import engine, of, ours, prompt

pytestmark = pytest.mark.engine


def view_of(e: HeadlessEngine) -> EnginesView:
    return EnginesView.of(ours(e).control("snapshot"), ours(e).clock())


def steps(e: HeadlessEngine, count: int) -> None:
    for _ in range(count):
        e.step()


def test_a_preempted_call_names_the_program_that_it_gave_way_to_until_it_runs() -> None:
    e = engine(max_num_seqs=1)
    e.add("long", prompt(20), 100, of("a", "a/0"))
    e.step()
    began = view_of(e).calls["a/0"].since
    steps(e, 9)
    assert view_of(e).calls["a/0"].since == began
    e.add("short", prompt(20, 2), 3, of("b", "b/0"))
    e.step()
    calls = view_of(e).calls
    assert (calls["a/0"].running, calls["a/0"].why) == (False, "preempted")
    assert (calls["a/0"].preempted_by, calls["a/0"].preemptions) == ("b", 1)
    assert calls["a/0"].since == calls["b/0"].since
    assert calls["a/0"].served_s == 10.0
    steps(e, 3)
    again = view_of(e).calls["a/0"]
    assert (again.running, again.why, again.preempted_by) == (True, "", "")
    assert again.since is not None
    assert began is not None
    assert again.since > began + 10


def test_a_call_without_room_for_its_kv_says_so_and_one_without_a_seat_does_not() -> None:
    e = engine(max_num_seqs=2, blocks=9)
    e.add("big", prompt(90), 20, of("a", "a/0"))
    e.step()
    e.add("second", prompt(90, 2), 20, of("b", "b/0"))
    e.step()
    view = view_of(e)
    assert view.calls["b/0"].why == "no KV space"
    [replica] = view.replicas
    assert (replica.running, replica.waiting, replica.blocks) == (1, 1, 9)
    assert 0 < replica.free_blocks < 6
    e = engine(max_num_seqs=1)
    e.add("one", prompt(20), 20, of("a", "a/0"))
    e.step()
    e.add("two", prompt(20, 2), 20, of("b", "b/0", path_s=9.0, program_path_s=9.0, service_s=9.0))
    e.step()
    assert view_of(e).calls["b/0"].why == "queued at Q2 behind Q1"


def test_computed_tokens_are_those_of_prompts_and_outputs() -> None:
    e = engine()
    e.add("one", prompt(40), 5, of("a"))
    e.run()
    # The last token that is put out is never computed.
    assert ours(e).control("snapshot")["computed_tokens"] == 40 + 5 - 1


@pytest.mark.parametrize("policy", ["fcfs", "program-fcfs"])
def test_without_levels_no_level_is_named(policy: str) -> None:
    e = engine(policy, max_num_seqs=1)
    e.add("one", prompt(20), 20, of("a", "a/0"))
    e.step()
    e.add("two", prompt(20, 2), 20, of("b", "b/0"))
    e.step()
    calls = view_of(e).calls
    assert calls["b/0"].why == "queued, the batch is full"
    assert [call.level for call in calls.values()] == [None, None]
