"""Worker processes: whatever a function does there, its call ends and nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Lock
from typing import Any

import psutil
import pytest
import pytest_asyncio

from agentrt.errors import (
    ConfigError,
    InterruptExpiredError,
    QuestionClosedError,
    ToolArgumentsError,
    ToolError,
    ToolFailedError,
    ToolLostError,
    ToolResultError,
    ToolUnavailableError,
)
from agentrt.interrupts import Progress, Tool, ToolRequest, tool
from agentrt.interrupts.attempts import Attempts
from agentrt.interrupts.process import ProcessTransport, reference_to
from tests.interrupts import worker_tools as tools
from tests.interrupts.scripted import Observing


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[ProcessTransport]:
    """One for all tests: its workers outlive what goes wrong in others."""
    transport = ProcessTransport(4)
    yield transport
    await transport.close()
    assert not workers_of(transport)


def workers_of(transport: ProcessTransport) -> list[psutil.Process]:
    pids = [worker.pid for worker in transport.workers]
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def call(
    transport: ProcessTransport,
    what: Tool,
    observer: Observing | None = None,
    *,
    timeout: float | None = None,
    **arguments: Any,
) -> Any:
    request = ToolRequest(what, arguments, timeout=timeout)
    return await Attempts().run(request, transport, observer or Observing())


async def test_workers_are_used_again(shared: ProcessTransport) -> None:
    first = await call(shared, tools.pid)
    assert first != os.getpid()
    assert [await call(shared, tools.pid) for _ in range(3)] == [first] * 3


async def test_values_come_in_their_own_types_and_go_so(shared: ProcessTransport) -> None:
    result = await call(shared, tools.double, hole={"mm": 3})
    assert result == tools.Hole(6)
    assert type(result) is tools.Hole


async def test_a_worker_imports_no_engine(shared: ProcessTransport) -> None:
    assert await call(shared, tools.imported) == []


@pytest.mark.parametrize("how", ["loop", "sleep"])
async def test_what_hangs_ends_at_its_time(shared: ProcessTransport, how: str) -> None:
    for time_s in (0.2, 2, 20):  # a busy machine takes longer to begin
        observer = Observing()
        with pytest.raises(InterruptExpiredError, match=f"did not finish within {time_s} s"):
            await call(shared, tools.misbehave, observer, how=how, timeout=time_s)
        if Progress(1, message=how) in observer.heard:
            break
    assert observer.heard == [1, Progress(1, message=how)]  # it did run


@pytest.mark.parametrize(
    ("how", "says"), [("exit", "exit code 3"), ("segfault", "killed by SIGSEGV")]
)
async def test_what_dies_is_told(shared: ProcessTransport, how: str, says: str) -> None:
    with pytest.raises(ToolLostError, match=f"misbehave: its worker process died .{says}"):
        await call(shared, tools.misbehave, how=how)


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ("leave", ToolFailedError, "misbehave raised SystemExit: enough"),
        (
            "lock",
            ToolResultError,
            "the result cannot be sent between processes: TypeError: cannot pickle",
        ),
        ("much", ToolResultError, r"between processes: 94\d+ bytes; allowed are 8388608"),
    ],
)
async def test_what_cannot_come_back_is_said_and_the_worker_goes_on(
    shared: ProcessTransport, how: str, error: type[Exception], says: str
) -> None:
    before = await call(shared, tools.pid)
    with pytest.raises(error, match=says):
        await call(shared, tools.misbehave, how=how)
    assert await call(shared, tools.pid) == before


async def test_errors_come_as_they_are_where_they_can(shared: ProcessTransport) -> None:
    with pytest.raises(KeyError, match="no such hole") as own:
        await call(shared, tools.fail, how="own")
    with pytest.raises(ToolFailedError, match="fail raised OddError: 1 and 2") as other:
        await call(shared, tools.fail, how="odd")
    assert other.value.type == "OddError"
    for got in (own, other):
        assert "in fail\n    raise" in got.value.__notes__[0]
        assert "worker.py" not in got.value.__notes__[0]


async def test_arguments_that_cannot_go_are_refused(shared: ProcessTransport) -> None:
    with pytest.raises(ToolArgumentsError, match="cannot be sent to a process: cannot pickle"):
        await call(shared, tools.taking, data=Lock())
    with pytest.raises(
        ToolArgumentsError, match=r"taking: the arguments have 94\d+ bytes; allowed"
    ):
        await call(shared, tools.taking, data=bytes(9 * 2**20))
    assert await call(shared, tools.taking, data=bytes(7 * 2**20)) == 7 * 2**20


async def test_it_says_how_far_it_is_and_asks(shared: ProcessTransport) -> None:
    observer = Observing()
    assert await call(shared, tools.telling, observer, n=2) == "yes"
    assert observer.heard == [
        1,
        Progress(1, 2, "drilling"),
        Progress(2, 2, "drilling"),
        ("How deep?", {"type": "integer"}),
    ]


async def test_a_question_can_be_withdrawn_and_two_be_open(shared: ProcessTransport) -> None:
    class Human(Observing):
        async def ask(self, question: str, schema: Any = None) -> Any:
            if question == "first?":
                await asyncio.Event().wait()
            return question

    assert await call(shared, tools.asking_twice, Human()) == ["nobody", "a?", "b?"]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (QuestionClosedError("withdrawn"), QuestionClosedError, "withdrawn"),
        (tools.OddError(1, 2), ToolError, "the question failed with OddError: "),
    ],
    ids=["an error that can be pickled", "an error that cannot be unpickled"],
)
async def test_a_question_that_fails_raises_in_the_tool(
    shared: ProcessTransport, error: Exception, kind: type[Exception], text: str
) -> None:
    class Human(Observing):
        async def ask(self, question: str, schema: Any = None) -> Any:
            raise error

    with pytest.raises(kind, match=text) as raised:
        await call(shared, tools.telling, Human(), n=0)
    assert type(raised.value) is kind


async def gone(process: psutil.Process) -> None:
    """Returns once the process has ended, whether somebody has asked how or not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0)


