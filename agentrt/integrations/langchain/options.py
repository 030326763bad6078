"""The options of `ChatAgentRT`, with LangChain's and OpenAI's names, and the chat request that they
make; also the implementation of `with_structured_output`, and a model's limits: its LangChain
profile, and the error for a prompt that is too long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Literal

from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import (
    BaseCumulativeTransformOutputParser,
    BaseOutputParser,
    JsonOutputParser,
    PydanticOutputParser,
)
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    PydanticToolsParser,
)
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from agentrt.errors import ConfigError, PromptTooLongError
from agentrt.executors.chat_api import FrontProfile
from agentrt.integrations.langchain.messages import in_line

ALIASES = {
    "model_name": "model",
    "max_completion_tokens": "max_tokens",
    "request_timeout": "timeout",
    "stop_sequences": "stop",
    "openai_api_key": "api_key",
    "openai_api_base": "base_url",
}
SENT = (
    *("temperature", "top_p", "top_k", "n", "stop", "seed", "frequency_penalty"),
    *("presence_penalty", "logit_bias", "logprobs", "top_logprobs", "reasoning_effort"),
    "chat_template_kwargs",
)
"""Options of a model and of its calls that have the same name in a request."""
_SENT_BY_CALLS = (
    *("min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "user"),
    *("parallel_tool_calls", "include_reasoning", "stream_options"),
)
"""Options that calls have, but models do not, with the same name in a request. If such an option is
set on a model, the model puts it into its ``model_kwargs``.
"""
# `stream` chooses LangChain's method; schemas and tools have `strict` within themselves.
_NOT_SENT = ("timeout", "stream_usage", "model_kwargs", "extra_body", "strict", "stream", "schema")
OF_CALLS = (
    *("model", "max_tokens", *SENT, *_SENT_BY_CALLS),
    *("tools", "tool_choice", "response_format", *_NOT_SENT),
)

OF_MODELS = (
    *("runtime", "base_url", "api_key", "default_headers", "default_query", "max_retries"),
    *("streaming", "output_version"),
)
"""Options that only models have."""

_HTTP = "ChatAgentRT has no such HTTP client; leave it out"
_RESPONSES = "it belongs to OpenAI's Responses API, which only 'agentrt serve' has; leave it out"
REFUSED = {
    "client": _HTTP,
    "async_client": _HTTP,
    "root_client": _HTTP,
    "root_async_client": _HTTP,
    "http_client": _HTTP,
    "http_async_client": _HTTP,
    "http_socket_options": _HTTP,
    "include_response_headers": _HTTP,
    "openai_proxy": "set HTTPS_PROXY in the environment",
    "openai_organization": "set default_headers={'OpenAI-Organization': …} with base_url",
    "reasoning": (
        "set reasoning_effort instead, because reasoning belongs to OpenAI's Responses API, which "
        "only 'agentrt serve' has"
    ),
    "verbosity": "open models have no such option; describe the style in the system message",
    "tiktoken_model_name": "tokens are counted by the model's own tokenizer; leave it out",
    "stream_chunk_timeout": "set timeout instead, in seconds for the whole call",
    "disabled_params": "only parameters that you set are sent; do not set the ones to disable",
    "context_management": _RESPONSES,
    "include": _RESPONSES,
    "store": _RESPONSES,
    "truncation": _RESPONSES,
    "use_previous_response_id": _RESPONSES,
    "use_responses_api": _RESPONSES,
    "prompt_cache_options": "prefixes are cached automatically; extra_body accepts a cache_salt",
    "service_tier": "programs are scheduled by the server's policy; leave it out",
}
"""Options of `ChatOpenAI` that are not supported, and what to do instead. The values None and False
are accepted, as if the option were not set.
"""
ALIASES_REFUSED = {"organization": "openai_organization"}


def by_own_names(options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return options by their names in agentrt. Unsupported options whose value is None or False
    are left out.

    Raises `ConfigError` for an unknown or unsupported option, for an option that only models have
    if it is not in ``known``, and for an option that is set under two names with different values.
    """
    known = (*known,)
    named: dict[str, Any] = {}
    names: dict[str, str] = {}  # the names under which the options were set
    for name, value in options.items():
        refused = REFUSED.get(ALIASES_REFUSED.get(name, name))
        if refused is None:
            own = ALIASES.get(name, name)
            if own not in known and own in OF_MODELS:
                raise ConfigError(
                    f"a call cannot override the option {name!r}; set it on another ChatAgentRT"
                )
            if own not in known:
                raise ConfigError(
                    f"unknown option {name!r}; available: {', '.join(known)}. Put other fields of "
                    "a chat request into extra_body"
                )
            if own in named and named[own] != value:
                raise ConfigError(
                    f"{name} and {names[own]} are the same option, but have different values; set "
                    "one"
                )
            named[own], names[own] = value, name
        elif value not in (None, False):
            raise ConfigError(f"ChatAgentRT does not support {name}: {refused}")
    return named


