"""LiteLLM, which gives chats to OpenAI's and Anthropic's APIs alike."""

from __future__ import annotations

from typing import Any

import litellm

from tests.clients.scripts.scenarios import MODEL, URL

OPENAI = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none"}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": "none"}
MOST = 12
"""Messages, after which a model that calls tools for ever is left."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def _loop(where: dict[str, str], word: str, **options: Any) -> Any:
    talk: list[Any] = [{"role": "user", "content": f"The weather in Paris and Rome, {word}?"}]
    called: list[Any] = []
    while len(talk) < MOST:
        answer = litellm.completion(messages=talk, tools=TOOLS, max_tokens=500, **where, **options)
        if options.get("stream"):
            answer = litellm.stream_chunk_builder(list(answer), messages=talk)
        message = answer.choices[0].message
        talk.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return [called, message.content]
        for call in message.tool_calls:
            called.append([call.function.name, call.function.arguments])
            talk.append({"role": "tool", "tool_call_id": call.id, "content": "21 degrees"})
    return called


def chat_tools(word: str) -> Any:
    """A tool loop over chat completions."""
    return _loop(OPENAI, word)


def chat_tools_stream(word: str) -> Any:
    """The same, streamed."""
    return _loop(OPENAI, word, stream=True)


def messages_tools(word: str) -> Any:
    """A tool loop over Messages."""
    return _loop(ANTHROPIC, word)
