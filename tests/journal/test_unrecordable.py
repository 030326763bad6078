"""A value that a journal cannot give back as it is: who is told, when, and what then."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, tool
from agentrt.errors import ToolLostError, UnrecordableError
from agentrt.journal import JournalOptions, register
from agentrt.journal.codec import UnkeptError, dumps, loads
from agentrt.program import Program
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import RunState
from tests.journal.killing import Code, ended, lived, nodes

GO_ON = JournalOptions(skips=True)


class Handle:
    """What belongs to a process, until somebody registers it."""

    def __init__(self, number: int) -> None:
        self.number = number


def code_of(give: Callable[[], Any], ran: list[int], *, idempotent: bool = False) -> Code:
    """A program that continues if a tool's result cannot be recorded."""

    @tool(idempotent=idempotent)
    async def handle() -> Any:
        ran.append(1)
        return give()

    async def main(ctx: Context) -> str:
        try:
            said = type(await ctx.tool(handle)).__name__
        except UnrecordableError as error:
            said = f"refused: {'result.' in str(error)}"
        return f"{said}, {await ctx.human(said)}"

    return main


async def test_a_program_that_catches_a_refusal_is_refused_again(tmp_path: Path) -> None:
    """It is what the program was told: it goes the same way, and the tool does not run again."""
    ran: list[int] = []
    code = code_of(threading.Lock, ran)
    for _ in range(2):
        assert (await lived(tmp_path / "j", code)).result == "refused: False, yes"
    assert len(ran) == 1


async def test_the_last_thing_that_a_program_does_may_be_refused(tmp_path: Path) -> None:
    async def code(ctx: Context) -> str:
        async def lock() -> Any:
            return threading.Lock()

        with pytest.raises(UnrecordableError):
            await ctx.tool(lock)
        raise KeyError("mine")

    for _ in range(2):
        assert isinstance((await lived(tmp_path / "j", code)).error, KeyError)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_program_that_a_refusal_ends_can_go_on_once_it_is_mended(
    tmp_path: Path, idempotent: bool
) -> None:
    """An idempotent tool runs again; of any other nobody knows what it gave."""
    ran: list[int] = []

    def code(give: Callable[[], Any]) -> Code:
        @tool(idempotent=idempotent)
        async def handle() -> Any:
            ran.append(1)
            return give()

        return lambda ctx: ctx.tool(handle)

    run = await lived(tmp_path / "j", code(threading.Lock))
    assert isinstance(run.error, UnrecordableError)
    assert nodes(tmp_path / "j", "node, state") == [("0", "failed"), ("0#0", "lost")]
    again = await lived(tmp_path / "j", code(lambda: 3))
    if idempotent:
        assert again.result == 3
    else:
        assert isinstance(again.error, ToolLostError)
        assert "could not be recorded" in str(again.error)
    assert len(ran) == 1 + idempotent


