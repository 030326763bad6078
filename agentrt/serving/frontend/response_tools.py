"""Convert the tools of the Responses API into functions, which every model can call.

Custom tools, tools of a namespace, and the tools that a client runs itself (``local_shell``,
``shell``, ``apply_patch``, ``tool_search``) become functions with plain names. `Carried` records
which function stands for which tool, so that the calls in an answer can be converted back to the
client's form. Tools that only OpenAI's servers can run are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from agentrt.serving.frontend.left_out import LeftOut

Json = dict[str, Any]

_MOST_INNER = 1025
"""Maximum number of tools that are read from a namespace: one more than the limit of a request, so
that the later check of the limit refuses the request.
"""
_MODES = ("auto", "none", "required")
INPUT = "input"
"""The name of the only argument of a function that stands for a custom tool."""
_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that clients run and name by its type alone.

    ``description``, ``properties`` and ``required`` define the function that the model sees. In
    the item of a call, the field called ``holder`` has the arguments, together with the values of
    ``constant``, which the model does not see.
    """

    description: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    holder: str
    constant: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> Json:
        """Return the JSON schema of the function's arguments."""
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }


CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "local_shell": ClientTool(
        "Run a command on the user's machine, and get its output.",
        {"command": _TEXTS, "working_directory": _TEXT, "timeout_ms": _NUMBER},
        ("command",),
        "action",
        {"type": "exec", "env": {}},
    ),
    "shell": ClientTool(
        "Run shell commands on the user's machine, and get their output.",
        {"commands": _TEXTS, "timeout_ms": _NUMBER, "max_output_length": _NUMBER},
        ("commands",),
        "action",
    ),
    "apply_patch": ClientTool(
        "Create, update or delete a file. A diff is in the V4A format.",
        {
            "type": {"enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": _TEXT,
        },
        ("type", "path"),
        "operation",
    ),
    "tool_search": ClientTool(
        "Search for tools that are not listed here, and load them.",
        {"query": _TEXT},
        ("query",),
        "arguments",
    ),
}


@dataclass(frozen=True, slots=True)
class Carrier:
    """The client's tool that the model sees as a function.

    ``kind`` is the type of the tool: "function" for a function in a namespace, "custom", or a key
    of `CLIENT_TOOLS`.
    """

    kind: str
    name: str
    namespace: str | None = None


@dataclass(slots=True)
class Carried:
    """The tools of a request, converted to functions.

    ``functions`` are the functions for the model, and ``names`` their names. ``carriers`` has, by
    function name, the tool that a function stands for, except for plain functions. ``own`` are the
    tools that vLLM runs itself.
    """

    functions: list[Json] = field(default_factory=list)
    own: list[Json] = field(default_factory=list)
    carriers: dict[str, Carrier] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def add(self, function: Json, carrier: Carrier | None = None) -> None:
        """Add a function, unless there is already a function with its name."""
        if function["name"] in self.names:
            return
        self.functions.append(function)
        self.names.add(function["name"])
        if carrier is not None:
            self.carriers[function["name"]] = carrier

    def load(self, tools: Sequence[Any], left_out: LeftOut, *, deferred: bool) -> None:
        """Add tools from an item of the history.

        With ``deferred``, the tools are not shown at the front of the prompt.
        """
        inner = Carried()
        for tool in tools:
            _carry(tool, inner, left_out, frozenset())
        known = {function["name"]: function for function in self.functions}
        for function in inner.functions:
            name = function["name"]
            function.pop("defer_loading", None)
            if deferred:
                function["defer_loading"] = True
            elif name in known:
                known[name].pop("defer_loading", None)
            self.add(function, inner.carriers.get(name))


def flat_name(name: str, namespace: object = None) -> str:
    """Return the function name of a tool, in the form that vLLM uses: ``NAMESPACE__NAME``, or
    ``NAME`` without a namespace.
    """
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def carried_tools(
    tools: Sequence[Any], left_out: LeftOut, kept: frozenset[str] = frozenset()
) -> Carried:
    """Convert the ``tools`` of a request to functions.

    Tools that cannot be used are added to ``left_out``. Tools of the types ``kept`` are passed on
    unchanged, because vLLM runs them itself.
    """
    carried = Carried()
    searches = any(
        _kind(tool) == "tool_search" and tool.get("execution") == "client" for tool in tools
    )
    for tool in tools:
        _carry(tool, carried, left_out, kept)
    if not searches:  # without a search no model could load a deferred tool
        for function in carried.functions:
            function.pop("defer_loading", None)
    return carried


def _kind(tool: object) -> str | None:
    """Return the type of a tool; None if the value is not an object or its type not a string."""
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    return kind if isinstance(kind, str) else None


