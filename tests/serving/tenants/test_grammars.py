"""Who compiles grammars all the time waits for itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt.request import Call, CallSpec, Identity, RenderedCall
from agentrt.serving.tenants.grammars import Compilations, grammar_of
from tests.serving.local import open_server


def call(tenant: str, grammar: str | None) -> Call:
    held = None if grammar is None else SimpleNamespace(grammar=grammar)
    params = SimpleNamespace(structured_outputs=held)
    spec = CallSpec(max_tokens=1, rendered=RenderedCall({}, params))
    return Call(Identity("p/0", "p", "t", tenant=tenant), spec)


class Callers:
    """Calls that wait for their turns, and say ``compiled`` by hand."""

    def __init__(self) -> None:
        self.compilations = Compilations()
        self.inside: dict[str, Any] = {}
        self.over = asyncio.Event()

    async def make(self, tenant: str, grammar: str | None) -> None:
        async with self.compilations.turn(call(tenant, grammar)) as compiled:
            self.inside[f"{tenant}/{grammar}"] = compiled
            await self.over.wait()


async def turns_over() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_tenants_grammars_are_compiled_two_at_a_time() -> None:
    """Others' are not waited for, nor is a known one, nor a call without one."""
    callers = Callers()
    asked = [("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("a", None), ("b", "1")]
    tasks = [asyncio.create_task(callers.make(*one)) for one in asked]
    await turns_over()
    assert list(callers.inside) == ["a/1", "a/2", "a/None", "b/1"]
    callers.inside["a/1"]()
    callers.inside["a/1"]()  # every piece of its output says so
    await turns_over()
    assert list(callers.inside)[4:] == ["a/3"]
    tasks.append(asyncio.create_task(callers.make("a", "1")))
    await turns_over()
    assert "a/4" not in callers.inside
    tasks[1].cancel()  # it gave up before its grammar was there
    await turns_over()
    assert "a/4" in callers.inside
    callers.over.set()
    await asyncio.wait(tasks)


async def test_the_grammar_of_a_call_is_known_from_its_parameters() -> None:
    async with open_server(is_shared=True) as local:
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        held = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        await local.chat("hi")
        await local.chat("hi", response_format=held)
        await local.chat("ho", response_format=held)
        free, first, second = map(grammar_of, local.engine.calls)
        assert free is None
        assert first == second is not None
