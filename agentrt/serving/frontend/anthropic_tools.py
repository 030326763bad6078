"""Convert the tools of a request to Anthropic's Messages API into ordinary tools with a schema.

Anthropic's API has tools that are named by their type alone, without a schema. Some of them are run
by the client (a shell, an editor, a memory, a screen). Their schemas are published, so this module
adds each schema, and the model can call these tools. Others are run by Anthropic's servers (search,
fetch, code execution, MCP toolsets). Such a tool is left out, unless this server has a tool in its
place. This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ToolFields = Mapping[str, Any]

KINDS = ("web_search", "web_fetch", "code_execution")
"""Kinds of Anthropic's server tools that a tool of this server can replace."""
_VERSION = re.compile(r"_\d{8}$")
_SEARCHES = ("tool_search_tool_regex", "tool_search_tool_bm25")
_CHOICES = ("auto", "any", "tool", "none")
_KEPT = ("defer_loading", "strict", "cache_control")
GONE: Any = object()
"""A marker in place of a field's value: the field is removed from the request."""


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_NUMBERS = {"type": "array", "items": {"type": "integer"}}
_POINT = {**_NUMBERS, "description": "x and y, in pixels from the upper left corner"}
_RANGE = {**_NUMBERS, "description": "The first and the last line to show; -1 is the end"}
_PATH = _string("The path of a file or folder")
_LINE = {"type": "integer", "description": "Insert after this line; 0 is the start of the file"}

_BASH = _object(
    [],
    command=_string("The command to run"),
    restart={"type": "boolean", "description": "Restart the shell, instead of running a command"},
)
_EDITS = ["view", "create", "str_replace", "insert"]
_EDIT_FIELDS: dict[str, Any] = {
    "path": _PATH,
    "file_text": _string("For create: the text of the new file"),
    "old_str": _string("For str_replace: the text to replace; it must occur exactly once"),
    "new_str": _string("For str_replace: the text to put in its place"),
    "insert_line": _LINE,
    "insert_text": _string("For insert: the text to insert"),
    "view_range": _RANGE,
}
_ACTIONS = [
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click"),
    *("middle_click", "double_click", "screenshot", "cursor_position"),
]
_LATER_ACTIONS = [
    *("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click"),
]


def _bash(kind: str, tool: ToolFields) -> tuple[str, dict[str, Any]]:
    return "Run commands in a shell, which stays open between calls.", _BASH


def _editor(kind: str, tool: ToolFields) -> tuple[str, dict[str, Any]]:
    is_old = kind[-8:] < "20250429"
    fields = dict(_EDIT_FIELDS)
    if is_old:
        fields["new_str"] = _string("For str_replace and insert: the new text")
        del fields["insert_text"]
    command = {"type": "string", "enum": [*_EDITS, "undo_edit"] if is_old else _EDITS}
    schema = _object(["command", "path"], command=command, **fields)
    return "View, create and edit text files.", schema


def _memory(kind: str, tool: ToolFields) -> tuple[str, dict[str, Any]]:
    command = {"type": "string", "enum": [*_EDITS, "delete", "rename"]}
    renamed = {
        "old_path": _string("For rename: the present path"),
        "new_path": _string("For rename: the new path"),
    }
    schema = _object(["command"], command=command, **_EDIT_FIELDS, **renamed)
    return "Keep notes for later in files below /memories. View that folder first.", schema


def _computer(kind: str, tool: ToolFields) -> tuple[str, dict[str, Any]]:
    actions = list(_ACTIONS)
    if kind[-8:] > "20241022":
        actions += _LATER_ACTIONS
    if tool.get("enable_zoom"):
        actions.append("zoom")
    directions = ["up", "down", "left", "right"]
    schema = _object(
        ["action"],
        action={"type": "string", "enum": actions},
        coordinate=_POINT,
        start_coordinate=_POINT,
        text=_string("The text to type, or the keys to press, such as ctrl+s"),
        scroll_direction={"type": "string", "enum": directions},
        scroll_amount={"type": "integer"},
        duration={"type": "number", "description": "For wait and hold_key: the seconds"},
        region={**_NUMBERS, "description": "For zoom: the region to show, as x0, y0, x1, y1"},
    )
    width, height = tool.get("display_width_px"), tool.get("display_height_px")
    return f"Use a screen of {width} x {height} pixels, its keyboard and its mouse.", schema


_OF_CLIENTS: Mapping[str, tuple[str, Callable[[str, ToolFields], tuple[str, dict[str, Any]]]]] = {
    "bash": ("bash", _bash),
    "text_editor": ("str_replace_based_edit_tool", _editor),
    "memory": ("memory", _memory),
    "computer": ("computer", _computer),
}
"""Tools that the client runs, by type: the usual name, and a function that returns the description
and the schema.
"""


