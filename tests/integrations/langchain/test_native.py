"""ChatAgentRT on vLLM's whole front end, without weights, with a model that speaks its markup.

One scripted engine with the embedded model's tokenizer, hermes' tool calls and Qwen3's thoughts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, trim_messages
from langchain_core.outputs import ChatGeneration

from agentrt import Runtime
from agentrt.errors import CallRejectedError, PromptTooLongError
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.integrations.langchain import ChatAgentRT, RuntimeClient
from agentrt.request import Call
from tests.doubles.scripted_engine import ScriptedEngine
from tests.integrations.langchain.samples import add, ping

ROOM = 256
FLAGS = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
TWO_CALLS = (
    "<think>Two sums.</think>Let me see."
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
)
LONG = [HumanMessage("word " * ROOM)]


class Spoken:
    """What the model says next: ``says`` to all, or what ``answers`` has for a call."""

    says = "<think></think>Yes."
    answers: Any = None

    def __call__(self, call: Call) -> str:
        return self.says if self.answers is None else str(self.answers(call))


SPOKEN = Spoken()


@pytest.fixture(scope="module")
def client() -> Iterator[RuntimeClient]:
    folder = str(embedded_model(lambda message: None))
    flags = (*FLAGS, "--max-model-len", str(ROOM))
    client = RuntimeClient(lambda: Runtime(ScriptedEngine(SPOKEN, folder, flags)))
    client.open()
    yield client
    client.close()


@pytest.fixture
def model(client: RuntimeClient) -> Iterator[ChatAgentRT]:
    yield ChatAgentRT(runtime=client)
    SPOKEN.says, SPOKEN.answers = Spoken.says, None


def whole(model: Any, **options: Any) -> tuple[AIMessage, AIMessage]:
    """The answer at once, and put together from its stream."""
    first, *more = list(model.stream("hello", **options))
    return model.invoke("hello", **options), sum(more, first)


def test_thoughts_text_and_parallel_calls_come_apart(model: ChatAgentRT) -> None:
    SPOKEN.says = TWO_CALLS
    for message in whole(model.bind_tools([add, ping])):
        kinds = [block["type"] for block in message.content_blocks]
        assert kinds == ["reasoning", "text", "tool_call", "tool_call"]
        assert message.content_blocks[0]["reasoning"] == "Two sums."  # type: ignore[typeddict-item]
        assert message.text.strip() == "Let me see."
        assert [call["args"] for call in message.tool_calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        assert len({call["id"] for call in message.tool_calls}) == 2
        assert message.usage_metadata is not None
        assert message.usage_metadata["output_token_details"]["reasoning"] > 0
        assert message.response_metadata["finish_reason"] == "tool_calls"


def test_a_call_that_is_cut_off_is_never_made(model: ChatAgentRT) -> None:
    SPOKEN.says = '<think></think><tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n'
    bound = model.bind_tools([add])
    for tokens in (14, 18, 22, 24):
        for message in whole(bound, max_tokens=tokens):
            assert message.response_metadata["finish_reason"] == "length"
            made = [call["args"] for call in message.tool_calls]
            assert made in ([], [{"a": 1, "b": 2}]), "part of its arguments are not its arguments"


def test_sampling_fields_reach_the_engine(model: ChatAgentRT, client: RuntimeClient) -> None:
    SPOKEN.says = "<think></think>Yes."
    model.invoke("hello", top_k=7, min_p=0.1, temperature=0.5, extra_body={"min_tokens": 2})
    engine: Any = client._runtime and client._runtime.executor
    params = engine.calls[-1].spec.rendered.params
    assert (params.top_k, params.min_p, params.temperature, params.min_tokens) == (7, 0.1, 0.5, 2)
    with pytest.raises(CallRejectedError, match="top_p"):
        model.invoke("hello", top_p=3)


def test_several_answers_are_sampled(model: ChatAgentRT) -> None:
    result = model.generate([[HumanMessage("hello")]], n=2)
    assert [one.text for one in result.generations[0]] == ["Yes."] * 2


def test_the_cost_of_several_answers_is_that_of_all(model: ChatAgentRT) -> None:
    def cost(n: int) -> float:
        [[answer, *_]] = model.generate([[HumanMessage("hello")]], n=n).generations
        assert isinstance(answer, ChatGeneration)
        seconds = answer.message.response_metadata["agentrt"]["service_s"]
        assert isinstance(seconds, float)
        return seconds

    assert cost(3) == pytest.approx(3 * cost(1))
    assert cost(1) > 0


# -- the model's own limits ------------------------------------------------------------------


def test_tokens_are_counted_by_the_models_own_tokenizer(model: ChatAgentRT) -> None:
    ids = model.get_token_ids("Hello, world.")
    assert len(ids) == model.get_num_tokens("Hello, world.") == 4
    chat: list[Any] = [HumanMessage("hello")]
    counted = model.get_num_tokens_from_messages(chat)
    usage = model.invoke(chat).usage_metadata
    assert usage is not None
    assert counted == usage["input_tokens"]
    assert model.get_num_tokens_from_messages(chat, tools=[add]) >= counted
    own = ChatAgentRT(runtime=model.runtime, custom_get_token_ids=lambda text: [1, 2, 3])
    assert own.get_num_tokens("Hello") == 3


async def test_the_engines_own_loop_may_count_too(client: RuntimeClient) -> None:
    """As the node of a graph does that trims its messages, on the loop that runs the engine."""
    folder = str(embedded_model(lambda message: None))
    async with Runtime(ScriptedEngine(SPOKEN, folder, (*FLAGS, "--max-model-len", "256"))) as here:
        model = ChatAgentRT(runtime=here)
        await model.ainvoke("hello")
        chat = [HumanMessage("word " * 50), HumanMessage("hello")]
        kept = trim_messages(chat, max_tokens=60, token_counter=model, strategy="last")
        assert [message.text for message in kept] == ["hello"]
        assert model.get_num_tokens("Hello, world.") == 4


def test_a_profile_has_the_engines_own_limits(model: ChatAgentRT) -> None:
    assert model.profile is not None
    assert model.profile["max_input_tokens"] == ROOM
    assert (model.profile["reasoning_output"], model.profile["image_inputs"]) == (True, False)
    early = RuntimeClient(model.runtime._make)
    late = ChatAgentRT(runtime=early)
    assert late.profile is not None
    assert "max_input_tokens" not in late.profile


def test_a_prompt_that_is_too_long_is_langchains_error(model: ChatAgentRT) -> None:
    for make in (lambda: model.invoke(LONG), lambda: list(model.stream(LONG))):
        with pytest.raises(ContextOverflowError, match=str(ROOM)) as told:
            make()
        assert isinstance(told.value, PromptTooLongError)
        assert type(told.value.__cause__) is PromptTooLongError
    with pytest.raises(ContextOverflowError):
        asyncio.run(model.ainvoke(LONG))


def test_a_long_agent_summarizes_instead_of_dying(model: ChatAgentRT) -> None:
    """Twelve turns of some 40 tokens do not fit in the context: the first become a summary."""
    summaries = 0

    def answers(call: Call) -> str:
        nonlocal summaries
        asked = str(call.spec.prompt_token_ids and model_text(call))
        if "extract" in asked.lower():
            summaries += 1
            return "<think></think>They spoke of words."
        return "<think></think>Go on, and tell me some more about those words of yours."

    def model_text(call: Call) -> str:
        engine: Any = model.runtime._runtime.executor
        return str(engine._renderer.get_tokenizer().decode(call.spec.prompt_token_ids))

    SPOKEN.answers = answers
    middleware = SummarizationMiddleware(
        model,
        trigger=("fraction", 0.6),
        keep=("messages", 2),
        summary_prompt="Extract the most of: {messages}",
    )
    agent = create_agent(model, [], middleware=[middleware])
    state: Any = {"messages": []}
    for turn in range(12):
        question = HumanMessage(f"Turn {turn}: " + "some words to remember, please. " * 3)
        state = agent.invoke({"messages": [*state["messages"], question]})
        assert isinstance(state["messages"][-1], AIMessage)
    assert summaries >= 2
    assert len(state["messages"]) < 24
