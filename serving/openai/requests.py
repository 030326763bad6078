"""What clients send, as pydantic models: what is not named here is refused, not ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from agentrt.serving.programs.bodies import Strict

MOST_CALLS = 32
"""Choices times prompts of one request."""
_SEED = 2**63

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


# -- chats ---------------------------------------------------------------------------------


class TextPart(Strict):
    """A piece of a message's content; the models here read text only."""

    type: Literal["text"]
    text: str


class RefusalPart(Strict):
    """A model's refusal, told to it again."""

    type: Literal["refusal"]
    refusal: str


class FunctionCall(Strict):
    """The tool and its arguments, JSON text as the model made it."""

    name: str
    arguments: str


class ToolCallMessage(Strict):
    """A call of a tool that an assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class SystemMessage(Strict):
    """Instructions."""

    role: Literal["system", "developer"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None


class UserMessage(Strict):
    """What a user says."""

    role: Literal["user"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None


class AssistantMessage(Strict):
    """What a model said. Its thoughts are taken and not told to it again."""

    role: Literal["assistant"]
    content: str | list[TextPart | RefusalPart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallMessage] | None = None
    annotations: list[Any] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Strict):
    """What a tool gave."""

    role: Literal["tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    tool_call_id: str
    name: str | None = None


ChatMessage = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class Function(Strict):
    """A tool as the model is told of it. Every call is held to the schema, strict or not."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """The name of a tool."""

    name: str


class NamedChoice(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Strict):
    """The schema of an answer."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Name
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextFormat(Strict):
    """Free text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    """JSON that obeys a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


Format = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StreamOptions(Strict):
    """``include_usage`` adds a last event with the tokens that were used."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class Sampling(Strict):
    """What chats and completions have in common.

    ``user``, ``metadata`` and what caches and services are called are taken, since clients
    send them unasked, and change nothing.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MOST_CALLS)
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-_SEED, lt=_SEED)
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    ignore_eos: bool = False
    session_id: str | None = Field(None, max_length=256)
    user: str | None = None
    metadata: dict[str, str] | None = Field(None, max_length=16)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None


class ChatRequest(Sampling):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    store: Literal[False] | None = None
    modalities: list[Literal["text"]] | None = None


class CompletionRequest(Sampling):
    """``POST /v1/completions``."""

    prompt: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
        | Annotated[
            list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]],
            Field(min_length=1),
        ]
    )
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
