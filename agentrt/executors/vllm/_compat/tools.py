"""Tools: the types of a vLLM tool parser (`ToolParser` is the interface for plug-ins), and the
constraints of tools' arguments.

The arguments of a tool are left unconstrained where the grammar compiler refuses their schema.
agentrt constrains the arguments of all tools by their schemas (``--tool-strict-level``), while vLLM
by default constrains only tools that are ``strict``. Without this module, every request with a tool
whose schema the compiler refuses would be refused. A strict tool with such a schema is refused, as
in vLLM, but the error names the tool and the place in its schema.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.renderers.chat_utils import make_tool_call_id
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager
from vllm.tool_parsers.utils import get_function_tools

from agentrt.executors.chat_api import CALLER

__all__ = [
    "DeltaFunctionCall",
    "DeltaMessage",
    "DeltaToolCall",
    "ExtractedToolCallInformation",
    "FunctionCall",
    "StructuredOutputsParams",
    "ToolCall",
    "ToolParser",
    "ToolParserManager",
    "get_function_tools",
    "leave_odd_schemas_out",
    "make_tool_call_id",
]


_LOG = logging.getLogger(__name__)
_REMEMBERED = 4096
"""Maximum number of schemas whose verdicts are remembered."""
_MOST_BYTES = 128 * 1024
"""Maximum size, in bytes, of the schemas of one request that are checked. Compiling this many bytes
takes some 15 ms of the event loop, once for each schema.
"""
_VERDICTS: OrderedDict[tuple[type[Any], bytes], str] = OrderedDict()
_HEAD = re.compile(r"^.*?\[[^]]*\] \S+\.cc:\d+: ", re.DOTALL)
"""A pattern for the beginning of the grammar compiler's messages, up to the time and the source
line.
"""
_MOST_LOGGED = 1024
_logged: set[tuple[str, str]] = set()
_DEEPEST = 16
_ANY = {"type": "object", "additionalProperties": True}
Check = Callable[[Any], None]
_Base: Any = object  # stands for the parser class that is mixed in behind ours


def leave_odd_schemas_out(state: Any, config: Any, tokenizer: Any) -> None:
    """Make all APIs in ``state``, the state of vLLM's application, accept tools whose schemas the
    grammar compiler refuses, unless the tools are strict.

    ``config`` is vLLM's configuration. `Caller.left_out` tells the caller of a request which
    schemas were left out.
    """
    renderer = getattr(state, "online_renderer", None)
    parser = getattr(renderer, "parser", None)
    if renderer is None or parser is None:
        return

    def check(outputs: Any) -> None:
        from vllm.sampling_params import SamplingParams

        params = SamplingParams(structured_outputs=outputs)
        params._validate_structured_outputs(
            config.model_config, config.structured_outputs_config, tokenizer
        )

    renderer.parser = type("Lenient", (_Lenient, parser), {"check": staticmethod(check)})


class _Lenient(_Base):
    """A mix-in for a parser class. It leaves out the schemas that the parser's constraint cannot
    express.

    ``check`` raises vLLM's error for a constraint that the engine would refuse.
    """

    check: Check

    def adjust_request(self, request: Any) -> Any:
        tools = [tool for tool in request.tools or () if _name_of(tool)]
        if not tools:
            return super().adjust_request(request)
        before, plain = _Constraint.of(request), request.model_copy()
        adjusted = super().adjust_request(request)
        if _Constraint.of(adjusted).is_same(before):
            return adjusted
        odd = self._odd(tools, plain)
        if not odd:
            return adjusted
        for index, tool in enumerate(tools):
            if _is_strict(tool) and (reason := odd.get(index)):
                raise ValueError(_refusal(tool, reason))
        names = {id(tools[index]) for index in odd}
        plain.tools = [_without_schema(t) if id(t) in names else t for t in request.tools]
        _Constraint.of(super().adjust_request(plain)).set_in(adjusted)
        for index, reason in odd.items():
            _tell(_name_of(tools[index]), reason)
        return adjusted

    def _odd(self, tools: list[Any], request: Any) -> dict[int, str]:
        """Return the reasons for which tools' schemas are refused, by the tools' positions."""
        odd: dict[int, str] = {}
        left = _MOST_BYTES
        for index, tool in enumerate(tools):
            try:
                schema = orjson.dumps(_schema_of(tool))
            except TypeError:
                continue
            left -= len(schema)
            key = type(self), schema
            verdict = _VERDICTS.get(key)
            if verdict is None and left >= 0:
                verdict = _VERDICTS[key] = self._verdict(tool, request)
                if len(_VERDICTS) > _REMEMBERED:
                    _VERDICTS.popitem(last=False)
            if verdict:
                odd[index] = verdict
        return odd

    def _verdict(self, tool: Any, request: Any) -> str:
        """Return the reason for which the constraint of a single tool is refused, or ""."""
        alone = request.model_copy(update={"tools": [tool], "tool_choice": "required"})
        _Constraint().set_in(alone)
        try:
            constraint = _Constraint.of(super().adjust_request(alone))
        except Exception as error:
            return _reason(error)
        return constraint.fault(self.check)


class _Constraint:
    """The fields of a request that constrain its output."""

    def __init__(self, outputs: Any = None, **formats: Any) -> None:
        self._outputs, self._formats = outputs, formats

    @classmethod
    def of(cls, request: Any) -> _Constraint:
        names = [name for name in ("response_format", "text") if hasattr(request, name)]
        formats = {name: getattr(request, name) for name in names}
        return cls(getattr(request, "structured_outputs", None), **formats)

    def is_same(self, other: _Constraint) -> bool:
        """Return whether the fields of both constraints are the very same objects."""
        mine, others = self._formats, other._formats
        return self._outputs is other._outputs and all(mine[n] is others[n] for n in mine)

    def set_in(self, request: Any) -> None:
        """Set the fields in ``request``. Fields that this constraint does not have become None."""
        request.structured_outputs = self._outputs
        for name in ("response_format", "text"):
            if hasattr(request, name):
                setattr(request, name, self._formats.get(name))

    def fault(self, check: Check) -> str:
        """Return the reason for which vLLM's ``check`` refuses the constraint, or ""."""
        from vllm.sampling_params import StructuredOutputsParams

        tag = getattr(self._outputs, "structural_tag", None)
        text = getattr(self._formats.get("text"), "format", None)
        schema = getattr(self._outputs, "json", None) or getattr(text, "schema_", None)
        if tag is not None:
            outputs = StructuredOutputsParams(structural_tag=tag)
        elif isinstance(schema, str | Mapping):
            outputs = StructuredOutputsParams(json=schema)
        else:
            return ""
        try:
            check(outputs)
        except Exception as error:
            return self._reason_of(tag, schema) or _reason(error)
        return ""

    @staticmethod
    def _reason_of(tag: str | None, schema: Any) -> str:
        """Return the reason for which xgrammar refuses the constraint, or "" if xgrammar accepts
        it.

        By default, vLLM tries xgrammar first, but reports only the reason of the compiler that it
        tried last.
        """
        import xgrammar

        try:
            if tag is not None:
                xgrammar.Grammar.from_structural_tag(tag)
            else:
                xgrammar.Grammar.from_json_schema(schema)
        except Exception as error:
            return _reason(error)
        return ""


