"""OpenAI's Python SDK, as its documentation uses it."""

from __future__ import annotations

from typing import Any

from openai import OpenAI
from pydantic import BaseModel

from tests.clients.scripts.scenarios import MODEL, URL

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather in a city", "parameters": PARAMETERS}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS: Any = [{"type": "function", **FUNCTION}]


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def chat(word: str) -> Any:
    """A question and its answer."""
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": f"Say hello, {word}."}]
    )
    assert answer.usage is not None
    return answer.choices[0].message.content


def chat_stream(word: str) -> Any:
    """The same, streamed, with the tokens that it took."""
    text, tokens = "", 0
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Say hello, {word}."}],
        stream=True,
        stream_options={"include_usage": True},
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    return [text, tokens > 0]


def chat_choices(word: str) -> Any:
    """Three choices."""
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": f"Say hello, {word}."}], n=3
    )
    return [choice.message.content for choice in answer.choices]


def chat_tools(word: str) -> Any:
    """Two tools at once, their results, and the answer."""
    messages: list[Any] = [{"role": "user", "content": f"The weather in Paris and Rome, {word}?"}]
    called: list[Any] = []
    while True:
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return [called, message.content]
        for call in message.tool_calls:
            assert call.type == "function"
            called.append([call.function.name, call.function.arguments])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "21 degrees"})


def chat_tools_stream(word: str) -> Any:
    """A tool call, put together by the SDK's helper for streams."""
    messages: Any = [{"role": "user", "content": f"The weather in Paris, {word}?"}]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=CHAT_TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    return [[c.function.name, c.function.arguments] for c in message.tool_calls or ()]


def chat_parse(word: str) -> Any:
    """An answer in the form of a class."""
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": f"Make up a person, {word}."}],
        response_format=Person,
    )
    person = answer.choices[0].message.parsed
    assert person is not None
    return person.model_dump()


def completion(word: str) -> Any:
    """A text that continues."""
    answer = client.completions.create(model=MODEL, prompt=f"Say hello, {word}.", max_tokens=9)
    return answer.choices[0].text


def responses(word: str) -> Any:
    """Two turns, the second by the id of the first."""
    first = client.responses.create(model=MODEL, input=f"Say hello, {word}.", store=True)
    second = client.responses.create(
        model=MODEL, input="And again.", previous_response_id=first.id, store=True
    )
    return [first.output_text, second.output_text]


def responses_tools(word: str) -> Any:
    """A tool loop that sends the whole conversation each time."""
    items: list[Any] = [{"role": "user", "content": f"The weather in Paris and Rome, {word}?"}]
    called: list[Any] = []
    while True:
        answer = client.responses.create(model=MODEL, input=items, tools=RESPONSES_TOOLS)
        calls = [item for item in answer.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        if not calls:
            return [called, answer.output_text]
        for call in calls:
            called.append([call.name, call.arguments])
            result = {"type": "function_call_output", "call_id": call.call_id}
            items.append({**result, "output": "21 degrees"})


def responses_tools_by_id(word: str) -> Any:
    """A tool loop that sends only what is new."""
    first = client.responses.create(
        model=MODEL, input=f"The weather in Paris, {word}?", tools=RESPONSES_TOOLS, store=True
    )
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "21 degrees"}
        for item in first.output
        if item.type == "function_call"
    ]
    second = client.responses.create(
        model=MODEL, input=results, previous_response_id=first.id, tools=RESPONSES_TOOLS
    )
    return [len(results), second.output_text]


def responses_stream(word: str) -> Any:
    """Events, from the first to the last."""
    with client.responses.stream(model=MODEL, input=f"Say hello, {word}.") as stream:
        kinds = [event.type for event in stream]
        return [kinds[0], kinds[-1], stream.get_final_response().output_text]


def responses_compact(word: str) -> Any:
    """A chat that continues from a summary of itself."""
    first = client.responses.create(model=MODEL, input=f"The weather in Paris, {word}?")
    compacted = client.responses.compact(model=MODEL, previous_response_id=first.id)
    kinds = [item.type for item in compacted.output]
    items: Any = [*(item.model_dump() for item in compacted.output)]
    items.append({"role": "user", "content": "How many degrees?"})
    second = client.responses.create(model=MODEL, input=items)
    return [compacted.object, kinds, second.output_text]


def responses_socket(word: str) -> Any:
    """Two turns over one connection, the second with what is new only."""
    texts = []
    with client.responses.connect() as connection:
        before: str | None = None
        for text in (f"Say hello, {word}.", "And again."):
            connection.response.create(
                model=MODEL, input=text, store=False, previous_response_id=before
            )
            for event in connection:
                if event.type == "response.completed":
                    texts.append(event.response.output_text)
                    before = event.response.id
                    break
    return texts


def responses_parse(word: str) -> Any:
    """An answer in the form of a class."""
    answer = client.responses.parse(
        model=MODEL, input=f"Make up a person, {word}.", text_format=Person
    )
    assert answer.output_parsed is not None
    return answer.output_parsed.model_dump()


def leave(word: str) -> Any:
    """Read a little of a long answer, and close it."""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Say something long, {word}."}],
        stream=True,
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            stream.close()
            return chunk.choices[0].delta.content
    return None
