"""agentrt's tool form: tools for a model whose training and chat template have no tools.

A system message explains the tools to the model. The model's output is constrained to a JSON object
that either names a tool, with arguments that obey the tool's schema, or has an answer. Calls and
results in the chat so far are shown in the same form, as plain messages, since such chat templates
support only roles and text.

`ToolForm` is the form of a request's outputs, and `OutputReader` reads an output while it is
streamed, whole, or cut off. A call that was cut off is never read as part of the answer's text. In
both, all values have the form of OpenAI's API. vLLM's tool parser ``held`` (`ToolFormParser`)
constrains outputs to the form and reads them, and `explain_tools` makes a renderer explain the
tools.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
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
from agentrt.files import parse_json

_ANSWER = "answer"
_OBJECT = {"type": "object"}
_REFERENCE = re.compile(r"^#/(\$defs|definitions)/")
_INSTRUCTING = ("system", "developer")

Json = Mapping[str, Any]


# -- the form --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolForm:
    """The outputs that a request allows.

    An output is a call of one of ``tools`` (functions with name, description and parameters), or,
    with ``may_answer``, an answer. The answer obeys the JSON schema ``answer``; if ``answer`` is
    None, it is text.
    """

    tools: tuple[Json, ...]
    may_answer: bool
    answer: Json | None = None

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema that the output must obey."""
        definitions: dict[str, Any] = {}
        forms = []
        for index, tool in enumerate(self.tools):
            arguments = _nested(_parameters(tool), f"tool{index}", definitions)
            forms.append(_closed({"name": {"const": tool["name"]}, "arguments": arguments}))
        if self.may_answer:
            answer = self.answer
            text = {"type": "string"}
            form = text if answer is None else _nested(answer, _ANSWER, definitions)
            forms.append(_closed({_ANSWER: form}))
        whole = forms[0] if len(forms) == 1 else {"anyOf": forms}
        return {**whole, "$defs": definitions} if definitions else whole

    def explanation(self) -> str:
        """Return the text that explains the tools to the model.

        The text shows each call written out in full and without blanks, exactly as the schema
        demands: small models do far better with such examples.
        """
        lines = ["You can call one of these tools:"]
        for tool in self.tools:
            arguments = _compact(_parameters(tool).get("properties", {}))
            about = tool.get("description") or ""
            lines.append(f"- {tool['name']}: {about} Arguments: {arguments}")
        lines.append("To call a tool, reply with JSON in this form:")
        for tool in self.tools:
            arguments = _example(_parameters(tool))
            lines.append(_compact({"name": tool["name"], "arguments": arguments}))
        if self.may_answer:
            example = _compact(
                {_ANSWER: "<text>" if self.answer is None else _example(self.answer)}
            )
            lines.append(f"When you know the answer, reply with JSON: {example}")
        return "\n".join(lines)


def tool_form(
    tools: Iterable[Json], choice: Any = "auto", answer: Json | None = None
) -> ToolForm | None:
    """Return the form of the outputs that a request's ``tools`` and its tool ``choice`` allow; None
    if they allow no call of a tool.

    Raises `ValueError` if a tool is not an object, or if ``choice`` names a tool that the request
    does not have, or is ``required`` although the request has no function.
    """
    functions = tuple(_functions(tools))
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        functions = tuple(_named(functions, tool) for tool in choice["tools"])
        choice = choice["mode"]
    if choice == "none" or (not functions and choice in (None, "auto")):
        return None
    if choice == "required" and not functions:
        raise ValueError(
            "tool_choice is 'required', but the request has no function among its tools; add a "
            "function, or use tool_choice 'auto'"
        )
    if choice in (None, "auto", "required"):
        return ToolForm(functions, choice != "required", answer)
    return ToolForm((_named(functions, choice),), may_answer=False)


