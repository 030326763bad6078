"""Arranges chats so that each request's prompt begins with the prompt of the request before it.

System and developer messages in the middle of a chat stay at their place. Coding agents add a
reminder to the chat every few turns, as a system message. Many chat templates take a system message
only at the beginning: they refuse a later one, drop it, or move it to the front. Moving it changes
the prefix of the whole prompt, so that nothing of the chat is cached any more. With such a
template, the message becomes a user turn with reminder marks, at its place. If a template renders
the message at its place, the message is unchanged. Each template is probed once.

Tools are shown where they are loaded. Coding agents announce hundreds of tools with
``defer_loading``. The model loads the tools that it needs by a search, whose result names them in
``tool_reference`` blocks. Chat templates show all tools at the front, so each load would change the
beginning of the prompt. Here a deferred tool is shown in the first result that loads it, and not
before.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.executors.vllm._compat.api_server import prompt_text, quiet_templates, template_of

# -- tools that are loaded late ----------------------------------------------------------


_REFERENCE = "tool_reference"
_BOUNDARY = "Tool loaded."
"""A line without meaning that Claude Code adds to the user's message after references."""
_LOADED = "These tools can be called from now on:"
_LATER = "defer_loading"
_ONLY_HERE = (_LATER, "strict")
"""Fields of a deferred tool that are not shown to the model."""


def _shown_late(renderer: Any, messages: Sequence[Any], params: Any) -> tuple[Sequence[Any], Any]:
    """Show a chat's deferred tools where they are loaded; return its messages and render
    parameters.

    A chat template that supports ``tool_reference`` blocks gets the chat unchanged.
    """
    options = params.chat_template_kwargs
    tools = options.get("tools") or ()
    if not any(map(_says_when, tools)) and not any(map(_has_references, messages)):
        return messages, params
    if _REFERENCE in (template_of(renderer, params) or ""):
        return messages, params
    first = [_without_time(tool) for tool in tools if not _is_deferred(tool)]
    deferred = {_name(tool): tool for tool in tools if _is_deferred(tool)}
    without = {**options, "tools": first or None}
    chat = _in_results(messages, deferred, {_name(tool) for tool in first})
    return chat, dataclasses.replace(params, chat_template_kwargs=without)


def _in_results(
    messages: Sequence[Any], deferred: Mapping[str, Any], first: Collection[str] = ()
) -> list[Any]:
    """Return the messages with each deferred tool in the result that loads it.

    ``deferred`` has the tools by name, and ``first`` are the names of all other tools. References
    are removed, since the model cannot read them. vLLM splits the result of a tool search
    into two messages: one with the text of the result, which is mostly empty, and one with the
    references to tools. This function joins the two messages.
    """
    left = dict(deferred)
    chat: list[Any] = []
    loads = False
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        loads = loads and role != "assistant"
        before = chat[-1] if chat else {}
        if _has_references(message):
            loads = True
            text = _loaded(message["content"], left, deferred.keys() | first)
            if _is_same_result(before, message) and isinstance(before.get("content"), str):
                chat.pop()
                text = "\n".join(filter(None, (before["content"], text)))
            chat.append({**message, "content": text})
        elif loads and role == "user":
            content = _without_boundary(message.get("content"))
            chat += [{**message, "content": content}] if content else []
        else:
            chat.append(message)
    return chat