def _carry(tool: Any, carried: Carried, left_out: LeftOut, kept: frozenset[str]) -> None:
    kind = _kind(tool)
    if kind in kept or (kind == "function" and not _has_name(tool)):
        carried.own.append(dict(tool))  # vLLM refuses a function without a name
    elif kind == "function":
        carried.add(_function(tool))
    elif kind == "custom" and _has_name(tool):
        carried.add(_custom(tool), Carrier("custom", tool["name"]))
    elif kind == "namespace" and _has_name(tool) and isinstance(tool.get("tools"), list):
        for inner in tool["tools"][:_MOST_INNER]:
            _carry_namespaced(inner, tool["name"], carried, left_out)
    elif isinstance(kind, str) and kind in CLIENT_TOOLS and _is_of_client(tool):
        carried.add(_client_function(kind, tool), Carrier(kind, kind))
    else:
        left_out.add(kind)


def _carry_namespaced(tool: Any, namespace: str, carried: Carried, left_out: LeftOut) -> None:
    kind = _kind(tool)
    if kind not in ("function", "custom") or not _has_name(tool):
        left_out.add(f"{namespace}.{kind}")
        return
    function = _function(tool) if kind == "function" else _custom(tool)
    carrier = Carrier(str(kind), tool["name"], namespace)
    carried.add({**function, "name": flat_name(tool["name"], namespace)}, carrier)


def _has_name(tool: Mapping[str, Any]) -> bool:
    return isinstance(tool.get("name"), str) and bool(tool["name"])


