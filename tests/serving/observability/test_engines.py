"""Why calls wait, and when they ran, as snapshots of engines tell it."""

from __future__ import annotations

from typing import Any

import pytest

from agentrt.graph import Node, NodeKind, NodeState
from agentrt.request import CallReport
from agentrt.runtime.run import Run, RunRegistry, RunState
from agentrt.serving.observability.engines import EnginesView
from agentrt.serving.observability.metrics import Labels, gauges
from agentrt.serving.observability.program_log import ProgramLog, Renderer, Track
from agentrt.tracking.scope import Scope


def a_call(call_id: str, level: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "call_id": call_id,
        "program_id": call_id.split("/", maxsplit=1)[0],
        "level": level,
        **more,
    }


def one_engine(
    running: list[dict[str, Any]], waiting: list[dict[str, Any]], **more: Any
) -> EnginesView:
    return EnginesView.of({"running": running, "waiting": waiting, "steps": 9, **more}, at=1.0)


@pytest.mark.parametrize(
    ("waiting", "more", "why"),
    [
        (a_call("b/0", 1), {}, "queued at Q2 behind Q3"),
        (a_call("b/0", 1, not_admitted=True), {}, "its program is not admitted"),
        (a_call("b/0", 1, loading=True), {}, "loading from host memory"),
        (a_call("b/0", 1), {"named_levels": False}, "queued, the batch is full"),
        (a_call("b/0", 1, promoted=True), {}, "queued at Q2 behind Q3"),
        (a_call("b/0", 1, promoted=True), {"named_levels": False}, "queued at the lane"),
        (a_call("b/0"), {"free_slots": 1, "needs_blocks": 9, "free_blocks": 3}, "no KV space"),
        (
            a_call("b/0", preemptions=1),
            {"free_slots": 1, "needs_blocks": 9, "free_blocks": 3},
            "preempted, no KV space",
        ),
        (a_call("b/0"), {"free_slots": 1, "needs_blocks": 2, "free_blocks": 3}, "next in line"),
    ],
)
def test_a_waiting_call_says_why(waiting: dict[str, Any], more: dict[str, Any], why: str) -> None:
    view = one_engine([a_call("a/0", 2)], [waiting], **more)
    assert (view.calls["b/0"].why, view.calls["b/0"].running) == (why, False)
    assert view.calls["a/0"].running


def test_a_call_waits_behind_the_level_of_the_one_before_it() -> None:
    view = one_engine([a_call("a/0", 2)], [a_call("b/0", 0), a_call("c/0", 1)])
    assert view.calls["c/0"].why == "queued at Q2 behind Q1"


def test_calls_of_replicas_are_distinguished() -> None:
    view = EnginesView.of(
        {
            "running": [a_call("a/0", replica="replica-0")],
            "waiting": [a_call("b/0", replica="replica-1", gave_way_to="a")],
            "replicas": [
                {"name": "replica-0", "state": "ready", "blocks": 8, "free_blocks": 3},
                {"name": "replica-1", "state": "down", "deaths": 1},
            ],
        },
        at=1.0,
    )
    [first, second] = view.replicas
    assert (first.running, first.waiting, first.blocks, first.free_blocks) == (1, 0, 8, 3)
    assert (second.running, second.waiting, second.state, second.deaths) == (0, 1, "down", 1)
    assert view.calls["b/0"].preempted_by == "a"
    assert view.ready()


class Stage:
    """A registry with one program of ann's and one of bob's, each with a call."""

    def __init__(self) -> None:
        self.registry = RunRegistry()
        self.log = ProgramLog(self.registry)
        self.log.open()
        self.ann, self.anns = self._program("ann")
        self.bob, self.bobs = self._program("bob")

    def _program(self, tenant: str) -> tuple[Run, Node]:
        run = self.registry.open("agent", tenant=tenant)
        return run, self.registry.begin_call(run, Scope(run, "agent"), "llm")

    def status(self, run: Run, view: EnginesView, tenant: str | None = None) -> tuple[str, str]:
        row = Renderer(self.log, view, tenant).program(run)
        return row["state"], row["wait"]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_program_does_what_its_calls_do(stage: Stage) -> None:
    view = one_engine([a_call("agent-1/0", 1, served_s=2.5)], [a_call("agent-2/0", 0)])
    assert stage.status(stage.ann, view) == ("running", "")
    assert stage.status(stage.bob, view) == ("waiting", "queued at Q1 behind Q2")
    row = Renderer(stage.log, view, None).program(stage.ann)
    assert (row["attained_s"], row["service_s"], row["level"]) == (2.5, 0.0, 1)


def test_long_waits_are_sent_with_their_start(stage: Stage) -> None:
    scope = Scope(stage.ann, "agent")
    for _ in range(2):
        stage.registry.begin_call(stage.ann, scope, "llm")
    view = one_engine(
        [a_call("agent-1/0", since=9.0, waited_s=1.0)],
        [a_call("agent-1/1", since=4.0, waited_s=0.5), a_call("agent-1/2", since=6.0)],
    )
    row = Renderer(stage.log, view, None).program(stage.ann)
    assert (row["waited_s"], row["waiting_calls"], row["waiting_since"]) == (1.5, 2, 5.0)
    assert row["waiting_s"] == 0.0


def test_a_call_that_no_engine_has_is_on_its_way(stage: Stage) -> None:
    assert stage.status(stage.ann, one_engine([], [])) == ("waiting", "on its way to an engine")
    down = EnginesView.of({"replicas": [{"name": "replica-0", "state": "down"}]}, at=0.0)
    assert stage.status(stage.ann, down) == ("waiting", "no engine is ready")


