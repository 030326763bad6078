"""ChatAgentRT in the place of ChatOpenAI: every option of that one, and LangChain's ways to it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import ConfigurableField
from langchain_openai import ChatOpenAI

from agentrt import Runtime
from agentrt.errors import ConfigError
from agentrt.integrations.langchain import ChatAgentRT, RuntimeClient
from agentrt.integrations.langchain.options import OF_CALLS, OF_MODELS, REFUSED
from agentrt.integrations.langchain.shared import lend
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.langchain.samples import asked

PAGE = Path(__file__).parents[3] / "docs" / "langchain.md"
VALUES: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "n": 1,
    "seed": 3,
    "stop": ["x"],
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "logit_bias": {1: 2},
    "logprobs": True,
    "top_logprobs": 2,
    "reasoning_effort": "low",
    "top_k": 5,
    "chat_template_kwargs": {"enable_thinking": False},
}
OTHERS: dict[str, Any] = {
    "model": "tiny",
    "model_name": "tiny",
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "timeout": 30,
    "request_timeout": 30,
    "stop_sequences": ["x"],
    "model_kwargs": {"min_p": 0.1},
    "extra_body": {"min_p": 0.1},
    "stream_usage": False,
    "streaming": True,
    "max_retries": 3,
    "default_headers": {"x-a": "b"},
    "default_query": {"a": "b"},
    "api_key": "k",
    "openai_api_key": "k",
    "base_url": None,
    "openai_api_base": None,
    "output_version": "v1",
}


def rows() -> dict[str, str]:
    """The page's options, each with what it says of them."""
    table: dict[str, str] = {}
    for names, says in re.findall(r"^\| (`.+) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE):
        table |= dict.fromkeys(re.findall(r"`(\w+)`", names), says)
    return table


def test_the_page_has_every_option_of_chatopenai() -> None:
    fields = ChatOpenAI.model_fields
    names = {*fields, *(field.alias for field in fields.values() if field.alias)}
    assert names - set(BaseChatModel.model_fields) <= set(rows())
    assert "output_version" in rows()


def test_what_the_page_calls_refused_is_refused_and_nothing_else() -> None:
    make: Any = ChatAgentRT
    for name, says in rows().items():
        assert says.startswith("refused") == (name not in VALUES | OTHERS), name
        if says.startswith("refused"):
            with pytest.raises(ConfigError, match=f"does not support {name}: .{{20}}"):
                make(**{name: "something"})
            make(**{name: None})  # as not given
    assert set(REFUSED) <= set(rows())


@pytest.mark.parametrize("name", [*VALUES, *OTHERS])
async def test_an_option_may_be_the_models_or_a_calls(
    runtime: Runtime, executor: ScriptedExecutor, name: str
) -> None:
    value = (VALUES | OTHERS)[name]
    await ChatAgentRT(runtime=runtime, **{name: value}).ainvoke("hello")
    of_model = asked(executor)
    if name in VALUES:
        assert of_model[name] == json.loads(json.dumps(value))  # as vLLM takes it
    if name in ("model_kwargs", "extra_body"):
        assert of_model["min_p"] == 0.1
    if name in OF_CALLS:
        await ChatAgentRT(runtime=runtime).ainvoke("hello", **{name: value})
        assert asked(executor) == of_model


@pytest.mark.parametrize("name", ["api_key", "openai_api_key", *OF_MODELS])
async def test_a_call_does_not_take_an_option_of_models(runtime: Runtime, name: str) -> None:
    options: dict[str, Any] = {name: "other"}
    with pytest.raises(ConfigError, match=f"a call cannot override the option '{name}'; set it on"):
        await ChatAgentRT(runtime=runtime).ainvoke("hello", **options)


async def test_other_fields_of_vllm_are_options_too(
    runtime: Runtime, executor: ScriptedExecutor
) -> None:
    model = ChatAgentRT(runtime=runtime, min_p=0.1, parallel_tool_calls=False)  # type: ignore[call-arg]
    await model.ainvoke("hello", repetition_penalty=1.1, extra_body={"documents": []})
    expected = {"min_p": 0.1, "parallel_tool_calls": False, "repetition_penalty": 1.1}
    assert expected.items() <= asked(executor).items()
    assert asked(executor)["documents"] == []


async def test_several_answers_are_not_greedy_unless_asked(
    runtime: Runtime, executor: ScriptedExecutor
) -> None:
    model = ChatAgentRT(runtime=runtime, n=2)
    await model.ainvoke("hello")
    assert "temperature" not in asked(executor)
    await model.ainvoke("hello", temperature=0)
    assert asked(executor)["temperature"] == 0


async def test_a_model_of_an_open_runtime_may_be_made_in_a_thread(
    runtime: Runtime, executor: ScriptedExecutor
) -> None:
    """LangChain makes a model anew for each call that sets a configurable field."""
    field = ConfigurableField("temperature")
    model = ChatAgentRT(runtime=runtime).configurable_fields(temperature=field)
    warm = model.with_config(configurable={"temperature": 0.5})
    await asyncio.to_thread(warm.invoke, "hello")
    assert asked(executor)["temperature"] == 0.5
    await asyncio.to_thread(lambda: ChatAgentRT(runtime=runtime, temperature=1).invoke("hello"))
    assert asked(executor)["temperature"] == 1


async def test_langchain_finds_it_by_its_provider(runtime: Runtime, executor: Any) -> None:
    with lend(RuntimeClient.borrow(runtime)):
        model: Any = init_chat_model("agentrt:tiny", temperature=0.5)
        assert (type(model), model.model_name, model.temperature) == (ChatAgentRT, "tiny", 0.5)
        agent: Any = create_agent("agentrt:tiny", [])
        await agent.ainvoke({"messages": [("human", "hello")]})
    assert asked(executor)["model"] == "tiny"


async def test_a_model_without_a_tokenizer_says_what_to_do(model: ChatAgentRT) -> None:
    await model.ainvoke("hello")
    with pytest.raises(ConfigError, match="has no tokenizer"):
        model.get_num_tokens("hello")


async def test_the_profile_is_the_engines_own_once_it_is_there(runtime: Runtime) -> None:
    early = ChatAgentRT()
    assert early.profile is not None
    assert early.profile["max_input_tokens"] > 0
    model = ChatAgentRT(runtime=runtime)
    assert model.profile is not None
    assert "max_input_tokens" not in model.profile
    given = ChatAgentRT(runtime=runtime, profile={"max_input_tokens": 7})
    await given.ainvoke("hello")
    assert given.profile == {"max_input_tokens": 7}
