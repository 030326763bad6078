"""agentrt's tool form for models without a tool format: vLLM's tool parser ``held``.

The parser constrains outputs to the form's JSON schema, and reads them. `explain_tools` makes a
renderer explain the tools in plain messages, since the model's chat template does not show tools.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrt.executors.vllm._compat.tools import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    StructuredOutputsParams,
    ToolCall,
    ToolParser,
    ToolParserManager,
    get_function_tools,
    make_tool_call_id,
)
from agentrt.executors.vllm.entrypoints.families import TOOL_FORM
from agentrt.executors.vllm.entrypoints.tool_form import (
    CallPart,
    OutputReader,
    ToolForm,
    explained,
    read,
    tool_form,
)
from agentrt.files import parse_json

_OBJECT = {"type": "object"}


class _Form(StructuredOutputsParams):
    """The constraint for the tool form. Its class shows that a request is constrained already."""


class ToolFormParser(ToolParser):
    """Constrains outputs to the tool form, and reads them.

    From an output that was cut off it reads part of the answer, or a call with part of its
    arguments. A whole output is read as a stream of one piece.
    """

    supports_required_and_named = False
    needs_tools = True
    """Whether this parser finds calls only if the request has tools. vLLM's own parsers differ in
    this.
    """
    # Tells DelegatingParser to pass only deltas, to call finish_streaming at the end, and to take
    # the content from extract_tool_calls, and not from the raw output.
    engine_based_streaming = True

    def __init__(self, tokenizer: Any, tools: Sequence[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self._reader = OutputReader()

    def adjust_request(self, request: Any) -> Any:
        """Constrain the output to the tool form. A constraint of the answer becomes a part of the
        form.
        """
        if isinstance(request.structured_outputs, _Form):
            return request
        form = _form_of(request)
        if form is None:
            return request
        if form.may_answer:
            form = dataclasses.replace(
                form, answer=_schema_of(request.extract_structured_outputs())
            )
        request.structured_outputs = _Form(json=form.schema())
        if hasattr(request, "response_format"):
            request.response_format = None
        else:
            request.text = None
        choice = _plain(request.tool_choice)
        if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
            request.tool_choice = choice["mode"]  # vLLM parses no tool calls for allowed_tools
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        """Return the tool call of a whole output, or else the answer's text."""
        if _form_of(request) is None:
            return ExtractedToolCallInformation(
                tools_called=False, tool_calls=[], content=model_output
            )
        text, call = read(model_output)
        if call is None:
            return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=text)
        function = FunctionCall(name=call.name or "", arguments=call.arguments)
        tool_call = ToolCall(id=make_tool_call_id(), type="function", function=function)
        return ExtractedToolCallInformation(tools_called=True, tool_calls=[tool_call], content=None)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> Any:
        """Return a delta with what no later text can change; None if there is nothing new."""
        if _form_of(request) is None:
            return DeltaMessage(content=delta_text) if delta_text else None
        return _delta(self._reader.feed(delta_text))

    def finish_streaming(self) -> Any:
        """Return a delta with the text and calls that were held back until the output's end; None
        if nothing was held back.
        """
        return _delta(self._reader.finish())


def explain_tools(renderer: Any) -> Any:
    """Change one of vLLM's renderers so that it shows tools and calls in the tool form, and return
    the renderer.
    """
    whole, awaited = renderer.render_messages, renderer.render_messages_async

    def render_messages(messages: Iterable[Any], params: Any) -> Any:
        return whole(*_in_form(messages, params))

    async def render_messages_async(messages: Iterable[Any], params: Any) -> Any:
        return await awaited(*_in_form(messages, params))

    renderer.render_messages = render_messages
    renderer.render_messages_async = render_messages_async
    return renderer


def _in_form(messages: Iterable[Any], params: Any) -> tuple[list[Any], Any]:
    template = params.chat_template_kwargs
    tools = template.get("tools") or ()
    form = tool_form(tools, _plain(params.tool_choice), _answer_of(params.response_format))
    plain = explained([_plain(message) for message in messages], form)
    without = {**template, "tools": None}
    return plain, dataclasses.replace(params, chat_template_kwargs=without)


def _form_of(request: Any) -> ToolForm | None:
    if not request.tools:
        return None
    tools = [_plain(tool) for tool in get_function_tools(request.tools)]
    return tool_form(tools, _plain(request.tool_choice))


def _answer_of(response_format: Any) -> Mapping[str, Any] | None:
    """Return the JSON schema of the answer that a chat's ``response_format`` demands, or None."""
    if getattr(response_format, "type", None) == "json_object":
        return _OBJECT
    # `_plain` would copy a large schema, which takes time in the event loop.
    schema = getattr(getattr(response_format, "json_schema", None), "json_schema", None)
    return schema if isinstance(schema, Mapping) else None


def _schema_of(constraint: Any) -> Mapping[str, Any] | None:
    """Return a JSON schema for an answer that obeys ``constraint``; None without a constraint.

    Raises `ValueError` for a grammar or a structural tag, and for a JSON schema that is not an
    object.
    """
    if constraint is None:
        return None
    if constraint.json_object:
        return _OBJECT
    if constraint.json is not None:
        schema = constraint.json
        if isinstance(schema, str):
            schema = parse_json(schema)
        if not isinstance(schema, Mapping):
            raise ValueError(f"structured_outputs.json is {schema!r:.80}; use a JSON schema")
        return schema
    if constraint.choice is not None:
        return {"enum": constraint.choice}
    if constraint.regex is not None:
        return {"type": "string", "pattern": constraint.regex}
    raise ValueError(
        "this model has no tool format of its own, and takes tools together with a JSON schema, a "
        "choice or a regex, but not with a grammar or a structural tag: leave out the tools or "
        "the constraint"
    )


def _delta(parts: Iterable[str | CallPart]) -> Any:
    """Join parts of an output into one delta; None if there are none."""
    text, name, arguments = "", None, []
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            name = name or part.name
            arguments.append(part.arguments)
    if not text and not arguments:
        return None
    return DeltaMessage(content=text or None, tool_calls=_call(name, arguments))


def _call(name: str | None, arguments: list[str]) -> list[Any]:
    if not arguments:
        return []
    function = DeltaFunctionCall(name=name, arguments="".join(arguments))
    if name is None:
        return [DeltaToolCall(index=0, function=function)]
    return [DeltaToolCall(index=0, id=make_tool_call_id(), type="function", function=function)]


def _plain(value: Any) -> Any:
    """Convert a model of vLLM's protocol to its JSON form in OpenAI's API."""
    return value.model_dump(by_alias=True) if hasattr(value, "model_dump") else value


ToolParserManager.register_module(TOOL_FORM, module=ToolFormParser)