def model_options(options: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a model. Options that only calls have are put into the field
    ``model_kwargs``.
    """
    named = by_own_names(options, (*fields, *_SENT_BY_CALLS))
    of_calls = {name: named.pop(name) for name in _SENT_BY_CALLS if name in named}
    if of_calls:
        named["model_kwargs"] = {**(named.get("model_kwargs") or {}), **of_calls}
    return named


def seconds(timeout: Any) -> float | None:
    """Return a call's timeout as a float, or None. Raises `ConfigError` if the timeout is not a
    positive number. For example, a timeout object of httpx is refused.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ConfigError(
            f"timeout {timeout!r} is not valid; set seconds for the whole call, greater than 0"
        )
    return float(timeout)


def request_of(chat: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Make a chat request from messages and options. The options have agentrt's names. An option
    that is None counts as not set.

    Raises `ConfigError` for tools that are not functions, for an unknown tool choice, for a
    response format without its schema, and if both a schema and a response format are set. Raises
    the errors of `as_format`.
    """
    present = {name: value for name, value in options.items() if value is not None}
    fields = {**(present.get("model_kwargs") or {}), "messages": list(chat)}
    if "model" in present:
        fields["model"] = present["model"]
    if "max_tokens" in present:
        fields["max_completion_tokens"] = present["max_tokens"]
    fields |= {name: present[name] for name in (*SENT, *_SENT_BY_CALLS) if name in present}
    if "top_logprobs" in fields:
        fields["logprobs"] = fields.get("logprobs", True)
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    if "logit_bias" in fields:  # JSON requires text as keys
        fields["logit_bias"] = {str(key): bias for key, bias in fields["logit_bias"].items()}
    return fields | _form(present) | dict(present.get("extra_body") or {})


def _form(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's fields for tools and a schema."""
    form: dict[str, Any] = {}
    names = names_of(options.get("tools") or ())
    if names:
        form["tools"] = list(options["tools"])
    choice = as_choice(options.get("tool_choice"), names)
    if choice is not None and names:
        form["tool_choice"] = choice
    if "schema" in options and "response_format" in options:
        raise ConfigError("both schema and response_format are set; set only one of them")
    wanted = options.get("schema", options.get("response_format"))
    if wanted is not None:
        form["response_format"] = as_format(wanted)
    return form


def as_tools(tools: Any, *, strict: bool | None = None) -> list[dict[str, Any]]:
    """Convert functions, LangChain's tools and schemas into tools of OpenAI's form. Raises
    `ConfigError` for a tool that cannot be converted.
    """
    try:
        return [convert_to_openai_tool(tool, strict=strict) for tool in tools]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"cannot convert the tools {tools!r:.200}: {in_line(error)}") from error


def names_of(tools: Any) -> list[str]:
    """Return the names of tools in OpenAI's form.

    Raises `ConfigError` unless each tool has the type ``function`` and an object ``function`` with
    a name.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise ConfigError(f"tools is {tools!r:.200}; pass a list of tools in OpenAI's form")
    return [_name_of(tool) for tool in tools]


def _name_of(tool: Any) -> str:
    if not isinstance(tool, Mapping):
        raise ConfigError(
            f"tool {tool!r:.200} is of type {type(tool).__name__}; pass tools in OpenAI's form, or "
            "use bind_tools, which converts functions, LangChain tools and schemas"
        )
    if "type" not in tool:
        raise ConfigError(
            f"tool {dict(tool)!r:.200} has no 'type'; pass tools in OpenAI's form, or use "
            "bind_tools, which converts tools of other forms"
        )
    function = tool.get("function")
    if tool["type"] == "function" and not isinstance(function, Mapping):
        raise ConfigError(
            f"tool {dict(tool)!r:.200} has the type 'function', but no object 'function'; write "
            '{"type": "function", "function": {"name": …}}, or use bind_tools, which converts '
            "functions, LangChain tools and schemas"
        )
    if not isinstance(function, Mapping) or tool["type"] != "function":
        raise ConfigError(
            f"tool {tool.get('name') or tool.get('type')!r} is a service of another provider; "
            "pass functions, LangChain tools or schemas"
        )
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"tool {dict(tool)!r:.200} has the name {name!r}; set function.name")
    return name


def as_choice(
    choice: str | bool | Mapping[str, Any] | None, names: Sequence[str]
) -> str | dict[str, Any] | None:
    """Convert a tool choice of LangChain into OpenAI's form.

    LangChain's users write ``any``, a bool (True: call a tool), a tool's name, or OpenAI's or
    Anthropic's mapping. Raises `ConfigError` for a name that is not among ``names``.
    """
    if isinstance(choice, Mapping):
        function = choice.get("function")
        by_name = function if isinstance(function, Mapping) else choice
        choice = by_name.get("name") or choice.get("type") or dict(choice) or None
    if choice is None or choice is False:
        return None
    if choice in names:
        return {"type": "function", "function": {"name": choice}}
    if choice in (True, "any", "required"):
        return "required"
    if choice in ("auto", "none"):
        return str(choice)
    raise ConfigError(
        f"tool_choice {choice!r} is not a tool of this call; available: "
        f"{', '.join(['auto', 'none', 'any', 'required', *names])}, true, false"
    )


def as_format(wanted: Any) -> Mapping[str, Any]:
    """Return the response format for ``wanted``, which is either a response format or a schema. A
    schema may be a JSON schema, a pydantic model, a TypedDict or anything else that LangChain
    accepts.

    Unlike in LangChain, a JSON schema with a ``type`` needs no title. Raises `ConfigError` for a
    response format without its schema, and LangChain's `ValueError` for an unknown form of schema.
    """
    if isinstance(wanted, Mapping) and wanted.get("type") in ("text", "json_object"):
        return wanted
    if isinstance(wanted, Mapping) and wanted.get("type") == "json_schema":
        spec = wanted.get("json_schema")
        if not isinstance(spec, Mapping) or spec.get("schema") is None:
            raise ConfigError(
                "response_format of type json_schema has no json_schema.schema; add the schema"
            )
        return {**wanted, "json_schema": {**spec, "schema": _as_schema(spec["schema"])}}
    schema = _as_schema(wanted)
    name = schema.get("title", "output")
    named = {"name": name, "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}


def _as_schema(schema: Any) -> Mapping[str, Any]:
    if isinstance(schema, Mapping) and "type" in schema and schema["type"] != "function":
        return schema
    return convert_to_json_schema(schema)


# -- with_structured_output ----------------------------------------------------------------


Method = Literal["function_calling", "json_schema", "json_mode"]
_METHODS = ("json_schema", "function_calling", "json_mode")


def structured(
    model: BaseChatModel,
    schema: Any,
    method: Method,
    *,
    include_raw: bool,
    strict: bool | None,
    **options: Any,
) -> Runnable[LanguageModelInput, Any]:
    """Return ``model`` with its output constrained to ``schema`` and parsed. ``options`` are
    options of the calls.
    """
    if method not in _METHODS:
        raise ConfigError(f"unknown method {method!r}; available: {', '.join(_METHODS)}")
    if schema is None and method != "json_mode":
        raise ConfigError(f"method {method!r} needs a schema; pass one, or use method 'json_mode'")
    shown = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    bound: Runnable[LanguageModelInput, Any]
    parser: BaseOutputParser[Any]
    if method == "function_calling":
        tools = [schema, *options.pop("tools", ())]
        single = {"parallel_tool_calls": False, "ls_structured_output_format": shown}
        bound = model.bind_tools(tools, tool_choice="any", strict=strict, **single, **options)
        parser = _tool_parser(schema)
    else:
        # Constrain JSON mode to the schema, too, if there is one, because that costs nothing.
        form = {"type": "json_object"} if schema is None else as_format(schema)
        options |= {"response_format": form, "ls_structured_output_format": shown}
        parser = _text_parser(schema)
        if tools := options.pop("tools", None):
            bound = model.bind_tools(tools, strict=strict, **options)
            parser = _UnlessCalled(parser=parser)
        else:
            bound = model.bind(**options)
    return _with_raw(bound, parser) if include_raw else bound | parser


def _is_pydantic(schema: Any) -> bool:
    return isinstance(schema, type) and is_basemodel_subclass(schema)


def _tool_parser(schema: Any) -> BaseOutputParser[Any]:
    if _is_pydantic(schema):
        return PydanticToolsParser(tools=[schema], first_tool_only=True)
    name = convert_to_openai_tool(schema)["function"]["name"]
    return JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)


def _text_parser(schema: Any) -> JsonOutputParser:
    if _is_pydantic(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()


class _UnlessCalled(BaseCumulativeTransformOutputParser[Any]):
    """A parser for a model that may call tools in place of an answer. For a message with calls, the
    result is None, as with `ChatOpenAI`; other messages are parsed, and streamed, by ``parser``.
    """

    parser: JsonOutputParser

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        message = result[0].message if isinstance(result[0], ChatGeneration) else None
        if isinstance(message, AIMessage) and message.tool_calls:
            return None
        return self.parser.parse_result(result, partial=partial)

    def parse(self, text: str) -> Any:
        return self.parser.parse(text)

    # A stream of a message with calls has None, so that the key ``parsed`` exists with
    # ``include_raw``.

    def _transform(self, input: Iterator[str | BaseMessage]) -> Iterator[Any]:
        is_empty = True
        for value in super()._transform(input):
            is_empty = False
            yield value
        if is_empty:
            yield None

    async def _atransform(self, input: AsyncIterator[str | BaseMessage]) -> AsyncIterator[Any]:
        is_empty = True
        async for value in super()._atransform(input):
            is_empty = False
            yield value
        if is_empty:
            yield None


def _with_raw(
    bound: Runnable[LanguageModelInput, Any], parser: BaseOutputParser[Any]
) -> Runnable[LanguageModelInput, Any]:
    parsed = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | parsed.with_fallbacks([failed], exception_key="parsing_error")


# -- limits of a model -------------------------------------------------------------------


class ContextTooLongError(PromptTooLongError, ContextOverflowError):
    """The error of a prompt that is too long, as a subclass of agentrt's and LangChain's errors."""


@contextmanager
def overflows_translated() -> Iterator[None]:
    """If a prompt in the ``with`` block is too long, raise `ContextTooLongError`, which LangChain's
    summarizers catch.
    """
    try:
        yield
    except PromptTooLongError as error:
        raise ContextTooLongError(str(error)) from error


def expected_profile(model: str | None, *, known: bool) -> ModelProfile:
    """Return the expected profile of a model whose engine has not started. ``known`` means that the
    model runs on an embedded engine, so that the length of its context can be read from its files.
    """
    limit = None
    if known:
        from agentrt.executors.vllm.options import expected_context

        limit = expected_context(model)
    return as_profile(FrontProfile(model or "", limit))


def as_profile(profile: FrontProfile) -> ModelProfile:
    """Convert a front end's profile of a model into LangChain's form."""
    converted = ModelProfile(
        text_inputs=True,
        image_inputs=profile.images,
        image_url_inputs=profile.images,
        image_tool_message=profile.images,
        audio_inputs=profile.audio,
        video_inputs=profile.video,
        pdf_inputs=False,
        pdf_tool_message=False,
        text_outputs=True,
        reasoning_output=profile.reasoning,
        tool_calling=profile.tools,
        tool_choice=profile.tools,
        tool_call_streaming=profile.tools,
        structured_output=True,
        temperature=True,
    )
    if profile.max_model_len is not None:
        converted["max_input_tokens"] = profile.max_model_len
    return converted
