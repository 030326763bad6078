"""Which of a client's programs make room for new ones where its tenant has as many as it may."""

from __future__ import annotations

import pytest

from agentrt import Runtime
from agentrt.graph import NodeKind
from agentrt.serving.programs.client_programs import ClientPrograms
from agentrt.serving.programs.identity import Claim
from agentrt.serving.tenants import BusyError, Limits
from tests.doubles.scripted import ScriptedExecutor
from tests.lines import lines_run


class Many:
    """A tenant's programs on a clock of the test's, of which it may have ``most``."""

    def __init__(self, runtime: Runtime, most: int) -> None:
        self.runtime = runtime
        self.all = ClientPrograms(
            runtime, lambda tenant: Limits(programs=most), idle_s=900.0, silent_idle_s=120.0
        )

    def request(self, name: str, tenant: str = "a", times: int = 1) -> None:
        """Requests of a program, each with a call of its own, and over before the next begins."""
        registry = self.runtime.registry
        for _ in range(times):
            entry = self.all.enter(tenant, Claim(program=name), ())
            run, scope = entry.program.run, entry.scope()
            registry.end_interrupt(
                run, scope, registry.begin_interrupt(run, scope, NodeKind.TOOL, "call")
            )
            self.all.leave(entry)

    def converse(self, chat: str, turns: int) -> None:
        """A chat without a name: each request continues from the reply before it."""
        registry = self.runtime.registry
        hashes: list[bytes] = []
        for turn in range(turns):
            entry = self.all.enter("a", Claim(), hashes)
            run, scope = entry.program.run, entry.scope()
            registry.end_interrupt(
                run, scope, registry.begin_interrupt(run, scope, NodeKind.TOOL, "call")
            )
            reply = f"{chat} {turn}".encode()
            self.all.leave(entry, [reply])
            hashes = [*hashes, reply]

    def names(self, tenant: str = "a") -> list[str | None]:
        return [program.name for program in self.all.named(tenant)]


async def test_invented_names_do_not_keep_an_honest_program_out() -> None:
    """1. A name that calls once makes room for the next. 2. One that calls again stays."""
    async with Runtime(ScriptedExecutor(), clock=lambda: 0.0) as runtime:
        programs = Many(runtime, 50)
        programs.request("honest", times=2)
        for number in range(500):
            programs.request(f"fake-{number}")
        programs.request("new")
        assert len(programs.all) == 50
        assert {"honest", "new", "fake-499", "fake-452"} <= set(programs.names())
        assert "fake-451" not in programs.names()


@pytest.mark.parametrize(("times", "silence"), [(2, 8.0), (5, 31.0), (17, 121.0), (100, 121.0)])
async def test_names_that_call_more_often_keep_others_out_for_longer(
    times: int, silence: float
) -> None:
    now = 0.0
    async with Runtime(ScriptedExecutor(), clock=lambda: now) as runtime:
        programs = Many(runtime, 2)
        programs.request("a", times=times)
        now = 1.0
        programs.request("b", times=times)
        now = silence - 2.0
        with pytest.raises(BusyError) as busy:
            programs.request("c")
        assert busy.value.retry_after <= 2
        now = silence
        programs.request("c")
        assert programs.names() == ["b", "c"]


async def test_an_active_program_does_not_make_room() -> None:
    """1. With an open request. 2. With a tool that runs. 3. Nor for another tenant's programs."""
    async with Runtime(ScriptedExecutor(), clock=lambda: 0.0) as runtime:
        programs = Many(runtime, 2)
        programs.all.enter("a", Claim(program="open"), ())
        entry = programs.all.enter("a", Claim(program="tool"), ())
        entry.scope()
        programs.all.leave(entry, tools=["search"])
        with pytest.raises(BusyError):
            programs.request("new")
        programs.request("new", tenant="b")
        assert (programs.names(), programs.names("b")) == (["open", "tool"], ["new"])


async def test_begun_programs_without_calls_make_room_for_calling_programs() -> None:
    now = 0.0
    async with Runtime(ScriptedExecutor(), clock=lambda: now) as runtime:
        programs = Many(runtime, 2)
        programs.all.begin("a", Claim())
        now = 1.0
        second = programs.all.begin("a", Claim()).name
        with pytest.raises(BusyError):
            programs.all.begin("a", Claim())
        programs.request("new")
        assert programs.names() == [second, "new"]


async def test_named_programs_of_an_absent_client_make_room_too() -> None:
    """1. Both were heard of lately: no room. 2. One is silent for long: it ends for a new one."""
    now = 0.0
    async with Runtime(ScriptedExecutor(), clock=lambda: now) as runtime:
        limits = Limits(programs=2)
        programs = ClientPrograms(runtime, lambda tenant: limits, idle_s=900.0, silent_idle_s=120.0)
        first = programs.begin("a", Claim()).name
        now = 60.0
        second = programs.begin("a", Claim()).name
        now = 119.0
        with pytest.raises(BusyError):
            programs.begin("a", Claim())
        now = 121.0
        third = programs.begin("a", Claim()).name
        assert [one.name for one in programs.named("a")] == [second, third] != [first, second]


@pytest.mark.parametrize("turns", [1, 3])
async def test_a_new_conversation_costs_no_more_where_many_are_idle(turns: int) -> None:
    """Counted in lines that are executed, with clients that never say when they end."""

    async def lines(most: int) -> int:
        async with Runtime(ScriptedExecutor(), clock=lambda: 0.0) as runtime:
            programs = Many(runtime, most)
            for number in range(most):
                programs.converse(f"chat {number}", turns)
            executed = lines_run(lambda: programs.converse("one more", turns))
            assert len(programs.all) == most
            return executed

    assert await lines(400) <= 1.1 * await lines(40)