def explained(messages: Iterable[Json], form: ToolForm | None) -> list[dict[str, Any]]:
    """Return the chat with an explanation of the tools, unless ``form`` is None.

    If the chat begins with a system or developer message, the explanation is added to the end of
    this message; otherwise it becomes a new system message before the chat. In the returned
    messages, tool calls and their results are rewritten as text.
    """
    plain = without_tools(messages)
    if form is None:
        return plain
    text = form.explanation()
    if plain and plain[0]["role"] in _INSTRUCTING:
        content = _joined([plain[0].get("content"), text], "\n\n")
        return [{**plain[0], "content": content}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def without_tools(messages: Iterable[Json]) -> list[dict[str, Any]]:
    """Return the messages with tool calls as the model's output, and with results as user messages.

    The results of one turn become a single message, since templates want alternating roles.
    """
    plain: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    in_results = False
    for message in messages:
        if message["role"] == "tool":
            content = _result(message, names)
            if in_results:
                content = _joined([plain.pop()["content"], content], "\n")
            plain.append({"role": "user", "content": content})
        else:
            calls = _calls_of(message)
            names |= {str(call["id"]): call["function"]["name"] for call in calls if call.get("id")}
            plain.append(_calls_as_text(message, calls) if calls else dict(message))
        in_results = message["role"] == "tool"
    return plain


def _calls_of(message: Json) -> list[Json]:
    """Return the tool calls of a message. Raises `ValueError` for a call without a function."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, Iterable):
        raise ValueError(f"tool_calls is {calls!r:.80}; use a list of calls")
    calls = [*calls]
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(
                f"tool_calls has the entry {call!r:.80}; a call has a function with a name"
            )
    return calls


def _calls_as_text(message: Json, calls: Iterable[Json]) -> dict[str, Any]:
    contents: list[Any] = [message["content"]] if message.get("content") else []
    for call in calls:
        function = call["function"]
        contents.append(_as_output(function["name"], function.get("arguments")))
    return {"role": message["role"], "content": _joined(contents, "\n")}


def _as_output(name: str, arguments: Any) -> str:
    """Return a tool call as the JSON text that a model generates for it.

    Arguments that are not valid JSON, such as the arguments of a call that was cut off, are
    unchanged. So are arguments with half of a surrogate pair, which UTF-8 does not have.
    """
    with contextlib.suppress(ValueError, RecursionError):
        if not isinstance(arguments, str) or not arguments:
            arguments = _compact(arguments or {})
        compact = _compact(json.loads(arguments))
        compact.encode()  # raises UnicodeEncodeError, which is a ValueError
        arguments = compact
    return f'{{"name":{_compact(name)},"arguments":{arguments}}}'


def _result(message: Json, names: Mapping[str, str]) -> Any:
    name = message.get("name") or names.get(str(message.get("tool_call_id") or ""))
    head = f"Result of {name}: " if name else "Result: "
    return _joined([head, message.get("content") or ""], "")


def _joined(contents: Sequence[Any], between: str) -> Any:
    """Join the contents of messages. The result is a text, or a list of parts if some parts are
    not text. vLLM refuses invalid parts.
    """
    parts = [part for content in contents for part in _parts(content)]
    if all(_is_text(part) for part in parts):
        return between.join("\n".join(p["text"] for p in _parts(content)) for content in contents)
    return parts


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type", "text") == "text"
        and isinstance(part.get("text"), str)
    )


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str) or content is None:
        return [{"type": "text", "text": content or ""}]
    if not isinstance(content, Iterable) or isinstance(content, Mapping):
        return [content]
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]


def _functions(tools: Iterable[Any]) -> Iterable[Json]:
    """Yield the name and the parameters of each tool that is a function. ``tools`` have the form of
    Chat Completions or of Responses.

    Raises `ValueError` for a tool that is not an object.
    """
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            raise ValueError(f"tools has the entry {tool!r:.80}; a tool is an object")
        if tool.get("type", "function") == "function" and function.get("name"):
            yield function


def _named(functions: Sequence[Json], choice: Any) -> Json:
    """Return the tool that ``choice`` names: a plain name, or an object as in OpenAI's APIs."""
    name = choice
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
    for function in functions:
        if function["name"] == name:
            return function
    names = ", ".join(["auto", "required", "none", *(function["name"] for function in functions)])
    raise ValueError(f"unknown tool in tool_choice: {name!r}; use one of {names}")


def _parameters(tool: Json) -> Json:
    """Return the schema of a tool's arguments; by default an object without properties."""
    parameters = tool.get("parameters")
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return parameters if "type" in parameters else {"type": "object", **parameters}


def _nested(schema: Json, owner: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that can be nested inside another.

    References count from the root of a schema, so the schema's own definitions move to
    ``definitions``, the definitions of the root. Their names begin with ``owner``, to be unique.
    Raises `ValueError` for a schema that is nested too deeply or has invalid definitions.
    """
    try:
        for key in ("$defs", "definitions"):
            own_definitions = schema.get(key, {})
            if not isinstance(own_definitions, Mapping):
                raise ValueError(f"a JSON schema has {key} {own_definitions!r:.80}; use an object")
            for name, part in own_definitions.items():
                definitions[f"{owner}.{name}"] = _renamed(part, owner)
        own = {key: part for key, part in schema.items() if key not in ("$defs", "definitions")}
        nested: dict[str, Any] = _renamed(own, owner)
        if '"$ref": "#"' in json.dumps(schema):
            definitions[owner] = nested
    except RecursionError as error:
        raise ValueError("a JSON schema is nested too deeply; use fewer levels") from error
    return nested


def _renamed(part: Any, owner: str) -> Any:
    """Return a part of a schema with its references changed to the new names of the definitions,
    which begin with ``owner``.
    """
    if isinstance(part, list):
        return [_renamed(item, owner) for item in part]
    if not isinstance(part, Mapping):
        return part
    renamed = {key: _renamed(value, owner) for key, value in part.items()}
    reference = part.get("$ref")
    if reference == "#":
        renamed["$ref"] = f"#/$defs/{owner}"
    elif isinstance(reference, str):
        renamed["$ref"] = _REFERENCE.sub(f"#/$defs/{owner}.", reference)
    return renamed


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _example(schema: Json) -> Any:
    """Return an example of an object: each property has its description instead of a value."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {} if schema.get("type") == "object" else "<value>"
    return {name: f"<{_about(part)}>" for name, part in properties.items()}


def _about(schema: Any) -> str:
    if not isinstance(schema, dict):  # `true`, or no schema at all, which vLLM will refuse
        return "value"
    if isinstance(schema.get("enum"), list):
        return "|".join(map(str, schema["enum"]))
    return str(schema.get("description") or schema.get("type") or "value")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# -- outputs -----------------------------------------------------------------------------


_ANSWER_HEAD = re.compile(r'\s*\{\s*"answer"\s*:\s*(?=\S)')
_CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\S)')
_ANSWER_BEGINS, _CALL_BEGINS = '{"answer":', '{"name":'
# Complete characters of a JSON string: never a part of an escape or of a surrogate pair. The first
# half of a pair is a character by itself if something else than the second half follows.
_CHARACTERS = re.compile(
    r'(?:[^"\\]'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}"
    r"(?:\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])[0-9a-fA-F]{4}))"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r"|\\[^u])*"
)
_MAYBE_THE_END = re.compile(r"[\s}]*\Z")


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call.

    The first piece has the tool's ``name``. ``arguments`` is a part of JSON text; all pieces
    together are the whole text.
    """

    name: str | None
    arguments: str


class _InsideCall(Enum):
    HEAD = "head"
    TEXT = "text"  # the answer, a JSON string
    VALUE = "value"  # the answer, any other JSON value
    ARGUMENTS = "arguments"
    DONE = "done"


class OutputReader:
    """A reader that turns an output's pieces into pieces of the answer's text (`str`) or of a tool
    call.
    """

    def __init__(self) -> None:
        self._inside = _InsideCall.HEAD
        self._whole = ""
        self._rest = ""

    def feed(self, piece: str) -> Iterator[str | CallPart]:
        """Take the next piece of the output, and yield the parts that no later piece can change."""
        self._whole += piece
        self._rest += piece
        if self._inside is _InsideCall.HEAD:
            yield from self._head()
        if self._inside is _InsideCall.TEXT:
            yield from self._text()
        elif self._inside in (_InsideCall.VALUE, _InsideCall.ARGUMENTS):
            end = _MAYBE_THE_END.search(self._rest)
            assert end is not None
            yield from self._json(end.start())

    def finish(self) -> Iterator[str | CallPart]:
        """End the output, complete or cut off, and yield the parts that were held back."""
        if self._inside in (_InsideCall.VALUE, _InsideCall.ARGUMENTS):
            # In a complete output, the last brace closes the form, and not the value in it.
            yield from self._json(self._rest.rfind("}") if self._is_whole() else len(self._rest))
        elif self._inside is _InsideCall.HEAD and self._rest and not self._is_begun():
            yield self._rest
        self._inside, self._rest = _InsideCall.DONE, ""

    def _is_whole(self) -> bool:
        try:
            json.loads(self._whole, strict=False)
        except (ValueError, RecursionError):
            return False
        return True

    def _is_begun(self) -> bool:
        """Return whether the output was cut off in the beginning of the form: before the value of
        an answer, or before the arguments of a call.
        """
        begun = "".join(self._rest.split())
        called = begun.startswith(_CALL_BEGINS) and not self._is_whole()
        return called or any(head.startswith(begun) for head in (_ANSWER_BEGINS, _CALL_BEGINS))

    def _head(self) -> Iterator[CallPart]:
        call, answer = _CALL_HEAD.match(self._rest), _ANSWER_HEAD.match(self._rest)
        if call is not None:
            self._rest = self._rest[call.end() :]
            self._inside = _InsideCall.ARGUMENTS
            yield CallPart(json.loads(call[1]), "")
        elif answer is not None:
            self._rest = self._rest[answer.end() :]
            self._inside = _InsideCall.VALUE
            if self._rest.startswith('"'):
                self._rest = self._rest[1:]
                self._inside = _InsideCall.TEXT

    def _text(self) -> Iterator[str]:
        sure = _CHARACTERS.match(self._rest)
        assert sure is not None
        self._rest = self._rest[sure.end() :]
        if self._rest.startswith('"'):
            self._inside = _InsideCall.DONE
        if sure[0]:
            text = json.loads(f'"{sure[0]}"', strict=False)
            yield text.encode("utf-8", "replace").decode()  # it may have halves of surrogate pairs

    def _json(self, end: int) -> Iterator[str | CallPart]:
        piece, self._rest = self._rest[:end], self._rest[end:]
        if piece:
            yield CallPart(None, piece) if self._inside is _InsideCall.ARGUMENTS else piece


def read(text: str) -> tuple[str, CallPart | None]:
    """Return the answer's text and the tool call (or None) of an output, which may be cut off."""
    reader = OutputReader()
    parts = [*reader.feed(text), *reader.finish()]
    calls = [part for part in parts if isinstance(part, CallPart)]
    answer = "".join(part for part in parts if isinstance(part, str))
    if not calls:
        return answer, None
    return answer, CallPart(calls[0].name, "".join(call.arguments for call in calls))


# -- vLLM's tool parser ----------------------------------------------------------------------


class _ToolFormConstraint(StructuredOutputsParams):
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
        """Constrain the output to the tool form if the request has tools. If the model may answer
        without a call, a constraint of the answer becomes a part of the form.
        """
        if isinstance(request.structured_outputs, _ToolFormConstraint):
            return request
        form = _form_of(request)
        if form is None:
            return request
        if form.may_answer:
            form = dataclasses.replace(
                form, answer=_schema_of(request.extract_structured_outputs())
            )
        request.structured_outputs = _ToolFormConstraint(json=form.schema())
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
