"""The stream of events: a snapshot and its changes are what the registry has."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Runtime
from agentrt.runtime.run import RunState
from agentrt.serving.observability.engines import EnginesView, SnapshotPoller
from agentrt.serving.observability.program_log import JSON, Renderer
from agentrt.serving.observability.readers import ChangeReaders, ReaderTooSlowError
from agentrt.serving.observability.routes import EventStream
from agentrt.serving.server import Server
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.observability.story import TENANTS, Deed, Story, deeds


class Mirror:
    """The state of a client that replaces objects as events say."""

    def __init__(self) -> None:
        self.programs: dict[str, JSON] = {}
        self.nodes: dict[tuple[str, int], JSON] = {}
        self.engines: JSON = {}

    def hear(self, body: JSON | None) -> None:
        if body is None:
            return
        body = json.loads(json.dumps(body))
        self.programs.update({program["id"]: program for program in body["programs"]})
        self.nodes.update({(node["program"], node["id"]): node for node in body["nodes"]})
        self.engines = body["engines"] or self.engines


def feed_of(story: Story, tenant: str | None = None, program: str | None = None) -> EventStream:
    executor = ScriptedExecutor()
    server = Server(Runtime(executor, registry=story.registry), ("scripted",))
    return EventStream(
        server, story.log, SnapshotPoller(executor, story.registry.clock), tenant, program
    )


def a_view(story: Story, rng: random.Random) -> EnginesView:
    """Some of the open calls, running or waiting."""
    calls = [call for run in story.registry.runs.values() for call in run.row.calls]
    chosen = rng.sample(calls, rng.randint(0, len(calls)))
    entries = [{"call_id": c, "program_id": c.split("/")[0], "level": 0} for c in chosen]
    cut = rng.randint(0, len(entries))
    snapshot = {"running": entries[:cut], "waiting": entries[cut:], "steps": rng.randint(0, 9)}
    return EnginesView.of(snapshot, story.registry.clock())


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@settings(max_examples=40, deadline=None)
@given(st.lists(deeds, min_size=1, max_size=6), st.sampled_from((None, *TENANTS)), st.integers())
def test_a_snapshot_and_its_changes_are_what_the_registry_has(
    chapters: list[list[Deed]], tenant: str | None, seed: int
) -> None:
    async def read() -> None:
        story, mirror, rng = Story(), Mirror(), random.Random(seed)
        log = story.log
        story.tell(chapters[0])
        view, watch = a_view(story, rng), feed_of(story, tenant)
        with log.readers.opened(watch.wants) as reader:
            mirror.hear(watch.snapshot(view))
            for chapter in chapters[1:]:
                story.tell(chapter)
                if rng.random() < 0.5:
                    view = a_view(story, rng)
                    log.update_engines(view)
                mirror.hear(watch.change(reader, view))
        # What nothing has been told of since the last view is as that view had it.
        render = Renderer(log, view, tenant)
        wanted = [run for run in story.runs if tenant in (None, run.row.tenant)]
        assert mirror.programs.keys() == {run.id for run in wanted}
        for run in wanted:
            assert mirror.programs[run.id] == as_json(render.program(run))
            for node in run.dag.nodes():
                if not node.state.ended:
                    assert mirror.nodes[run.id, node.id] == as_json(render.node(run, node))
        live = {run.id for run in wanted if run.state is RunState.RUNNING}
        still_open = {
            key for key, node in mirror.nodes.items() if node["ended_at"] is None and key[0] in live
        }
        assert still_open == {
            (run.id, node.id) for run in wanted for node in run.dag.nodes() if not node.state.ended
        }
        assert mirror.engines == as_json(render.engines())

    asyncio.run(read())


@settings(max_examples=30, deadline=None)
@given(st.lists(deeds, min_size=2, max_size=6), st.integers(0, 99))
def test_one_programs_stream_has_its_whole_graph(chapters: list[list[Deed]], pick: int) -> None:
    async def read() -> None:
        story, mirror = Story(), Mirror()
        log = story.log
        story.tell([("open", pick), *chapters[0]])
        run = story.runs[pick % len(story.runs)]
        watch, view = feed_of(story, None, run.id), EnginesView()
        with log.readers.opened(watch.wants) as reader:
            mirror.hear(watch.snapshot(view))
            for chapter in chapters[1:]:
                story.tell(chapter)
                mirror.hear(watch.change(reader, view))
        render = Renderer(log, view, None)
        assert mirror.programs == {run.id: as_json(render.program(run))}
        assert [mirror.nodes[run.id, node.id] for node in run.dag.nodes()] == [
            as_json(render.node(run, node)) for node in run.dag.nodes()
        ]
        assert len(mirror.nodes) == len(run.dag)

    asyncio.run(read())


async def test_a_stream_of_one_program_shows_it_again_after_it_resumed() -> None:
    story, mirror = Story(), Mirror()
    story.tell([("open", 0)])
    [parked] = story.runs
    watch, view = feed_of(story, None, parked.id), EnginesView()
    with story.log.readers.opened(watch.wants) as reader:
        mirror.hear(watch.snapshot(view))
        story.tell([("close", 2)])
        mirror.hear(watch.change(reader, view))
        story.registry.open(parked.type, named=parked.id)
        story.tell([("call", 0)])
        mirror.hear(watch.change(reader, view))
    assert mirror.programs[parked.id]["ended_at"] is None
    assert [node["kind"] for node in mirror.nodes.values()] == ["call"]


async def test_no_event_is_sent_without_a_change() -> None:
    story = Story()
    story.tell([("open", 0), ("call", 0)])
    watch, view = feed_of(story), EnginesView(at=1.0)
    with story.log.readers.opened(watch.wants) as reader:
        watch.snapshot(view)
        assert watch.change(reader, view) is None
        assert watch.change(reader, EnginesView(at=2.0)) is None
        story.tell([("end", 1)])
        change = watch.change(reader, view)
        assert change is not None
        assert [node["state"] for node in change["nodes"]] == ["done"]


async def test_a_slow_reader_is_disconnected_and_delays_no_other() -> None:
    story = Story()
    story.log.readers = ChangeReaders(buffer=4)
    with story.log.readers.opened(lambda run: True) as slow:
        story.tell([("open", 0)] * 5)
        with pytest.raises(ReaderTooSlowError, match="buffer"):
            slow.take()
        assert slow._changes == {}


async def test_a_disconnected_reader_gets_the_reason_and_may_reconnect() -> None:
    story = Story()
    story.log.readers = ChangeReaders(buffer=2)
    watch = feed_of(story)
    with story.log.readers.opened(watch.wants) as reader:
        events = watch.events(reader)
        assert (await anext(events)).event == "snapshot"
        story.tell([("open", 0)] * 5)
        cut = await anext(events)
        assert (cut.event, "buffer" in str(cut.data)) == ("cut", True)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert len(story.log.readers) == 0
    with story.log.readers.opened(watch.wants) as reader:
        assert len(json.loads(str((await anext(watch.events(reader))).data))["programs"]) == 5


async def test_a_draining_server_tells_the_last_end_before_it_ends_a_stream() -> None:
    story = Story()
    story.tell([("open", 0)])
    watch = feed_of(story)
    with story.log.readers.opened(watch.wants) as reader:
        events = watch.events(reader)
        assert (await anext(events)).event == "snapshot"
        watch.server.draining = True
        story.tell([("close", 0)])
        rest = [json.loads(str(event.data)) async for event in events]
    assert [[program["state"] for program in body["programs"]] for body in rest] == [["done"]]


async def test_repeated_changes_take_no_more_memory() -> None:
    story = Story()
    story.log.readers = ChangeReaders(buffer=4)
    with story.log.readers.opened(lambda run: True) as reader:
        story.tell([("open", 0), ("call", 0), ("end", 1), ("close", 0)])
        changes = reader.take()
    run = story.runs[0]
    assert [(r.id, node and node.id) for r, node in changes] == [(run.id, None), (run.id, 0)]


async def test_a_reader_wakes_when_another_thread_writes() -> None:
    story = Story()
    with story.log.readers.opened(lambda run: True) as reader:
        assert reader.take() == []
        wait = asyncio.create_task(reader.wait(60.0))
        await asyncio.sleep(0)
        await asyncio.to_thread(story.tell, [("open", 0)])
        await asyncio.wait_for(wait, 60.0)
        assert [run.id for run, _ in reader.take()] == [story.runs[0].id]


async def test_calls_cancelled_by_their_programs_end_are_sent() -> None:
    story, mirror = Story(), Mirror()
    story.tell([("open", 0), ("call", 0)])
    watch, view = feed_of(story), EnginesView()
    with story.log.readers.opened(watch.wants) as reader:
        mirror.hear(watch.snapshot(view))
        story.tell([("close", 2)])
        mirror.hear(watch.change(reader, view))
    [node] = mirror.nodes.values()
    assert node["state"] == "cancelled"
