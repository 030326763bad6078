"""Converting a text that a user typed into the input of a graph, and checking the input."""

from __future__ import annotations

import json
import operator
import textwrap
from functools import partial
from typing import Annotated, Any, get_args, get_origin

from langchain_core.messages import convert_to_messages
from langgraph.channels.base import BaseChannel
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.last_value import LastValue
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel, ValidationError

from agentrt.errors import UsageError
from agentrt.integrations._compat.langgraph import WHOLE_STATE
from agentrt.integrations.langgraph.graphs import Graph

_MESSAGES = "messages"
_WORDS = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
_WORDS |= {list: "a list", dict: "an object"}
Fields = dict[str, BaseChannel[Any, Any, Any]]


def graph_input(graph: Graph, name: str, raw_input: Any) -> Any:
    """Convert ``raw_input``, which is text or a value read from JSON, into the input of ``graph``.

    Text becomes a user's message if the graph has messages, else the value of its only field. An
    entrypoint takes any value. Raises `UsageError` if the input does not fit the input's schema.
    Only types that JSON has are checked.
    """
    fields = input_fields(graph)
    if fields is None:
        return raw_input
    if isinstance(raw_input, str):
        raw_input = _from_text(name, raw_input, fields)
    if not isinstance(raw_input, dict):
        raise UsageError(
            f"graph {name!r} takes an object with {_listed(fields)}, not {raw_input!r}; write a "
            "JSON object"
        )
    _check_names(name, raw_input, fields, _required(graph))
    for field, value in raw_input.items():
        _check_type(name, field, value, fields[field])
        _check_messages(name, field, value, fields[field])
    return raw_input


def ignored_keys(graph: Graph, name: str, raw_input: Any) -> str:
    """Return a sentence about the keys of an input that LangGraph will ignore, because the graph
    has no such fields. The sentence also names the fields that the graph has. Return "" if
    LangGraph will ignore no key.
    """
    fields = input_fields(graph)
    if fields is None or not isinstance(raw_input, dict):
        return ""
    unknown = ", ".join(repr(key) for key in raw_input if key not in fields)
    return f"graph {name!r} has no field {unknown}; its input has {_listed(fields)}" * bool(unknown)


def input_hint(graph: Graph) -> str:
    """Return an example of the option that gives a graph its input, for an error message."""
    fields = input_fields(graph)
    if fields is None or _MESSAGES in fields or len(fields) == 1:
        return "--input TEXT"
    return f"--input {json.dumps(dict.fromkeys(fields, '…'), ensure_ascii=False)!r}"


def input_fields(graph: Graph) -> Fields | None:
    """Return the channels of a graph's input by name; None if the input is a single value."""
    if isinstance(graph, CompiledStateGraph):
        known = graph.builder.schemas[graph.builder.input_schema]
        fields = {
            key: channel for key, channel in known.items() if isinstance(channel, BaseChannel)
        }
        return None if WHOLE_STATE in fields else fields
    if isinstance(graph.input_channels, str):
        return None
    channels = graph.channels
    return {k: c for k in graph.input_channels if isinstance(c := channels[k], BaseChannel)}


def _required(graph: Graph) -> list[str]:
    """Return the required fields. LangGraph has required fields only in pydantic states."""
    schema = graph.builder.input_schema if isinstance(graph, CompiledStateGraph) else None
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return []
    return [key for key, field in schema.model_fields.items() if field.is_required()]


def _from_text(name: str, text: str, fields: Fields) -> dict[str, Any]:
    if _MESSAGES in fields:
        return {_MESSAGES: [{"role": "user", "content": text}]}
    if len(fields) != 1:
        raise UsageError(
            f"graph {name!r} takes {_listed(fields)}; write the input as a JSON object, such as "
            f"{json.dumps({next(iter(fields), 'field'): text}, ensure_ascii=False)!r}"
        )
    return {next(iter(fields)): text}


def _check_names(name: str, values: dict[str, Any], fields: Fields, required: list[str]) -> None:
    unknown = [key for key in values if key not in fields]
    if unknown or not values:
        wrong = f"has no field {', '.join(map(repr, unknown))}" if unknown else "got an empty input"
        raise UsageError(f"graph {name!r} {wrong}; its input has {_listed(fields)}")
    missing = [key for key in required if key not in values]
    if missing:
        names = ", ".join(map(repr, missing))
        raise UsageError(f"graph {name!r} needs the fields {names}; add them to its input")


def _check_type(name: str, field: str, value: Any, channel: BaseChannel[Any, Any, Any]) -> None:
    wanted = _wanted(channel)
    if wanted is None or _is_a(value, wanted):
        return
    raise UsageError(
        f"graph {name!r} takes {_WORDS[wanted]} as {field!r}, not {json.dumps(value, default=str)}"
    )


def _check_messages(name: str, field: str, value: Any, channel: BaseChannel[Any, Any, Any]) -> None:
    """Check the messages of a field to which LangGraph's `add_messages` adds messages."""
    reducer = channel.operator if isinstance(channel, BinaryOperatorAggregate) else None
    if isinstance(reducer, partial):
        reducer = reducer.func
    if reducer is not add_messages:
        return
    try:
        convert_to_messages(value if isinstance(value, list) else [value])
    except Exception as error:  # of several types: ValueError, NotImplementedError, ...
        why = str(error).partition("\n")[0]
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{first['loc'][0]}: {first['msg']}"
        text = json.dumps(value, default=str, ensure_ascii=False)
        raise UsageError(
            f"graph {name!r} takes messages as {field!r}, such as "
            f'[{{"role": "user", "content": "hello"}}], not {textwrap.shorten(text, 100)}: {why}'
        ) from error


def _wanted(channel: BaseChannel[Any, Any, Any]) -> type | None:
    """Return the type that a field must have, if it is a type of `_WORDS`. Return None for other
    types, and for a field whose reducer may take other types.
    """
    adds = isinstance(channel, BinaryOperatorAggregate) and channel.operator is operator.add
    if not adds and not isinstance(channel, LastValue):
        return None
    kind = channel.UpdateType
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    origin = get_origin(kind) or kind
    return origin if origin in _WORDS else None


def _is_a(value: Any, wanted: type) -> bool:
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)


def _listed(fields: Fields) -> str:
    return f"the field{'s' * (len(fields) != 1)} {', '.join(map(repr, fields))}"