def test_a_call_that_waits_for_its_tenants_share_says_so(stage: Stage) -> None:
    shares = {"ann": {"waiting": 1, "inside": 2}, "bob": {"waiting": 0, "inside": 1}}
    view = one_engine([], [], tenants=shares)
    assert stage.status(stage.ann, view) == ("waiting", "its tenant's share is used")
    assert stage.status(stage.bob, view) == ("waiting", "on its way to an engine")


def test_a_preempted_call_names_the_preempting_program_of_the_same_tenant_only(
    stage: Stage,
) -> None:
    view = one_engine([a_call("agent-1/0")], [a_call("agent-2/0", gave_way_to="agent-1")])
    assert stage.status(stage.bob, view) == ("waiting", "preempted by agent-1")
    assert stage.status(stage.bob, view, "bob") == (
        "waiting",
        "preempted by another tenant's program",
    )


def test_metrics_have_the_reasons_without_names_and_levels(stage: Stage) -> None:
    def reasons(view: EnginesView) -> dict[tuple[str, str], float]:
        found = gauges(stage.registry.runs.values(), view, 0.0, lambda _: True, Labels())
        [waiting] = [one for one in found if one.name == "agentrt_waiting_programs"]
        return {(s.labels["tenant"], s.labels["reason"]): s.value for s in waiting.samples}

    running = [a_call("agent-1/0")]
    gave_way = a_call("agent-2/0", gave_way_to="agent-1")
    assert reasons(one_engine(running, [a_call("agent-2/0", 1)])) == {("bob", "queued"): 1}
    assert reasons(one_engine(running, [gave_way])) == {("bob", "preempted by another program"): 1}
    on_its_way = "on its way to an engine"
    assert reasons(one_engine([], [])) == {("ann", on_its_way): 1, ("bob", on_its_way): 1}


def test_waits_for_tools_and_humans_have_their_names(stage: Stage) -> None:
    run = stage.registry.open("agent")
    scope = Scope(run, "agent")
    assert stage.status(run, EnginesView()) == ("between calls", "")
    question = stage.registry.begin_interrupt(run, scope, NodeKind.HUMAN, "May I?")
    assert stage.status(run, EnginesView()) == ("waiting for a human", "May I?")
    stage.registry.begin_interrupt(run, scope, NodeKind.TOOL, "search " + "x" * 500)
    state, wait = stage.status(run, EnginesView())
    assert (state, wait[:8], len(wait)) == ("in tool", "search x", 200)
    stage.registry.end_interrupt(run, scope, question)
    stage.registry.close(run, RunState.FAILED, ValueError("no"))
    row = Renderer(stage.log, EnginesView(), None).program(run)
    assert (row["state"], row["error"]) == ("failed", "ValueError: no")


def test_queue_levels_count_a_tenants_own_calls(stage: Stage) -> None:
    view = one_engine([a_call("agent-1/0", 1)], [a_call("agent-2/0", 0), a_call("agent-9/0", 0)])
    every = Renderer(stage.log, view, None).engines()["levels"]
    assert [(one["level"], one["running"], one["waiting"]) for one in every] == [
        (0, 0, 2),
        (1, 1, 0),
    ]
    anns = Renderer(stage.log, view, "ann").engines()["levels"]
    assert [(one["level"], one["running"], one["waiting"]) for one in anns] == [(1, 1, 0)]


# -- spans -------------------------------------------------------------------------------


def seen(track: Track, running: bool, since: float, at: float, **more: Any) -> None:
    entry = a_call("agent-1/0", since=since, **more)
    view = EnginesView.of({"running" if running else "waiting": [entry]}, at)
    track.update(view.calls["agent-1/0"], at)


def test_spans_have_the_times_of_changes_and_not_of_looks() -> None:
    track = Track()
    seen(track, True, since=1.0, at=1.4)
    seen(track, True, since=1.0, at=1.9)
    seen(track, False, since=2.0, at=2.4, preemptions=1)
    seen(track, True, since=3.0, at=3.1, preemptions=1)
    assert track.spans == [[1.0, 2.0], [3.0, None]]


def test_a_call_preempted_before_anyone_looked_has_a_span_of_its_service() -> None:
    track = Track()
    seen(track, False, since=5.0, at=5.2, preemptions=1, served_s=1.5)
    assert track.spans == [[3.5, 5.0]]


def test_a_call_that_came_and_went_between_two_looks_has_the_span_of_its_report() -> None:
    track = Track()
    run = RunRegistry().open("agent")
    node = Node(0, NodeKind.CALL, "llm", "agent", (), created_at=1.0, state=NodeState.DONE)
    node.ended_at, node.report = 4.0, CallReport(service_s=2.0, steps=3, replica="replica-1")
    track.end(run, node)
    assert (track.spans, track.replica) == ([[2.0, 4.0]], "replica-1")


def test_calls_that_the_registry_does_not_know_leave_nothing_behind(stage: Stage) -> None:
    view = one_engine([a_call("agent-1/0", since=0.5), a_call("stranger/0")], [])
    stage.log.update_engines(view)
    assert stage.log.tracks.get("stranger/0") is None
    stage.registry.end_call(stage.ann, Scope(stage.ann, "agent"), stage.anns, CallReport())
    stage.log.update_engines(view)
    assert list(stage.log.tracks._open) == []
    track = stage.log.tracks.get("agent-1/0")
    assert track is not None
    assert track.spans == [[0.5, stage.anns.ended_at]]
