"""Convert a request of the Responses API into a form that every model can answer, and prepare the
conversion of the answer back into the client's form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.serving.error_responses import ApiError
from agentrt.serving.frontend.left_out import LeftOut
from agentrt.serving.frontend.response_answers import AnswerEdit
from agentrt.serving.frontend.response_items import ItemReader
from agentrt.serving.frontend.response_tools import carried_choice, carried_tools

_INCLUDED = frozenset(
    [
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
    ]
)
"""The values of ``include`` that vLLM knows. It refuses all other values."""
_TIERS = frozenset(["auto", "default", "flex", "scale", "priority"])
"""The values of ``service_tier`` that vLLM knows. None of them has an effect here."""
TOOL_SERVER_TYPES = frozenset(["code_interpreter", "container", "mcp", "web_search_preview"])
"""Types of tools that vLLM itself runs if it has a tool server."""

_SHOWN: Mapping[str, Any] = {"tools": [], "tool_choice": "auto", "previous_response_id": None}
"""Fields of a request that its answer repeats, with their default values."""

_LEVELS: Mapping[tuple[str, str], frozenset[str]] = {
    ("reasoning", "effort"): frozenset(
        ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    ),
    ("reasoning", "summary"): frozenset(["auto", "concise", "detailed"]),
    ("reasoning", "generate_summary"): frozenset(["auto", "concise", "detailed"]),
    ("text", "verbosity"): frozenset(["low", "medium", "high"]),
}
"""The values of nested fields that vLLM knows. It refuses all other values."""
_TRUNCATIONS = frozenset(["auto", "disabled"])
"""The values of ``truncation`` that vLLM knows."""

Items = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Model:
    """The properties of a model that the conversion of a request depends on.

    ``harmony`` says whether its chats are in the harmony format. ``media`` are the types of parts
    besides text that it accepts, and ``own_tools`` the types of tools that vLLM runs itself.
    """

    harmony: bool = False
    media: frozenset[str] = frozenset()
    own_tools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready for vLLM.

    ``fields`` is the body for vLLM. ``edit`` converts the answer, or is None if the answer needs no
    conversion. ``before`` are the items of the chat that the request continues.
    """

    fields: Mapping[str, Any]
    edit: AnswerEdit | None = None
    before: Items = ()


def prepare(
    fields: Mapping[str, Any],
    model: Model,
    left_out: LeftOut,
    *,
    before: Items | None = None,
    item_of: Callable[[str], Mapping[str, Any] | None] = lambda name: None,
    compacts: bool = False,
) -> Prepared:
    """Prepare a request of the Responses API for vLLM.

    ``before`` are the items of the chat that the request continues; None if the request continues
    no chat, or if the items are unknown.
    ``item_of`` returns a stored item by its id. With ``compacts``, the answer gets the form of
    ``/v1/responses/compact``. Parts that cannot be used are added to ``left_out``.

    Raises `ApiError` if the request has input items and no ``instructions``, and this server can
    read none of the chat's items.
    """
    own_input = fields.get("input")
    tools = fields.get("tools")
    is_plain = isinstance(own_input, str) and before is None
    if is_plain and not tools and fields.get("tool_choice", "auto") in ("auto", "none"):
        known = _known_values(fields, left_out)
        return Prepared({**fields, **known} if known else fields)
    changed: dict[str, Any] = {}
    carried = carried_tools(tools if isinstance(tools, list) else (), left_out, model.own_tools)
    reader = ItemReader(carried, left_out, item_of, model.media, strict_calls=model.harmony)
    items = _items(own_input)
    if items is not None:
        changed["input"] = chat = reader.read([*(before or ()), *items])
        if not chat and items and not fields.get("instructions"):
            types = ", ".join(left_out.types) or "messages without content"
            text = f"input has only items that this server cannot read: {types}; add a message"
            raise ApiError(400, text, param="input", code="invalid_value")
    if before is not None:
        changed["previous_response_id"] = None
    functions = carried.functions
    if model.harmony:  # harmony lists all tools at the front, so deferred tools are not shown yet
        functions = [function for function in functions if not function.get("defer_loading")]
    choice, allowed = carried_choice(fields.get("tool_choice", "auto"), carried, left_out)
    if allowed is not None:
        functions = [function for function in functions if function["name"] in allowed]
    if tools is None or isinstance(tools, list):
        changed["tools"] = [*functions, *carried.own]
        changed["tool_choice"] = choice
    changed |= _known_values(fields, left_out)
    if reader.is_compaction:
        changed |= {"tool_choice": "none" if changed.get("tools") else "auto", "text": None}
    shown = {
        name: fields.get(name, default)
        for name, default in _SHOWN.items()
        if name in changed and changed[name] != fields.get(name, default)
    }
    is_edited = carried.carriers or reader.is_compaction or shown
    edit = AnswerEdit(
        carried.carriers, shown, compaction=reader.is_compaction, is_endpoint=compacts
    )
    return Prepared({**fields, **changed}, edit if is_edited else None, before or ())


def _items(own_input: Any) -> list[Any] | None:
    """Return the items of an input; None for a value of another type, which vLLM refuses."""
    if isinstance(own_input, str):
        return [{"type": "message", "role": "user", "content": own_input}]
    return own_input if isinstance(own_input, list) else None


def _known_values(fields: Mapping[str, Any], left_out: LeftOut) -> dict[str, Any]:
    """Return new values for the fields of the request that have values which vLLM would refuse.

    The refused values belong to later versions of the API.
    """
    known: dict[str, Any] = {}
    include, tier = fields.get("include"), fields.get("service_tier")
    truncation = fields.get("truncation")
    if isinstance(truncation, str) and truncation not in _TRUNCATIONS:
        left_out.add(f"truncation.{truncation}")
        known["truncation"] = "disabled"
    for (holder, name), levels in _LEVELS.items():
        inner = known.get(holder, fields.get(holder))
        level = inner.get(name) if isinstance(inner, Mapping) else None
        if inner is not None and isinstance(level, str) and level not in levels:
            left_out.add(f"{holder}.{name}.{level}")
            known[holder] = {key: value for key, value in inner.items() if key != name}
    if isinstance(include, list):
        unknown = [name for name in include if isinstance(name, str) and name not in _INCLUDED]
        for name in unknown:
            left_out.add(f"include.{name}")
        known["include"] = [name for name in include if name not in unknown]
    if isinstance(tier, str) and tier not in _TIERS:
        left_out.add(f"service_tier.{tier}")
        known["service_tier"] = "auto"
    return known
