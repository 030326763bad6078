"""`with_structured_output`: the model's output as an object of a schema."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    PydanticToolsParser,
)
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from agentrt.errors import ConfigError
from agentrt.integrations.langchain.options import as_format

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
    """``model`` with its output constrained to ``schema``, and parsed; ``options`` are of calls."""
    if method not in _METHODS:
        raise ConfigError(f"method {method!r} is none of {', '.join(_METHODS)}")
    if schema is None and method != "json_mode":
        raise ConfigError(f"method {method!r} needs a schema")
    shown = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    bound: Runnable[LanguageModelInput, Any]
    parser: BaseOutputParser[Any]
    if method == "function_calling":
        tools = [schema, *options.pop("tools", ())]
        one = {"parallel_tool_calls": False, "ls_structured_output_format": shown}
        bound = model.bind_tools(tools, tool_choice="any", strict=strict, **one, **options)
        parser = _tool_parser(schema)
    else:
        # JSON mode, too, is constrained to the schema where there is one: it costs nothing here.
        form = {"type": "json_object"} if schema is None else as_format(schema)
        bound = model.bind(response_format=form, ls_structured_output_format=shown, **options)
        parser = _text_parser(schema)
    return _with_raw(bound, parser) if include_raw else bound | parser


def _is_pydantic(schema: Any) -> bool:
    return isinstance(schema, type) and is_basemodel_subclass(schema)


def _tool_parser(schema: Any) -> BaseOutputParser[Any]:
    if _is_pydantic(schema):
        return PydanticToolsParser(tools=[schema], first_tool_only=True)
    name = convert_to_openai_tool(schema)["function"]["name"]
    return JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)


def _text_parser(schema: Any) -> BaseOutputParser[Any]:
    if _is_pydantic(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()


def _with_raw(
    bound: Runnable[LanguageModelInput, Any], parser: BaseOutputParser[Any]
) -> Runnable[LanguageModelInput, Any]:
    parsed = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | parsed.with_fallbacks([failed], exception_key="parsing_error")
