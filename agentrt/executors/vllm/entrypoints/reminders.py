"""Keeps system and developer messages in the middle of a chat at their place.

Coding agents add a reminder to the chat every few turns, as a system message. Many chat templates
take a system message only at the beginning: they refuse a later one, drop it, or move it to the
front. Moving it changes the prefix of the whole prompt, so that nothing of the chat is cached any
more. With such a template, the message becomes a user turn with reminder marks, at its place. If a
template renders the message at its place, the message is unchanged. Each template is probed once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.executors.vllm._compat.api_server import prompt_text, quiet_templates

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
class Template:
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


class Reminders:
    """Keeps reminders at their place in chats that ``render``, a method of a renderer, renders."""

    def __init__(self, render: Callable[..., Any], tokenizer: Callable[[], Any]) -> None:
        self._render, self._tokenizer = render, tokenizer
        self._templates: dict[tuple[str | None, bool], Template] = {}

    def kept(self, messages: Sequence[Any], params: Any) -> Sequence[Any]:
        """Return a chat's messages, changed so that its template renders each message at the
        message's place in the chat.
        """
        if all(_role(message) not in _INSTRUCTING for message in messages[1:]):
            return messages
        return in_place([_plain(message) for message in messages], self._template(params))

    def _template(self, params: Any) -> Template:
        key = params.chat_template, bool(params.chat_template_kwargs.get("tools"))
        if key not in self._templates:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            self._templates[key] = probed(_rendered_by(self._render, params, self._tokenizer))
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


def probed(render: Callable[[Sequence[Message]], str]) -> Template:
    """Return what a template does with messages. ``render`` renders messages with the template."""
    with quiet_templates():
        begun = _rendered(render, [_SYSTEM, _turn("user", _USER[0])])
        developing = [{**_SYSTEM, "role": "developer"}, _turn("user", _USER[0])]
        first = (_SYSTEM,) if begun else ()
        return Template(
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


def in_place(messages: Sequence[Message], template: Template) -> list[Message]:
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


def _beginning(messages: Sequence[Message], template: Template) -> list[Message]:
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
    """Return a reminder's content between marks, unless it has them already; None if it is
    empty.
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