def _loaded(content: Sequence[Any], left: dict[str, Any], known: Collection[str]) -> str:
    """Return the text of a result that loads tools, with the tools that were not loaded before.

    Tools that the result loads are removed from ``left``, the deferred tools that are not loaded
    yet. ``known`` are the names of all tools of the request.
    """
    texts, tools, names = [], [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise ValueError(
                f"the content of a tool message has the part {part!r:.80}; use objects"
            )
        if part.get("type") != _REFERENCE:
            texts.append(str(part.get("text") or ""))
            continue
        name = part.get("name") or part.get("tool_name") or part.get(_REFERENCE)
        names.append(str(name))
        if (tool := left.pop(str(name), None)) is not None:
            tools.append(_shown(tool))
    if tools:
        texts += [_LOADED, "<tools>", *tools, "</tools>"]
    elif loaded := [name for name in names if name in known]:
        texts.append(f"Loaded: {', '.join(loaded)}")
    if missing := [name for name in names if name not in known]:
        texts.append(f"Not available: {', '.join(missing)}")
    return "\n".join(filter(None, texts))


def _shown(tool: Mapping[str, Any]) -> str:
    """Return a tool as most chat templates show it: a line of JSON."""
    function = {name: v for name, v in tool["function"].items() if name not in _ONLY_HERE}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _says_when(tool: Any) -> bool:
    """Return whether a tool says when it is shown: at once or later."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and function.get(_LATER) is not None


def _is_deferred(tool: Any) -> bool:
    return _says_when(tool) and bool(tool["function"][_LATER])


def _without_time(tool: Any) -> Any:
    if not _says_when(tool):
        return tool
    function = {name: value for name, value in tool["function"].items() if name != _LATER}
    return {**tool, "function": function}


def _name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name") or "") if isinstance(function, dict) else ""


def _has_references(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") != "tool":
        return False
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == _REFERENCE for part in content
    )


def _is_same_result(before: Any, message: Message) -> bool:
    return (
        isinstance(before, dict)
        and before.get("role") == "tool"
        and before.get("tool_call_id") == message.get("tool_call_id")
    )


def _without_boundary(content: Any) -> Any:
    """Return the content of a message without the lines `_BOUNDARY`, which have no meaning."""
    if isinstance(content, str) and _BOUNDARY in content:
        lines = [line for line in content.split("\n") if line.strip() != _BOUNDARY]
        return "\n".join(lines).strip()
    if isinstance(content, list):
        return [part for part in content if not _is_boundary(part)]
    return content


def _is_boundary(part: Any) -> bool:
    return isinstance(part, dict) and str(part.get("text")).strip() == _BOUNDARY


# -- reminders ---------------------------------------------------------------------------


OPENS, CLOSES = "<system-reminder>", "</system-reminder>"
_INSTRUCTING = frozenset(["system", "developer"])
_MOST_TEMPLATES = 64
"""Maximum number of probed templates that are kept.

A server has two (with and without tools), unless its clients may send their own templates.
"""
_KEPT_OPTIONS = ("add_generation_prompt", "continue_final_message", "tokenize")
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_SYSTEM = {"role": "system", "content": "wordzero"}
_USER = "wordone", "wordfour", "wordseven"
_ASSISTANT = "wordtwo", "wordfive"
_REMINDER = "wordthree", "wordsix"

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Template:
    """A description of what a chat template does with messages in the middle of a chat.

    ``system`` and ``developer`` say whether it renders a message of that role at its place, and
    ``turns`` whether one user turn may follow another. ``only_system`` says that a developer
    message at the beginning of the chat is the same as a system message.
    """

    system: bool
    developer: bool
    turns: bool
    only_system: bool

    def role_at_place(self, role: str) -> str | None:
        """Return the role with which the template renders a message of ``role``, which is system or
        developer, at the message's place. A developer message may get the role system.

        The result is None if the template renders the message with neither role at its place.
        """
        if role == "developer" and self.developer:
            return role
        return "system" if self.system else None


class _Reminders:
    """Keeps system and developer messages, such as a coding agent's reminders, at their place in a
    chat. ``render`` is the method of a renderer that renders the chat.
    """

    def __init__(self, render: Callable[..., Any], tokenizer: Callable[[], Any]) -> None:
        self._render, self._tokenizer = render, tokenizer
        self._templates: dict[tuple[str | None, bool], _Template] = {}

    def kept(self, messages: Sequence[Any], params: Any) -> Sequence[Any]:
        """Return a chat's messages, changed so that its template renders each message at the
        message's place in the chat.
        """
        if all(_role(message) not in _INSTRUCTING for message in messages[1:]):
            return messages
        return _in_place([_plain(message) for message in messages], self._template(params))

    def _template(self, params: Any) -> _Template:
        key = params.chat_template, bool(params.chat_template_kwargs.get("tools"))
        if key not in self._templates:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            self._templates[key] = _probed(_rendered_by(self._render, params, self._tokenizer))
        return self._templates[key]


def _rendered_by(
    render: Callable[..., Any], params: Any, tokenizer: Callable[[], Any]
) -> Callable[[Sequence[Message]], str]:
    """Return a function that renders messages with the template of ``params`` to a prompt's
    text.
    """
    options = params.chat_template_kwargs
    own = {name: options[name] for name in _KEPT_OPTIONS if name in options}
    own["tools"] = [_PROBE_TOOL] if options.get("tools") else None
    probe = dataclasses.replace(
        params, chat_template_kwargs=own, tool_choice=None, response_format=None
    )

    def rendered(messages: Sequence[Message]) -> str:
        _, prompt = render([dict(message) for message in messages], probe)
        return prompt_text(prompt, tokenizer)

    return rendered


# -- what a template does ------------------------------------------------------------------


def _probed(render: Callable[[Sequence[Message]], str]) -> _Template:
    """Return what a template does with messages. ``render`` renders messages with the template."""
    with quiet_templates():
        begun = _rendered(render, [_SYSTEM, _turn("user", _USER[0])])
        developing = [{**_SYSTEM, "role": "developer"}, _turn("user", _USER[0])]
        first = (_SYSTEM,) if begun else ()
        return _Template(
            system=_is_at_place(render, first, "system"),
            developer=_is_at_place(render, first, "developer"),
            turns=_is_at_place(render, first, "user"),
            only_system=_rendered(render, developing) == begun,
        )


def _is_at_place(
    render: Callable[[Sequence[Message]], str], first: Sequence[Message], role: str
) -> bool:
    """Return whether a template renders a message of ``role`` in the middle of a chat at its place.

    The message is between an answer and the next turn. The texts before and after it must be
    rendered as if the message were not there.
    """
    begun = [*first, _turn("user", _USER[0]), _turn("assistant", _ASSISTANT[0])]
    turn = [_turn(role, _REMINDER[0]), _turn("user", _USER[1])]
    again = [
        *(_turn("assistant", _ASSISTANT[1]), _turn(role, _REMINDER[1])),
        _turn("user", _USER[2]),
    ]
    without = _rendered(render, [*begun, turn[1]])
    short = _rendered(render, [*begun, *turn])
    long = _rendered(render, [*begun, *turn, *again])
    words = [message["content"] for message in (*begun, *turn, *again)]
    if not all(long.count(word) == 1 for word in words):
        return False
    places = [long.index(word) for word in words]
    return (
        places == sorted(places)
        and _ASSISTANT[0] in _beginning_of_both(without, short)
        and _USER[1] in _beginning_of_both(short, long)
    )


def _beginning_of_both(text: str, other: str) -> str:
    pairs = enumerate(zip(text, other, strict=False))
    end = next((n for n, (a, b) in pairs if a != b), min(len(text), len(other)))
    return text[:end]


def _rendered(render: Callable[[Sequence[Message]], str], messages: Sequence[Message]) -> str:
    """Return the prompt of a probe; "" if the template refuses it."""
    try:
        return render(messages)
    except Exception:  # templates are code of their authors, and may raise anything
        return ""


def _turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}


# -- a chat's messages ---------------------------------------------------------------------


def _in_place(messages: Sequence[Message], template: _Template) -> list[Message]:
    """Return a chat's messages, changed so that ``template`` renders each at its place.

    Several instructions at the beginning of the chat are joined if the template takes only one. A
    reminder next to a tool's result becomes part of that result, since a user turn there would end
    the agent's turn: templates drop the reasoning before the last user turn, which would change the
    cached prefix.
    """
    start = next(
        (n for n, message in enumerate(messages) if message.get("role") not in _INSTRUCTING),
        len(messages),
    )
    chat = _beginning(messages[:start], template)
    postponed: list[Any] = []
    for index, message in enumerate(messages[start:], start):
        role = str(message.get("role"))
        if postponed and role in ("tool", "user"):
            content = message.get("content")
            together = [content, *postponed] if role == "tool" else [*postponed, content]
            chat.append({**message, "content": _joined(together)})
            postponed = []
        elif role not in _INSTRUCTING:
            chat.append(message)
        elif (other := template.role_at_place(role)) is not None:
            chat.append({**message, "role": other})
        elif (reminder := marked(message.get("content"))) is not None:
            following = _following(messages, index)
            before = chat[-1] if chat else {}
            if before.get("role") == "tool" or (
                before.get("role") == "user" and not template.turns
            ):
                chat[-1] = {**before, "content": _joined([before.get("content"), reminder])}
            elif (before.get("tool_calls") and following == "tool") or (
                following == "user" and not template.turns
            ):
                postponed.append(reminder)
            else:
                chat.append({"role": "user", "content": reminder})
    return chat


def _beginning(messages: Sequence[Message], template: _Template) -> list[Message]:
    """Return the instructions before a chat's first turn, as ``template`` takes them."""
    if not messages:
        return []
    first, *rest = messages
    if first.get("role") == "developer" and template.only_system:
        # vLLM would change this role as well, but then moves all system messages to the front.
        first = {**first, "role": "system"}
    roles = [template.role_at_place(str(message.get("role"))) for message in rest]
    if not rest or None not in roles:
        own = ({**message, "role": role} for message, role in zip(rest, roles, strict=True) if role)
        return [first, *own]
    return [{**first, "content": _joined([message.get("content") for message in messages])}]


def _following(messages: Sequence[Message], index: int) -> str | None:
    """Return the role of the next message that is no system or developer message."""
    roles = (str(message.get("role")) for message in messages[index + 1 :])
    return next((role for role in roles if role not in _INSTRUCTING), None)


def marked(content: Any) -> Any:
    """Return the content of a reminder between the marks `OPENS` and `CLOSES`; None if the content
    is empty. A text that has the marks already is returned unchanged; a list with parts that are
    not text always gets the marks.
    """
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "\n".join(_text(part) for part in content)
    if not content:
        return None
    if isinstance(content, str):
        if not content.strip():
            return None
        has_marks = content.lstrip().startswith(OPENS) and content.rstrip().endswith(CLOSES)
        return content if has_marks else f"{OPENS}\n{content}\n{CLOSES}"
    return [{"type": "text", "text": OPENS}, *content, {"type": "text", "text": CLOSES}]


def _joined(contents: Iterable[Any]) -> Any:
    """Join the contents of several messages. The result is a text, or a list of parts if some parts
    are not text.
    """
    present = [content for content in contents if content]
    parts = [part for content in present for part in _parts(content)]
    if all(map(_is_text, parts)):
        return "\n\n".join("\n".join(map(_text, _parts(content))) for content in present)
    return parts


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": str(content)}]


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (
        isinstance(part, Mapping) and part.get("type") in ("text", "input_text", "output_text")
    )


def _text(part: Any) -> str:
    return part if isinstance(part, str) else str(part.get("text") or "")


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else getattr(message, "role", None)


def _plain(message: Any) -> Message:
    """Convert a message of vLLM's protocol to its JSON form in OpenAI's API."""
    if isinstance(message, dict):
        return message
    plain: Message = message.model_dump(exclude_none=True)
    return plain


# -- arranging ---------------------------------------------------------------------------


_PLAIN = frozenset(["user", "assistant"])


def arrange_chats(renderer: Any, *, reminders: bool = True) -> Any:
    """Change one of vLLM's renderers so that it arranges chats, and return it.

    All APIs use this renderer, and so do the routes that count or show tokens. With ``reminders``,
    system messages in the middle of a chat stay at their place.
    """
    whole, awaited = renderer.render_messages, renderer.render_messages_async
    own = _Reminders(whole, renderer.get_tokenizer)

    def arranged(messages: Sequence[Any], params: Any) -> tuple[Sequence[Any], Any]:
        messages, params = _shown_late(renderer, messages, params)
        return (own.kept(messages, params) if reminders else messages), params

    def render_messages(messages: Sequence[Any], params: Any) -> Any:
        if not _is_plain(messages, params):
            messages, params = arranged(messages, params)
        return whole(messages, params)

    def render_messages_async(messages: Sequence[Any], params: Any) -> Awaitable[Any]:
        if not _is_plain(messages, params):
            messages, params = arranged(messages, params)
        rendered: Awaitable[Any] = awaited(messages, params)
        return rendered

    renderer.render_messages = render_messages
    renderer.render_messages_async = render_messages_async
    return renderer


def _is_plain(messages: Sequence[Any], params: Any) -> bool:
    """Return whether a chat has nothing to arrange.

    This runs for every chat, so it calls no function for each message.
    """
    if params.chat_template_kwargs.get("tools"):
        return False
    is_first = True
    for message in messages:
        if message.__class__ is not dict or "role" not in message:
            return False
        if message["role"] not in _PLAIN and not (is_first and message["role"] == "system"):
            return False
        is_first = False
    return True