def _reason(error: Exception) -> str:
    return _HEAD.sub("", str(error).strip()) or type(error).__name__


def _refusal(tool: Any, reason: str) -> str:
    schema = _schema_of(tool)
    place = ".".join(("parameters", *_place(schema, schema)))
    return (
        f"the schema of tool {_name_of(tool)!r}, which is strict, cannot constrain its arguments: "
        f"{place}: {reason}; correct the schema there, or send the tool without strict"
    )


def _place(schema: Any, root: Any, depth: int = 0) -> tuple[str, ...]:
    """Return the path to the innermost part of a schema that is refused by itself."""
    for way, part in _parts(schema) if depth < _DEEPEST else ():
        definitions = {n: root[n] for n in ("$defs", "definitions") if n in root}
        alone = {**definitions, **part} if isinstance(part, dict) else part
        if _is_refused(alone):
            return (*way, *_place(part, root, depth + 1))
    return ()


def _is_refused(schema: Any) -> bool:
    import xgrammar

    try:
        xgrammar.Grammar.from_json_schema(json.dumps(schema))
    except Exception:
        return True
    return False


def _parts(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the schemas directly inside a schema, each with its path."""
    if not isinstance(schema, dict):
        return
    for name in ("properties", "$defs", "definitions", "patternProperties"):
        if isinstance(inner := schema.get(name), dict):
            yield from (((name, key), part) for key, part in inner.items())
    for name in ("items", "additionalProperties", "not"):
        if name in schema:
            yield (name,), schema[name]
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(inner := schema.get(name), list):
            yield from (((name, str(at)), part) for at, part in enumerate(inner))


def _tell(name: str, reason: str) -> None:
    """Log that a tool is not constrained, the first time, and tell the caller of the request."""
    if (name, reason) not in _logged and len(_logged) < _MOST_LOGGED:
        _logged.add((name, reason))
        text = "tool %r: its arguments are not constrained, because its schema is not supported: %s"
        _LOG.warning(text, name, reason)
    if (caller := CALLER.get()) is not None:
        caller.left_out(f"schema:{name}")


# -- tools in the forms of Chat Completions and of the Responses API ---------------------------


def _function(tool: Any) -> Any:
    return getattr(tool, "function", tool)


def _name_of(tool: Any) -> str:
    """Return the name of a tool that is a function with a schema; "" for other tools."""
    function = _function(tool)
    has_schema = getattr(function, "parameters", None) is not None
    return str(getattr(function, "name", "") or "") if has_schema else ""


def _schema_of(tool: Any) -> Any:
    return _function(tool).parameters


def _is_strict(tool: Any) -> bool:
    return getattr(_function(tool), "strict", None) is True


def _without_schema(tool: Any) -> Any:
    """Return a copy of a tool that accepts any arguments."""
    if (function := getattr(tool, "function", None)) is None:
        return tool.model_copy(update={"parameters": _ANY})
    return tool.model_copy(update={"function": function.model_copy(update={"parameters": _ANY})})
