"""Updates of the weights while programs run: the bound on their staleness."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrt import Context, Runtime, program
from agentrt.errors import ConfigError, EngineError, StaleWeightsError
from agentrt.executors.base import Progress
from agentrt.executors.weights import Weights
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.request.weights import PauseMode
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run, RunState
from agentrt.runtime.updates import OnStale
from tests.doubles.scripted import ScriptedExecutor
from tests.pages import blocks


class Trained(ScriptedExecutor):
    """An engine with weights."""

    def __init__(self) -> None:
        super().__init__(lambda call: "yes")
        self.own = Weights()
        self.fails = False
        self.folders: list[str] = []
        self.loading, self.may_load = asyncio.Event(), asyncio.Event()
        self.may_load.set()

    @property
    def weights(self) -> Weights:
        return self.own

    async def pause_generation(self, mode: PauseMode) -> None: ...

    async def check_weights(self, folder: str) -> str:
        return "mark"

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        self.loading.set()
        await self.may_load.wait()
        if self.fails:
            raise EngineError("no memory")
        self.own = weights
        self.folders.append(weights.folder)


gate = asyncio.Event()
begun: list[str] = []


@pytest.fixture(autouse=True)
def closed() -> None:
    global gate
    gate = asyncio.Event()
    begun.clear()


@program
async def waits(ctx: Context, name: str) -> str:
    begun.append(name)
    text = (await ctx.llm("go on?")).text
    await gate.wait()
    return text


@pytest_asyncio.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime(Trained()) as opened:
        yield opened


async def settled(count: int) -> None:
    """Wait until so many programs have begun."""
    while len(begun) < count:
        await asyncio.sleep(0)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def versions(*runs: Run) -> list[int | None]:
    return [run.weights_version for run in runs]


async def test_versions_count_up(runtime: Runtime) -> None:
    assert runtime.weights_version == 0
    assert await runtime.update_weights("a") == 1
    assert await runtime.update_weights("b", version=7) == 7
    for stale in (7, 3):
        with pytest.raises(ConfigError, match="not newer than version 7"):
            await runtime.update_weights("c", version=stale)
    assert await runtime.update_weights(Path("d")) == 8
    assert runtime.weights_version == 8
    executor = runtime.executor
    assert isinstance(executor, Trained)
    assert [*map(Path, executor.folders)] == [Path.cwd() / name for name in "abd"]


async def test_an_update_and_a_call_before_the_start_start_the_engine_once() -> None:
    class Starting(Trained):
        starts = 0

        async def start(self, progress: Progress) -> None:
            self.starts += 1
            await super().start(progress)
            await turns()

    gate.set()
    executor = Starting()
    runtime = Runtime(executor)
    await runtime.open(with_engine=False)
    try:
        run = runtime.start(waits, "a")
        updates = asyncio.gather(runtime.update_weights("v1"), runtime.update_weights("v2"))
        assert await run.wait() == "yes"
        assert [*await updates] == [1, 2]
    finally:
        await runtime.close()
    assert executor.starts == 1


async def test_programs_go_on_without_a_bound(runtime: Runtime) -> None:
    run = runtime.start(waits, "a")
    await settled(1)
    for _ in range(5):
        await runtime.update_weights("new")
    gate.set()
    assert await run.wait() == "yes"
    later = runtime.start(waits, "b")
    assert versions(run, later) == [0, None]
    await later.wait()
    assert versions(later) == [5]


async def test_an_update_waits_for_programs_that_would_be_too_stale(runtime: Runtime) -> None:
    old = runtime.start(waits, "old")
    await settled(1)
    await runtime.update_weights("v1", max_staleness=1)
    young = runtime.start(waits, "young")
    await settled(2)
    update = asyncio.create_task(runtime.update_weights("v2", max_staleness=1))
    await turns()
    assert not update.done()
    other = runtime.start(waits, "other")  # it would be one version old, which is allowed
    await settled(3)
    gate.set()
    assert await update == 2
    await asyncio.gather(*(run.wait() for run in (old, young, other)))
    assert versions(old, young, other) == [0, 1, 1]


@pytest.mark.parametrize("on_stale", ["wait", "end", "restart"])
async def test_a_program_that_updates_the_weights_in_another_task(
    runtime: Runtime, on_stale: OnStale
) -> None:
    """`asyncio.wait_for` makes a task, and so may the program itself. It does not wait for itself,
    and is neither ended nor begun again.
    """

    @program
    async def trains(ctx: Context, name: str) -> int:
        begun.append(name)
        update = runtime.update_weights("v1", max_staleness=0, on_stale=on_stale)
        return await asyncio.create_task(update)

    assert await asyncio.wait_for(runtime.start(trains, "a").wait(), 60) == 1
    assert begun == ["a"]


async def test_no_staleness_at_all(runtime: Runtime) -> None:
    """Programs that start while the update waits begin with the new weights."""
    old = runtime.start(waits, "old")
    await settled(1)
    update = asyncio.create_task(runtime.update_weights("v1", max_staleness=0))
    await turns()
    later = runtime.start(waits, "later")
    await turns()
    assert begun == ["old"]
    gate.set()
    await update
    await asyncio.gather(old.wait(), later.wait())
    assert versions(old, later) == [0, 1]


async def test_a_cancelled_update_lets_programs_begin(runtime: Runtime) -> None:
    runtime.start(waits, "old")
    await settled(1)
    update = asyncio.create_task(runtime.update_weights("v1", max_staleness=0))
    await turns()
    later = runtime.start(waits, "later")
    update.cancel()
    await settled(2)
    gate.set()
    await later.wait()
    assert versions(later) == [0]
    assert await runtime.update_weights("v1") == 1


async def test_an_update_that_is_cancelled_while_engines_load_is_done_and_then_cancelled(
    runtime: Runtime,
) -> None:
    executor = runtime.executor
    assert isinstance(executor, Trained)

    async def train() -> None:
        try:
            await runtime.update_weights("new")
        finally:
            after.append(runtime.weights_version)

    after: list[int] = []
    executor.may_load.clear()
    training = asyncio.create_task(train())
    await executor.loading.wait()
    training.cancel()
    await turns()
    assert not training.done()
    executor.may_load.set()
    await asyncio.wait([training])
    assert (training.cancelled(), after) == (True, [1])


async def test_a_time_limit_that_passes_while_engines_load_is_noticed(runtime: Runtime) -> None:
    executor = runtime.executor
    assert isinstance(executor, Trained)
    executor.may_load.clear()

    async def release() -> None:
        await executor.loading.wait()
        limit.reschedule(0)
        await turns()
        executor.may_load.set()

    releasing = asyncio.create_task(release())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            await runtime.update_weights("new")
    await releasing  # the time limit has left no cancellation behind
    assert runtime.weights_version == 1


async def test_programs_that_are_too_stale_are_ended(runtime: Runtime) -> None:
    old = runtime.start(waits, "old")
    await settled(1)
    await runtime.update_weights("v1", max_staleness=1, on_stale="end")
    young = runtime.start(waits, "young")
    await settled(2)
    await runtime.update_weights("v2", max_staleness=1, on_stale="end")
    with pytest.raises(StaleWeightsError, match=r"began with version 0 .* have version 2"):
        await old.wait()
    assert old.state is RunState.FAILED
    gate.set()
    assert await young.wait() == "yes"


async def test_programs_that_are_too_stale_run_again(runtime: Runtime) -> None:
    run = runtime.start(waits, "again", tokens=True)
    await settled(1)
    await runtime.update_weights("v1", max_staleness=0, on_stale="restart")
    await settled(2)
    gate.set()
    assert await run.wait() == "yes"
    assert begun == ["again", "again"]
    assert versions(run) == [1]
    assert run.tokens is not None
    assert not runtime.runs
    executor = runtime.executor
    assert isinstance(executor, Trained)
    assert len(executor.calls) == 2


@pytest.mark.parametrize("on_stale", ["end", "restart"])
async def test_a_program_that_ignores_its_cancellation_is_cancelled_again(
    runtime: Runtime, on_stale: OnStale, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 0.01)
    attempts = 0

    @program
    async def stubborn(ctx: Context) -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            return "again"
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await asyncio.Event().wait()
        return ""

    run = runtime.start(stubborn)
    await turns()
    await runtime.update_weights("v1", max_staleness=0, on_stale=on_stale)
    if on_stale == "end":
        with pytest.raises(StaleWeightsError):
            await run.wait()
    else:
        assert await run.wait() == "again"


@pytest.mark.parametrize("where", ["its own code", "a task", "nowhere"])
@pytest.mark.parametrize("turns_between", range(6))
async def test_updates_right_after_each_other_let_a_program_run_again(
    runtime: Runtime, where: str, turns_between: int
) -> None:
    """The next update finds the program while it cleans up, or while it waits to begin again."""

    async def waits_in(place: str) -> None:
        try:
            await gate.wait()
        finally:
            if where == place:
                await turns()

    @program
    async def slow_to_end(ctx: Context, name: str) -> str:
        begun.append(name)
        task = asyncio.create_task(waits_in("a task"))
        await waits_in("its own code")
        await task
        return (await ctx.llm("go on?")).text

    run = runtime.start(slow_to_end, "again", tokens=True)
    await settled(1)
    for number in range(1, 4):
        await runtime.update_weights(f"v{number}", max_staleness=0, on_stale="restart")
        for _ in range(turns_between):
            await asyncio.sleep(0)
    waiting = asyncio.create_task(runtime.update_weights("v4", max_staleness=0))
    await turns()
    gate.set()
    assert await run.wait() == "yes"
    assert await waiting == 4
    assert versions(run)[0] in (3, 4)


async def test_a_program_that_is_cancelled_does_not_run_again(runtime: Runtime) -> None:
    run = runtime.start(waits, "once")
    await settled(1)
    run.cancel()
    await runtime.update_weights("v1", max_staleness=0, on_stale="restart")
    with pytest.raises(asyncio.CancelledError):
        await run.wait()
    assert begun == ["once"]


async def test_an_update_that_fails_ends_no_program(runtime: Runtime) -> None:
    run = runtime.start(waits, "a")
    await settled(1)
    executor = runtime.executor
    assert isinstance(executor, Trained)
    executor.fails = True
    options: tuple[OnStale, ...] = ("end", "restart")
    for on_stale in options:
        with pytest.raises(EngineError, match="go on with version 0: no memory"):
            await runtime.update_weights("v1", max_staleness=0, on_stale=on_stale)
    gate.set()
    assert await run.wait() == "yes"


async def test_a_recorded_program_cannot_run_again(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    async with (
        await Journal.open(lambda: SQLiteStore(path)) as journal,
        Runtime(Trained(), journal=journal) as runtime,
    ):
        run = runtime.start(waits, "a", durable=Durable())
        await settled(1)
        with pytest.raises(ConfigError, match="cannot run again from its beginning"):
            await runtime.update_weights("v1", max_staleness=0, on_stale="restart")
        assert runtime.weights_version == 0
        await runtime.update_weights("v1", max_staleness=0, on_stale="end")
        with pytest.raises(StaleWeightsError):
            await run.wait()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "retract"}, "unknown mode 'retract'"),
        ({"on_stale": "kill"}, "unknown on_stale 'kill'"),
        ({"on_stale": "end"}, "on_stale 'end' has no effect without max_staleness"),
        ({"max_staleness": -1}, "max_staleness is -1"),
    ],
)
async def test_wrong_arguments(runtime: Runtime, options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        await runtime.update_weights("v1", **options)
    with pytest.raises(ConfigError, match="weights must be"):
        await runtime.update_weights(5)
    assert runtime.weights_version == 0


async def test_the_code_of_the_page(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(blocks("weights.md")[0], names)
    await names["after_a_step"](runtime, "step-1")
    assert "version 1 of the weights" in capsys.readouterr().out
