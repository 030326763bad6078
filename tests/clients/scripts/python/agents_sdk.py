"""OpenAI's Agents SDK, over chat completions and over Responses."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.clients.scripts.scenarios import MODEL, URL

set_tracing_disabled(True)


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "21 degrees"


def _client() -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def _chat() -> Model:
    return OpenAIChatCompletionsModel(MODEL, _client())


def _responses() -> Model:
    return OpenAIResponsesModel(MODEL, _client())


def _tools(model: Model, word: str) -> Any:
    agent = Agent("Weatherman", instructions="Be brief.", model=model, tools=[get_weather])
    run = Runner.run(agent, f"The weather in Paris and Rome, {word}?")
    return asyncio.run(run).final_output


def chat_tools(word: str) -> Any:
    """A tool loop over chat completions."""
    return _tools(_chat(), word)


def responses_tools(word: str) -> Any:
    """A tool loop over Responses."""
    return _tools(_responses(), word)


def responses_tools_stream(word: str) -> Any:
    """The same, streamed."""

    async def run() -> Any:
        agent = Agent("Weatherman", model=_responses(), tools=[get_weather])
        running = Runner.run_streamed(agent, f"The weather in Paris and Rome, {word}?")
        kinds = {event.type async for event in running.stream_events()}
        return [running.final_output, "raw_response_event" in kinds]

    return asyncio.run(run())


def output_type(word: str) -> Any:
    """An answer in the form of a class."""
    agent = Agent("Writer", model=_chat(), output_type=Person)
    person = asyncio.run(Runner.run(agent, f"Make up a person, {word}.")).final_output
    return person.model_dump()