class Told(Observing):
    """Gives the first progress that it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Future[Progress] = asyncio.Future()

    def progress(self, progress: Progress) -> None:
        self.told.set_result(progress)


async def test_a_cancelled_call_leaves_no_process(
    shared: ProcessTransport,
) -> None:
    """Not the function's own child either."""
    observer = Told()
    running = asyncio.create_task(call(shared, tools.with_child, observer))
    child = psutil.Process(int((await observer.told).done))
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await gone(child)


async def test_workers_are_bounded_and_none_is_left() -> None:
    transport = ProcessTransport(2)
    pids = {await call(transport, tools.pid) for _ in range(5)}
    both = await asyncio.gather(*(call(transport, tools.pid) for _ in range(2)))
    assert len(pids | set(both)) == 2
    await transport.close()
    assert not any(psutil.pid_exists(pid) for pid in both)
    await transport.close()


async def test_a_worker_that_died_unasked_is_replaced() -> None:
    transport = ProcessTransport(1)
    first = await call(transport, tools.pid)
    (worker,) = transport.workers
    psutil.Process(first).kill()
    while not worker.dead:
        await asyncio.sleep(0)
    assert await call(transport, tools.pid) != first
    assert worker not in transport.workers
    await transport.close()


async def test_a_file_that_cannot_be_imported_is_named(
    shared: ProcessTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it could be; in a process that was started later, it cannot."""
    file = tmp_path / "brittle_tools.py"
    file.write_text("def f() -> None: ...")
    monkeypatch.syspath_prepend(tmp_path)
    import brittle_tools  # type: ignore[import-not-found]

    brittle = tool(isolation="process")(brittle_tools.f)
    for text, says in (
        ("1/0", "ZeroDivisionError: division by zero"),
        ("", "has no attribute 'f'"),
        ("import os; os._exit(4)", r"it died \(exit code 4\)"),
    ):
        file.write_text(text)
        with pytest.raises(ToolUnavailableError, match=f"cannot import {file}: .*{says}"):
            await call(shared, brittle)
    sys.modules.pop("brittle_tools")


async def test_a_process_that_cannot_start_is_not_taken_for_a_file_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    transport = ProcessTransport(1)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(ToolUnavailableError, match="pid: no worker process can be started: "):
        await call(transport, tools.pid)
    await transport.close()


ROOT = str(Path(__file__).resolve().parents[2])
SCRIPT = """
import asyncio, os, sys, time
from agentrt import Runtime, program, tool
from tests.doubles.scripted import ScriptedExecutor


class Own:
    pass


@tool(isolation="process")
def tell(own: object) -> object:
    return own if type(own) is Own else None


@tool(isolation="process")
def hang() -> None:
    print(os.getpid(), flush=True)
    while True:
        pass


@program
async def main(ctx):
    assert type(await ctx.tool(tell, Own())) is Own
    await ctx.tool(hang)


async def run():
    async with Runtime(ScriptedExecutor()) as runtime:
        await runtime.start(main).wait()


if __name__ == "__main__":
    asyncio.run(run())
"""


async def test_a_killed_runtime_leaves_no_worker(tmp_path: Path) -> None:
    """A script of its own, whose tools are in ``__main__``; the worker is in an endless loop."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": ROOT}
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, file], stdout=subprocess.PIPE, text=True, env=environment
    ) as script:
        assert script.stdout is not None
        worker = psutil.Process(int(script.stdout.readline()))
        script.kill()
        script.stdout.read()  # its end is closed by the worker's end, too
    await gone(worker)


async def test_a_function_of_a_notebook_is_in_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drill() -> None: ...

    drill.__module__ = "__main__"
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    with pytest.raises(ConfigError, match=r"is not in a file, .* put it into a module"):
        reference_to(drill)
