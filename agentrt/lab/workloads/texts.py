"""Token counts and token ids for recorded texts, such that equal beginnings have equal ids.

A journal has the text of a prompt and the number of its tokens, but not the token ids. All texts
are added to a prefix tree, in the order of the calls. The new part of a text gets new token ids,
which are spread evenly over its characters. So an output that occurs in a later prompt has the
recorded number of tokens there, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_FIRST = 1 << 41
"""The first token id. It is greater than all token ids of `agentrt.lab.engine.virtual.tokens`."""


class _Edge:
    """An edge of the tree: a piece of text with its token ids, and the edges below it."""

    __slots__ = ("below", "ids", "text")

    def __init__(self, text: str, ids: range) -> None:
        self.text, self.ids = text, ids
        self.below: dict[str, _Edge] = {}

    def split(self, at: int) -> None:
        """Split the edge at a character, because another text differs from there on."""
        cut = round(len(self.ids) * at / len(self.text))
        rest = _Edge(self.text[at:], self.ids[cut:])
        rest.below, self.below = self.below, {rest.text[0]: rest}
        self.text, self.ids = self.text[:at], self.ids[:cut]


class Texts:
    """Prefix trees of all texts that were added so far: one tree for each root name.

    Texts share the token ids of their common beginning only if they are in the same tree.
    """

    def __init__(self) -> None:
        self._roots: dict[str, _Edge] = {}
        self._next = _FIRST

    def ids(self, root: str, text: str, count: int) -> tuple[range, ...]:
        """Return the ``count`` token ids of a text, in parts."""
        at = self._roots.setdefault(root, _Edge("", range(0)))
        left, parts, place = count, list[range](), 0
        while place < len(text):
            first = text[place]
            edge = at.below.get(first)
            if edge is None:
                edge = at.below[first] = _Edge(text[place:], self._fresh(left))
            elif not text.startswith(edge.text, place):
                rest = text[place : place + len(edge.text)]
                pairs = enumerate(zip(rest, edge.text, strict=False))
                edge.split(next((at for at, (left, right) in pairs if left != right), len(rest)))
            parts.append(edge.ids[:left])
            left -= len(parts[-1])
            place, at = place + len(edge.text), edge
        # Tokens that are not in the text, such as those of an image, are shared with no other text.
        return tuple(part for part in (*parts, self._fresh(left)) if part)

    def _fresh(self, count: int) -> range:
        first, self._next = self._next, self._next + count
        return range(first, self._next)


# -- chats as text, similar to a chat template ------------------------------------------------


def prompt_text(request: Mapping[str, Any]) -> str:
    """Return a chat request as text, up to the beginning of its answer."""
    tools = json.dumps(request["tools"]) if request.get("tools") else ""
    messages = "".join(
        f"{message.get('role')}\n{message_text(message)}" for message in request["messages"]
    )
    return f"{tools}{messages}assistant\n"


def message_text(
    message: Mapping[str, Any], calls: Sequence[Mapping[str, Any]] | None = None
) -> str:
    """Return a message as text: its content and its tool calls, without the ids of the calls."""
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content or "")
    functions = (
        [call["function"] for call in message.get("tool_calls") or ()] if calls is None else calls
    )
    return "".join([text, *map(_called, functions), "\n"])


def _called(call: Mapping[str, Any]) -> str:
    arguments = call["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"{call['name']}{arguments}"


# -- counting tokens --------------------------------------------------------------------------

CHARACTERS = 4
"""Number of characters that count as one token if there is no tokenizer. This number is typical of
English texts and of code.
"""


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """A counter of the tokens of a text. ``rule`` describes for people how tokens are counted."""

    rule: str
    count: Callable[[str], int]

    def __call__(self, text: str) -> int:
        return self.count(text)


BY_CHARACTERS = TokenCounter(
    f"calls whose tokens are estimated as {CHARACTERS} characters each",
    lambda text: -(-len(text) // CHARACTERS),
)