async def test_a_program_may_go_on_without_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the value, the log has the reason, and a later life runs the tool again if it may."""
    ran: list[int] = []
    code = code_of(threading.Event, ran, idempotent=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            run = await lived(tmp_path / "j", code, options=GO_ON)
            assert run.result == "Event, yes"
    assert len(ran) == 2
    assert "result is of type threading.Event" in caplog.text
    lost = code_of(threading.Event, ran)
    run = await lived(tmp_path / "j", lost, options=GO_ON)
    assert isinstance(run.error, ToolLostError)


async def test_a_result_of_a_program(tmp_path: Path) -> None:
    async def code(ctx: Context) -> Any:
        return {"items": [1, threading.Lock()]}

    run = await lived(tmp_path / "a", code)
    assert run.state is RunState.FAILED
    assert "result['items'][1] is of type _thread.lock" in str(run.error)
    run = await lived(tmp_path / "b", code, options=GO_ON)
    assert run.state is RunState.DONE
    assert list(run.result) == ["items"]


async def test_an_input(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def code(ctx: Context, given: Any) -> str:
        seen.append(given)
        return "done"

    lock = [threading.Lock()]
    run = await ended(tmp_path / "a", made=Program(code), given=lock)
    assert "input[0] is of type _thread.lock" in str(run.error)
    assert not seen
    run = await ended(tmp_path / "a", made=Program(code), given=lock, options=GO_ON)
    assert (run.result, run.record) == ("done", None)


async def test_a_state_of_a_loop(tmp_path: Path) -> None:
    """A program that continues without a record of a state takes up the last that is recorded."""
    begun: list[Any] = []

    async def code(ctx: Context) -> str:
        kept, first = ctx.checkpoint(), dict[str, Any](round=0, lock=None)
        state = first
        while True:
            state = kept(state)
            begun.append(state["round"])
            if state["round"] == 2:
                await ctx.human("now?")
                raise KeyError("mine")
            state = {"round": state["round"] + 1, "lock": threading.Lock()}
            if state["round"] == 1:
                state["lock"] = None

    run = await lived(tmp_path / "a", code)
    assert "state['lock'] is of type _thread.lock" in str(run.error)
    begun.clear()
    for _ in range(2):
        run = await lived(tmp_path / "b", code, options=GO_ON)
        assert isinstance(run.error, KeyError)
    assert begun == [0, 1, 2, 1, 2]


async def test_a_run_that_will_not_go_on_needs_no_record(tmp_path: Path) -> None:
    """As that of a client who waits for it: there is nothing to be refused for."""
    code = code_of(threading.Event, [])
    run = await lived(tmp_path / "j", code, durable=Durable(skips=True))
    assert run.result == "Event, yes"


async def test_less_than_all_is_kept(tmp_path: Path) -> None:
    code = code_of(threading.Event, [])
    run = await lived(tmp_path / "j", code, options=JournalOptions("digest"))
    assert run.result == "Event, yes"


async def test_a_value_that_cannot_be_read_again_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its code catches that: it must not go another way."""
    register(Handle, lambda value: value.number, Handle)

    async def code(ctx: Context) -> str:
        async def handle() -> Any:
            return Handle(3)

        try:
            value = (await ctx.tool(handle)).number
        except Exception:
            value = "lost"
        return f"{value} {await ctx.human(str(value))}"

    async def fails(ctx: Context) -> str:
        await code(ctx)
        raise KeyError("again")

    await lived(tmp_path / "j", fails)
    monkeypatch.setattr("agentrt.journal.codec._CODECS_BY_NAME", {})
    run = await lived(tmp_path / "j", fails)
    assert "no codec is registered for" in str(run.error)
    assert "node 0#0 of main-1 cannot be read back" in str(run.error)


def test_what_is_registered_comes_first() -> None:
    """A codec stands before what a journal would do by itself, and has to give an equal value."""

    class Local:
        def __init__(self, parts: list[int]) -> None:
            self.parts = parts

    with pytest.raises(UnkeptError, match="defined inside a function"):
        dumps(Local([1]))
    register(Local, lambda value: tuple(value.parts), lambda plain: Local(list(plain)))
    one = Local([1])
    made = loads(dumps({"a": one, "b": one}))
    assert type(made["a"]) is Local
    assert made["a"].parts == [1]
    assert made["a"] is made["b"]


async def test_a_program_that_ends_in_an_unusual_way_ends(tmp_path: Path) -> None:
    class OddError(BaseException):
        pass

    for error in (SystemExit(3), OddError("x"), GeneratorExit()):

        async def code(ctx: Context, error: BaseException = error) -> None:
            raise error

        run = await lived(tmp_path / type(error).__name__, code)
        assert run.state is RunState.FAILED
        assert type(error).__name__ in str(run.error)


async def test_a_tool_that_exits_fails(tmp_path: Path) -> None:
    async def leave() -> None:
        raise SystemExit(4)

    run = await lived(tmp_path / "j", lambda ctx: ctx.tool(leave))
    assert str(run.error) == "the tool raised SystemExit: 4"


async def test_an_end_that_goes_wrong_is_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever our own code does: who waits for the run sees its end, and the log says why."""

    async def end(*args: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("agentrt.journal.record.ProgramRecord.end", end)
    run = await asyncio.wait_for(lived(tmp_path / "j", program_code), 30)
    assert run.state is RunState.FAILED
    assert isinstance(run.error, ZeroDivisionError)
    assert "the end of run main-1 failed" in caplog.text


async def program_code(ctx: Context) -> str:
    return "done"
