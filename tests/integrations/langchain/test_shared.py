"""The clients that all chat models of a process share."""

from __future__ import annotations

from agentrt import Runtime
from agentrt.integrations.langchain import ChatAgentRT, RuntimeClient
from agentrt.integrations.langchain.shared import close_all, engine_client, lend
from tests.doubles.scripted import ScriptedExecutor


async def test_a_lent_runtime_serves_the_models_that_were_made_before() -> None:
    model, executor = ChatAgentRT(), ScriptedExecutor(lambda call: "hello")
    async with Runtime(executor) as runtime:
        with lend(RuntimeClient.borrow(runtime)):
            assert (await model.ainvoke("hi")).content == "hello"
    assert len(executor.calls) == 1


async def test_the_last_that_was_lent_counts_and_is_given_back() -> None:
    async with Runtime(ScriptedExecutor()) as runtime:
        first, second = RuntimeClient.borrow(runtime), RuntimeClient.borrow(runtime)
        with lend(first):
            with lend(second):
                assert engine_client("any") is second
            assert engine_client(None) is first
    assert engine_client(None) not in (first, second)
    close_all()
