"""Anthropic's Python SDK, as its documentation uses it."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic

from tests.clients.scripts.scenarios import MODEL, URL

client = Anthropic(base_url=URL, api_key="none", max_retries=0)
TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather in a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
]


def messages(word: str) -> Any:
    """A question and its answer."""
    answer = client.messages.create(
        model=MODEL,
        max_tokens=100,
        system="Be brief.",
        messages=[{"role": "user", "content": f"Say hello, {word}."}],
    )
    assert answer.usage.output_tokens > 0
    return [block.text for block in answer.content if block.type == "text"]


def messages_stream(word: str) -> Any:
    """The same, streamed."""
    with client.messages.stream(
        model=MODEL,
        max_tokens=100,
        messages=[{"role": "user", "content": f"Say hello, {word}."}],
    ) as stream:
        text = "".join(stream.text_stream)
        return [text, stream.get_final_message().stop_reason]


def _loop(word: str, ask: Any) -> Any:
    talk: list[Any] = [{"role": "user", "content": f"The weather in Paris and Rome, {word}?"}]
    called: list[Any] = []
    while True:
        answer = ask(model=MODEL, max_tokens=500, messages=talk, tools=TOOLS)
        talk.append({"role": "assistant", "content": answer.content})
        uses = [block for block in answer.content if block.type == "tool_use"]
        if not uses:
            return [called, answer.content[0].text]
        called += [[use.name, use.input] for use in uses]
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": "21 degrees"} for use in uses
        ]
        talk.append({"role": "user", "content": results})


def tools(word: str) -> Any:
    """Two tools at once, their results, and the answer."""
    return _loop(word, client.messages.create)


def tools_stream(word: str) -> Any:
    """The same, streamed."""

    def ask(**options: Any) -> Any:
        with client.messages.stream(**options) as stream:
            return stream.get_final_message()

    return _loop(word, ask)


def count_tokens(word: str) -> Any:
    """How long a prompt is; no call of a model."""
    count = client.messages.count_tokens(
        model=MODEL, messages=[{"role": "user", "content": f"Say hello, {word}."}], tools=TOOLS
    )
    return count.input_tokens > 0


def windows(word: str) -> Any:
    """What the list of models and one of them say of the window."""
    [listed] = client.models.list()
    known = client.models.retrieve(MODEL)
    return [listed.max_input_tokens, known.max_input_tokens, known.max_tokens]


def server_tools(word: str) -> Any:
    """Tools and blocks that this server knows nothing of."""
    answer = client.beta.messages.create(
        model=MODEL,
        max_tokens=100,
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
        messages=[
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": word},
                    },
                    {"type": "text", "text": "Say hello."},
                ],
            }
        ],
    )
    return [block.text for block in answer.content if block.type == "text"]


def leave(word: str) -> Any:
    """Read a little of a long answer, and close it."""
    with client.messages.stream(
        model=MODEL,
        max_tokens=500,
        messages=[{"role": "user", "content": f"Say something long, {word}."}],
    ) as stream:
        return next(iter(stream.text_stream))
