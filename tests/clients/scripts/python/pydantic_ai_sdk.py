"""Pydantic AI, over chat completions, Responses and Messages."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.scripts.scenarios import MODEL, URL


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def _openai() -> OpenAIProvider:
    return OpenAIProvider(base_url=f"{URL}/v1", api_key="none")


def _agent(model: Model) -> Agent[None, str]:
    agent = Agent(model, instructions="Be brief.")

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return "21 degrees"

    return agent


def _tools(model: Model, word: str) -> Any:
    return asyncio.run(_agent(model).run(f"The weather in Paris and Rome, {word}?")).output


def chat_tools(word: str) -> Any:
    """A tool loop over chat completions."""
    return _tools(OpenAIChatModel(MODEL, provider=_openai()), word)


def chat_tools_stream(word: str) -> Any:
    """The same, streamed."""

    async def run() -> Any:
        agent = _agent(OpenAIChatModel(MODEL, provider=_openai()))
        async with agent.run_stream(f"The weather in Paris and Rome, {word}?") as running:
            return await running.get_output()

    return asyncio.run(run())


def responses_tools(word: str) -> Any:
    """A tool loop over Responses."""
    return _tools(OpenAIResponsesModel(MODEL, provider=_openai()), word)


def messages_tools(word: str) -> Any:
    """A tool loop over Messages."""
    provider = AnthropicProvider(base_url=URL, api_key="none")
    return _tools(AnthropicModel(MODEL, provider=provider), word)


def native_output(word: str) -> Any:
    """An answer in the form of a class, held to its schema by the server."""
    model = OpenAIChatModel(MODEL, provider=_openai())
    agent = Agent(model, output_type=NativeOutput(Person))
    return asyncio.run(agent.run(f"Make up a person, {word}.")).output.model_dump()
