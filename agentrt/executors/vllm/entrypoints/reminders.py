"""System and developer messages in the middle of a chat stay where they are.

Coding agents put a reminder into the chat every few turns. Many chat templates take a system
message at the beginning only: they refuse one that comes later, drop it, or move it to the front,
where it changes the prefix of the whole prompt, so that nothing of the chat is cached any more.
Where a template does so, the message becomes a user turn marked as a reminder, at its place; where
it renders the message at its place, the message stays as it is. Each template is probed once.
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
"""Templates that are remembered. A server has two, unless its clients may send their own."""
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
    """What a chat template does with the messages in the middle of a chat.

    ``system`` and ``developer`` say whether it renders a message of that role at its place, and
    ``turns`` whether one user turn may follow another. ``only_system`` says that a developer
    message at the beginning of the chat is the same as a system message.
    """

    system: bool
    developer: bool
    turns: bool
    only_system: bool

    def role_at_place(self, role: str) -> str | None:
        """The role by which a message of ``role`` can stay a message; None if it cannot."""
        if role == "developer" and self.developer:
            return role
        return "system" if self.system else None


class Reminders:
    """Keeps reminders at their place, in the chats that ``render`` renders."""

    def __init__(self, render: Callable[..., Any], tokenizer: Callable[[], Any]) -> None:
        self._render, self._tokenizer = render, tokenizer
        self._templates: dict[tuple[str | None, bool], Template] = {}

    def kept(self, messages: Sequence[Any], params: Any) -> Sequence[Any]:
        """The messages of a chat as its template renders each at its place."""
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
    """Return a function that renders a probe with the template of ``params``."""
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
    """Find out what a template does, by a function that renders messages with it."""
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
    """Whether a template renders a message of ``role`` where it stands, between an answer and the
    next turn, so that what comes before it and after it is rendered as without it.
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
    """The prompt of a probe; empty where the template refuses it."""
    try:
        return render(messages)
    except Exception:  # templates are programs of others, and may raise anything
        return ""


def _turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}


# -- a chat's messages ---------------------------------------------------------------------


def in_place(messages: Sequence[Message], template: Template) -> list[Message]:
    """The messages of a chat as ``template`` renders each at its place.

    Instructions at the beginning of the chat are one message where the template takes only one.
    A reminder beside a tool's result becomes part of that result, since a user turn there would
    end the agent's turn: templates drop the reasoning before the last user turn, and so would
    change what is cached.
    """
    start = next(
        (n for n, message in enumerate(messages) if message.get("role") not in _INSTRUCTING),
        len(messages),
    )
    chat = _beginning(messages[:start], template)
    held: list[Any] = []
    for index, message in enumerate(messages[start:], start):
        role = str(message.get("role"))
        if held and role in ("tool", "user"):
            content = message.get("content")
            together = [content, *held] if role == "tool" else [*held, content]
            chat.append({**message, "content": _joined(together)})
            held = []
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
                held.append(reminder)
            else:
                chat.append({"role": "user", "content": reminder})
    return chat


def _beginning(messages: Sequence[Message], template: Template) -> list[Message]:
    """The instructions before a chat's first turn."""
    if not messages:
        return []
    first, *rest = messages
    if first.get("role") == "developer" and template.only_system:
        # vLLM itself would do so, and would move all system messages to the front then.
        first = {**first, "role": "system"}
    roles = [template.role_at_place(str(message.get("role"))) for message in rest]
    if not rest or None not in roles:
        own = ({**message, "role": role} for message, role in zip(rest, roles, strict=True) if role)
        return [first, *own]
    return [{**first, "content": _joined([message.get("content") for message in messages])}]


def _following(messages: Sequence[Message], index: int) -> str | None:
    """The role of the next message that instructs nothing."""
    roles = (str(message.get("role")) for message in messages[index + 1 :])
    return next((role for role in roles if role not in _INSTRUCTING), None)


def marked(content: Any) -> Any:
    """The content of a reminder between marks, unless it has them; None for no content."""
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
    """Contents of several messages as that of one: text, unless parts of them are no text."""
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
    """A message of vLLM's protocol as OpenAI's API has it in JSON."""
    if isinstance(message, dict):
        return message
    plain: Message = message.model_dump(exclude_none=True)
    return plain