@dataclass(slots=True)
class Tools:
    """The converted tools of a request.

    ``changed`` has the new values of the request's fields. ``served`` has the kinds of the tools
    that this server runs, by name. ``names`` are the names of all tools that the model can call,
    and ``left_out`` the names of the tools that it cannot call.
    """

    changed: dict[str, Any] = field(default_factory=dict)
    served: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)

    def define(
        self,
        tool: ToolFields,
        offered: Mapping[str, ToolFields],
        leave_out: Callable[[str], None],
    ) -> ToolFields | None:
        """Return a tool in the form that vLLM accepts, or None if this server cannot offer it.

        ``offered`` has this server's replacements for Anthropic's server tools, by kind. If this
        server cannot offer the tool, ``leave_out`` is called with the tool's type.
        """
        kind, name = tool.get("type"), tool.get("name")
        if not isinstance(kind, str) or kind == "custom" or not _is_known_by_type(tool):
            self.names.add(str(name))
            return tool
        family = _VERSION.sub("", kind)
        kept = {field: tool[field] for field in _KEPT if field in tool}
        if family in _OF_CLIENTS:
            usual, describe = _OF_CLIENTS[family]
            description, schema = describe(kind, tool)
            name = str(name or usual)
            self.names.add(name)
            return {"name": name, "description": description, "input_schema": schema, **kept}
        name = str(name or tool.get("mcp_server_name") or family)
        if family in offered:
            self.names.add(name)
            self.served[name] = family
            return {**offered[family], "name": name, **kept}
        self.left_out.add(name)
        leave_out(kind)
        return None


def _is_known_by_type(tool: ToolFields) -> bool:
    """Return whether a tool has no schema of its own.

    A tool in OpenAI's format is the client's mistake, and vLLM refuses it.
    """
    return "input_schema" not in tool and "function" not in tool


def read_tools(
    body: Mapping[str, Any], offered: Mapping[str, ToolFields], leave_out: Callable[[str], None]
) -> Tools:
    """Return the converted tools of a request, with the new values of the request's fields
    ``tools`` and ``tool_choice`` if they change.

    ``offered`` has this server's replacements for Anthropic's server tools, by kind.
    ``leave_out`` is called with the type of each tool that is removed. It is also called with a
    text that begins with ``tool_choice:`` if the request's choice has an unknown type, or names a
    tool that was removed while other tools stay.
    """
    tools, listed = Tools(), body.get("tools")
    if _is_unknown_choice(body.get("tool_choice")):
        leave_out(f"tool_choice:{body['tool_choice']['type']}")
        tools.changed["tool_choice"] = {"type": "auto"} if listed else GONE
    if not isinstance(listed, list):
        return tools
    if all(map(_is_ordinary, listed)):
        tools.names = {str(tool.get("name")) for tool in listed}
        return tools
    kept: list[Any] = []
    for tool in listed:
        known = tools.define(tool, offered, leave_out) if isinstance(tool, dict) else tool
        if known is not None:
            kept.append(known)
    if any(_VERSION.sub("", str(_type(tool))) in _SEARCHES for tool in listed):
        # The search for deferred tools is not available here, so show these tools at once.
        kept = [_at_once(tool) if is_deferred(tool) else tool for tool in kept]
    tools.changed["tools"] = kept or GONE
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if not kept:
            tools.changed["tool_choice"] = GONE
        elif choice.get("type") == "tool" and str(choice.get("name")) in (
            tools.left_out - tools.names
        ):
            leave_out(f"tool_choice:{choice['name']}")
            tools.changed["tool_choice"] = {"type": "auto"}
    return tools


def _is_unknown_choice(choice: Any) -> bool:
    """Return whether a ``tool_choice`` is an object of a type that vLLM would refuse."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    return isinstance(kind, str) and kind not in _CHOICES


def server_kinds(body: Mapping[str, Any]) -> set[str]:
    """Return the kinds of Anthropic's server tools in a request, such as ``web_search``."""
    listed = body.get("tools")
    types = map(_type, listed if isinstance(listed, list) else ())
    return {_VERSION.sub("", kind) for kind in types if isinstance(kind, str)}.intersection(KINDS)


def is_deferred(tool: Any) -> bool:
    """Return whether a tool is shown to the model only after a tool search has loaded it."""
    return isinstance(tool, dict) and bool(tool.get("defer_loading"))


def _at_once(tool: ToolFields) -> ToolFields:
    return {name: value for name, value in tool.items() if name != "defer_loading"}


def _is_ordinary(tool: Any) -> bool:
    return isinstance(tool, dict) and ("input_schema" in tool or not tool.get("type"))


def _type(tool: Any) -> Any:
    return tool.get("type") if isinstance(tool, dict) else None
