"""One call of a tool: checked, bounded, tried again, and never more often than it may be."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from agentrt import Context, Runtime, program
from agentrt.errors import (
    InterruptExpiredError,
    ToolArgumentsError,
    ToolError,
    ToolFailedError,
    ToolLostError,
    ToolResultError,
    ToolUnavailableError,
    UnknownToolError,
)
from agentrt.interrupts import Tool, ToolOptions, ToolRequest
from agentrt.interrupts.attempts import Attempts, AttemptSlots
from agentrt.request import ToolSpec
from tests.doubles.scripted import ScriptedExecutor
from tests.interrupts.scripted import Observing, Scripted, never

LOST, FAILED, AWAY = ToolLostError("died"), ToolFailedError("no"), ToolUnavailableError("away")


class Call:
    """A call of a tool with these options at a scripted transport."""

    def __init__(self, transport: Scripted, **options: Any) -> None:
        self.pauses: list[float] = []
        self.transport, self.observer = transport, Observing()
        spec = options.pop("spec", None)
        result = options.pop("result_schema", None)
        chosen = ToolOptions(**options)
        self.tool = Tool("drill", spec=spec, options=chosen, transport=transport)
        self.tool.result_schema = result
        self.slots: tuple[AttemptSlots, ...] = ()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def run(self, **arguments: Any) -> Any:
        request = ToolRequest(self.tool, arguments, key="k", timeout=self.tool.options.timeout)
        running = Attempts(self.sleep).run(request, self.transport, self.observer, self.slots)
        return await running


async def test_a_call_may_be_tried_again_any_number_of_times() -> None:
    call = Call(Scripted(*[FAILED] * 1100, 7), retries=1100)
    assert await call.run() == 7
    assert 20 <= call.pauses[-1] <= 20.2


async def test_a_failed_attempt_is_tried_again_after_a_pause_that_grows() -> None:
    call = Call(Scripted(FAILED, FAILED, ValueError("odd"), 7), retries=3)
    assert await call.run() == 7
    assert [one.attempt for one in call.transport.requests] == [1, 2, 3, 4]
    assert {one.key for one in call.transport.requests} == {"k"}
    assert call.observer.heard == [
        *(1, "after attempt 1 failed: no", 2, "after attempt 2 failed: no"),
        *(3, "after attempt 3 failed: odd", 4),
    ]
    for pause, least in zip(call.pauses, (0.2, 0.4, 0.8), strict=True):
        assert least <= pause <= least + 0.2


async def test_the_last_error_is_the_calls() -> None:
    call = Call(Scripted(FAILED, ValueError("last")), retries=1)
    with pytest.raises(ValueError, match="last"):
        await call.run()
    assert len(call.transport.requests) == 2


@pytest.mark.parametrize(
    ("error", "options", "attempts"),
    [
        (FAILED, {}, 1),
        (FAILED, {"retries": 2}, 3),
        (AWAY, {"retries": 2}, 3),  # nothing was run
        (LOST, {"retries": 2}, 1),  # it may have run: never twice
        (LOST, {"idempotent": True}, 3),
        (LOST, {"idempotent": True, "retries": 2}, 5),
        (InterruptExpiredError("late"), {"retries": 2}, 1),
        (InterruptExpiredError("late"), {"retries": 2, "idempotent": True}, 3),
        (ToolArgumentsError("wrong"), {"retries": 2, "idempotent": True}, 1),
        (ToolResultError("wrong"), {"retries": 2, "idempotent": True}, 1),
        (UnknownToolError("gone"), {"retries": 2, "idempotent": True}, 1),
    ],
)
async def test_what_may_have_run_is_tried_again_only_if_idempotent(
    error: ToolError, options: dict[str, Any], attempts: int
) -> None:
    call = Call(Scripted(error), **options)
    with pytest.raises(type(error)):
        await call.run()
    assert len(call.transport.requests) == attempts


async def test_an_attempt_has_its_time_and_is_stopped_at_its_end() -> None:
    call = Call(Scripted(never), timeout=0.01)
    with pytest.raises(
        InterruptExpiredError, match=r"tool drill did not finish within 0.01 s"
    ) as got:
        await call.run()
    assert (got.value.name, call.transport.cancelled) == ("drill", 1)


async def test_each_attempt_has_the_whole_time() -> None:
    call = Call(Scripted(never, 7), timeout=0.1, retries=1, idempotent=True)
    assert await call.run() == 7


async def test_a_tools_own_timeout_is_no_deadline() -> None:
    call = Call(Scripted(TimeoutError("mine")), timeout=60)
    with pytest.raises(TimeoutError, match="mine") as got:
        await call.run()
    assert not isinstance(got.value, InterruptExpiredError)


async def test_a_transport_may_keep_the_time_itself() -> None:
    class Keeping(Scripted):
        keeps_time = True

    async def late(*given: Any) -> int:
        for _ in range(20):
            await asyncio.sleep(0)
        return 7

    assert await Call(Keeping(late), timeout=1e-9).run() == 7


async def test_a_cancelled_call_is_cancelled_at_its_transport_and_not_tried_again() -> None:
    call = Call(Scripted(never), retries=5, idempotent=True)
    task = asyncio.create_task(call.run())
    while not call.transport.live:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (call.transport.cancelled, len(call.transport.requests)) == (1, 1)


async def test_no_more_than_its_limit_run_at_once() -> None:
    """Twenty calls and two limits: the second one's is what counts; both are free at the end."""

    async def briefly(*_: Any) -> None:
        await asyncio.sleep(0)

    transport = Scripted(briefly)
    slots = (AttemptSlots(5, "a turn"), AttemptSlots(2, "one of 2 workers"))
    calls = [Call(transport) for _ in range(20)]
    for one in calls:
        one.slots = slots
    await asyncio.gather(*(one.run() for one in calls))
    assert transport.most == 2
    assert not any(one.locked() for one in slots)
    heard = [one.observer.heard for one in calls]
    assert heard[0] == heard[1] == [1]
    assert heard[2] == ["for one of 2 workers", 1]
    assert heard[19] == ["for a turn", "for one of 2 workers", 1]