def _is_of_client(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool is run by the client, and not by OpenAI's servers."""
    if tool["type"] == "tool_search":
        return tool.get("execution") == "client"
    environment = tool.get("environment")
    return not isinstance(environment, Mapping) or environment.get("type") == "local"


def _function(tool: Mapping[str, Any]) -> Json:
    """Return a function with all fields that vLLM requires."""
    return {"strict": None, "parameters": None, **tool}


def _custom(tool: Mapping[str, Any]) -> Json:
    """Return the function that stands for a custom tool; its only argument is the tool's input.

    A grammar of the tool becomes part of the description.
    """
    description = str(tool.get("description") or "")
    form = tool.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        syntax, definition = form.get("syntax"), form.get("definition")
        described = f"The input must follow this grammar ({syntax}):\n{definition}"
        description = f"{description}\n\n{described}".strip()
    about_input = {"type": "string", "description": "The whole input of this tool, as plain text."}
    function = {
        "type": "function",
        "name": tool["name"],
        "description": description,
        "strict": None,
        "parameters": {
            "type": "object",
            "properties": {INPUT: about_input},
            "required": [INPUT],
            "additionalProperties": False,
        },
    }
    return function | ({"defer_loading": True} if tool.get("defer_loading") else {})


def _client_function(kind: str, tool: Mapping[str, Any]) -> Json:
    own = CLIENT_TOOLS[kind]
    parameters = tool.get("parameters") if kind == "tool_search" else None
    return {
        "type": "function",
        "name": kind,
        "description": tool.get("description") or own.description,
        "strict": None,
        "parameters": parameters if isinstance(parameters, dict) else own.parameters(),
    }


# -- which tool is to be called ------------------------------------------------------------


def carried_choice(choice: Any, carried: Carried, left_out: LeftOut) -> tuple[Any, set[str] | None]:
    """Convert the ``tool_choice`` of a request.

    Returns the choice for the functions of ``carried``, and the names of the functions that may be
    called, or None if all may be called.
    """
    if choice == "required" and not (carried.functions or carried.own):
        left_out.add("tool_choice")
        return "auto", None
    if choice is None:
        return "auto", None
    if isinstance(choice, str) and choice not in _MODES:
        left_out.add(f"tool_choice.{choice}")
        return "auto", None
    if not isinstance(choice, Mapping):
        return choice, None
    kind = choice.get("type")
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        chosen = [_chosen(tool, carried) for tool in choice["tools"]]
        names = {name for name in chosen if name is not None}
        for tool, name in zip(choice["tools"], chosen, strict=True):
            if name is None:
                left_out.add(_kind(tool))
        mode = choice.get("mode", "auto")
        if mode not in ("auto", "required"):
            left_out.add(f"tool_choice.{mode}")
            mode = "auto"
        return (mode if names or mode != "required" else "auto"), names
    name = _chosen(choice, carried)
    if name is not None:
        return {"type": "function", "name": name}, None
    if kind in ("function", "custom"):  # an unknown tool, for vLLM to refuse
        return {**choice, "type": "function"}, None
    left_out.add(f"tool_choice.{kind}")
    return "auto", None


def _chosen(choice: Any, carried: Carried) -> str | None:
    """Return the name of the function that a choice refers to; None for an unknown tool."""
    kind = _kind(choice)
    if kind in ("function", "custom"):
        name = choice.get("name")
        if not isinstance(name, str):
            return None
        flat = flat_name(name, choice.get("namespace"))
        if flat in carried.names:
            return flat
        local = [
            function_name
            for function_name, carrier in carried.carriers.items()
            if carrier.name == name
        ]
        return local[0] if len(local) == 1 else None
    carrier = carried.carriers.get(str(kind))
    return str(kind) if carrier is not None and carrier.kind == kind else None


# -- calls, in an answer and in a history --------------------------------------------------


def custom_arguments(text: object) -> str:
    """Return the function arguments (JSON) that stand for a custom tool's input ``text``."""
    return json.dumps({INPUT: text if isinstance(text, str) else ""}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Return a custom tool's input from the JSON arguments of its function.

    The arguments may be incomplete. A text that does not begin with ``{`` is the input itself.
    """
    value = partial_json(arguments)
    text = value.get(INPUT) if isinstance(value, dict) else None
    if isinstance(text, str):
        return text
    return "" if arguments.lstrip().startswith("{") else arguments


_INPUT_HEAD = re.compile(r'\s*\{\s*"' + INPUT + r'"\s*:\s*"')
"""The arguments of a function that stands for a custom tool, up to the beginning of the input."""
_WHOLE_CHARACTERS = re.compile(
    r"""(?: [^"\\]
        | \\ [^u]
        | \\u [dD][89abAB][0-9a-fA-F]{2} \\u [0-9a-fA-F]{4}
        | \\u (?! [dD][89abAB]) [0-9a-fA-F]{4}
    )*""",
    re.VERBOSE,
)
"""Characters inside a JSON string. Both halves of a surrogate pair are one character."""


class InputReader:
    """A reader of a custom tool's input in a stream of the JSON arguments of its function.

    `custom_input` reads the same input from all arguments at once. Reading them again for each
    piece would take quadratic time. ``text`` is the input that was read so far. The reader stops
    where the arguments do not have the usual form.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._left = ""
        self._is_over = self._is_plain = self._is_inside = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def feed(self, piece: str) -> str:
        """Return the part of the input that the next piece of the arguments adds."""
        if self._is_over:
            return ""
        self._left += piece
        if not self._is_inside and not self._begin():
            return ""
        part, self._left = self._left, ""
        if not self._is_plain:
            characters = _WHOLE_CHARACTERS.match(part)
            assert characters is not None  # the pattern also matches no characters
            part, self._left = characters[0], part[characters.end() :]
            self._is_over = self._left.startswith('"')
            try:
                part = from_json(f'"{part}"')
            except ValueError:
                self._is_over, part = True, ""
        self._parts.append(part)
        return part

    def _begin(self) -> bool:
        """Return whether the input has begun, and drop what comes before it."""
        if (head := _INPUT_HEAD.match(self._left)) is not None:
            self._left = self._left[head.end() :]
            self._is_inside = True
        elif self._left.strip() and not self._left.lstrip().startswith("{"):
            self._is_inside = self._is_plain = True
        else:
            self._is_over = self._left.count('"') > 2  # another argument comes first
        return self._is_inside


def partial_json(text: str) -> Any:
    """Return the value of a JSON text, which may be incomplete; None for other text."""
    try:
        return from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None


def client_arguments(kind: str, item: Mapping[str, Any]) -> str:
    """Convert ``item``, a call of a client's tool of this ``kind``, to the JSON arguments of the
    function that represents the tool for the model.
    """
    own = CLIENT_TOOLS[kind]
    value = item.get(own.holder)
    if isinstance(value, Mapping):
        constant = own.constant
        known = {
            name: part
            for name, part in value.items()
            if part is not None and (name not in constant or constant[name] != part)
        }
        return json.dumps(known, ensure_ascii=False)
    return value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)


def restored_call(item: Mapping[str, Any], carriers: Mapping[str, Carrier]) -> Json:
    """Convert a function call of an answer to a call of the client's own tool."""
    carrier = carriers.get(str(item.get("name")))
    if item.get("type") != "function_call" or carrier is None:
        return dict(item)
    arguments = str(item.get("arguments") or "")
    shared = {name: item[name] for name in ("id", "call_id", "status") if name in item}
    namespace = {} if carrier.namespace is None else {"namespace": carrier.namespace}
    if carrier.kind == "function":
        return {**item, "name": carrier.name, **namespace}
    if carrier.kind == "custom":
        return {
            **shared,
            "type": "custom_tool_call",
            "name": carrier.name,
            **namespace,
            "input": custom_input(arguments),
        }
    own = CLIENT_TOOLS[carrier.kind]
    value = partial_json(arguments)
    fields = value if isinstance(value, dict) else {}
    call = {**shared, "type": f"{carrier.kind}_call", own.holder: {**own.constant, **fields}}
    return call | ({"execution": "client"} if carrier.kind == "tool_search" else {})


def loaded_tools(tools: Iterable[Any], describe: Callable[[Json], str]) -> list[str]:
    """Return a description of each function that a tool search has loaded."""
    inner = Carried()
    unused = LeftOut()
    for tool in tools:
        _carry(tool, inner, unused, frozenset())
    return [describe(function) for function in inner.functions]