async def test_a_pause_between_attempts_holds_no_slot() -> None:
    call = Call(Scripted(FAILED, 7), retries=1)
    call.slots = (AttemptSlots(1, "a turn"),)

    async def look(seconds: float) -> None:
        assert not call.slots[0].locked()

    call.sleep = look  # type: ignore[method-assign]
    assert await call.run() == 7


async def test_one_that_is_cancelled_while_it_waits_leaves_the_slots_as_they_were() -> None:
    call = Call(Scripted(7))
    call.slots = (AttemptSlots(1, "a turn"), AttemptSlots(1, "a worker"))
    await call.slots[1].acquire()
    task = asyncio.create_task(call.run())
    while not call.observer.heard:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert (call.slots[0].locked(), call.transport.requests) == (False, [])


SPEC = ToolSpec(
    "drill",
    "",
    {"type": "object", "properties": {"mm": {"type": "integer"}}, "required": ["mm"]},
)


async def test_wrong_arguments_reach_no_transport() -> None:
    call = Call(Scripted(7), spec=SPEC)
    with pytest.raises(ToolArgumentsError, match=r"tool drill: wrong arguments: \$.mm: 'x' is"):
        await call.run(mm="x")
    with pytest.raises(ToolArgumentsError, match="'mm' is a required property"):
        await call.run()
    assert call.transport.requests == []
    assert await call.run(mm=3) == 7


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "wood"}, r"the schema is not valid: \$.type: 'wood'"),
        ({"properties": 5}, r"the schema is not valid: \$.properties: 5 is not"),
        ({"$ref": "#/gone"}, "has a reference outside of itself"),
        ({"$ref": "http://127.0.0.1:1/x"}, "has a reference outside of itself"),
        ({"$ref": "#"}, "nested too deeply"),
        ({"$ref": "#/minLength", "minLength": 4}, "the value cannot be checked"),
        ({"$schema": []}, "the value cannot be checked"),
    ],
)
async def test_a_schema_that_lies_is_the_tools_fault_and_said(
    schema: dict[str, Any], says: str
) -> None:
    call = Call(Scripted(7), spec=ToolSpec("drill", "", schema))
    with pytest.raises(ToolArgumentsError, match=says):
        await call.run(mm=3)
    call = Call(Scripted(7), result_schema=schema)
    with pytest.raises(ToolResultError, match=says):
        await call.run()


@pytest.mark.parametrize(
    ("schema", "fits", "wrong"),
    [
        ({"properties": {"name": {"type": "string", "pattern": r"^\p{L}+$"}}}, "Zoë", 5),
        ({"properties": {"name": {"pattern": r"^(?<one>.)\k<one>$"}}}, "oo", "ox"),
        ({"properties": {"name": {"pattern": "(?<=a)b|[^]c", "maxLength": 2}}}, "ab", "abc"),
        ({"patternProperties": {r"^\p{L}": {}}, "additionalProperties": False}, "", None),
        ({"properties": {"name": {"enum": [{"pattern": r"\p{L}"}]}}}, {"pattern": r"\p{L}"}, "x"),
    ],
)
async def test_patterns_of_javascript_refuse_no_call(
    schema: dict[str, Any], fits: Any, wrong: Any
) -> None:
    """A JSON schema's patterns are JavaScript's. Python cannot match all of them."""
    call = Call(Scripted(7), spec=ToolSpec("drill", "", schema))
    assert await call.run(name=fits) == 7
    if wrong is not None:
        with pytest.raises(ToolArgumentsError, match=r"wrong arguments: \$\.name"):
            await call.run(name=wrong)


async def test_a_result_that_is_not_what_the_tool_promises_is_none() -> None:
    call = Call(Scripted({"mm": "x"}), result_schema=SPEC.parameters, retries=2)
    with pytest.raises(ToolResultError, match=r"tool drill: wrong result: \$.mm"):
        await call.run()
    assert len(call.transport.requests) == 1


def test_forked_processes_call_tools_with_keys_of_their_own() -> None:
    """A worker answers a key that it knows with the result of the earlier call."""

    async def key() -> str:
        transport = Scripted("done")
        drill = Tool("drill", spec=ToolSpec("drill", "", {}), transport=transport)

        @program
        async def main(ctx: Context) -> None:
            await ctx.tool(drill)

        async with Runtime(ScriptedExecutor(), tools=[transport]) as runtime:
            await runtime.start(main).wait()
        return transport.requests[0].key

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, asyncio.run(key()).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    forked = os.read(reading, 1000).decode()
    for end in (reading, writing):
        os.close(end)
    assert forked
    assert forked != asyncio.run(key())
