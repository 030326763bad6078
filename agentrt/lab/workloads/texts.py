"""Recorded texts as tokens: how many, and ids, so that what prompts have in common is the same.

A journal has a prompt's text and how many tokens it had, and no ids. All texts go into a tree of
their common beginnings, in the order of the calls. What is new in a text gets the tokens that are
new, spread over its characters: so an output has as many as were recorded, in later prompts, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError

_FIRST = 1 << 41
"""Above all that `agentrt.lab.engine.virtual.tokens` makes."""


class _Edge:
    """A piece of text with its token ids, and what has followed it so far."""

    __slots__ = ("below", "ids", "text")

    def __init__(self, text: str, ids: range) -> None:
        self.text, self.ids = text, ids
        self.below: dict[str, _Edge] = {}

    def split(self, at: int) -> None:
        """Another text leaves this one here."""
        cut = round(len(self.ids) * at / len(self.text))
        rest = _Edge(self.text[at:], self.ids[cut:])
        rest.below, self.below = self.below, {rest.text[0]: rest}
        self.text, self.ids = self.text[:at], self.ids[:cut]


class Texts:
    """The trees of all texts so far: those of different roots have nothing in common."""

    def __init__(self) -> None:
        self._roots: dict[str, _Edge] = {}
        self._next = _FIRST

    def ids(self, root: str, text: str, count: int) -> tuple[range, ...]:
        """The ``count`` token ids of a text, in parts."""
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
                edge.split(next((at for at, (one, two) in pairs if one != two), len(rest)))
            parts.append(edge.ids[:left])
            left -= len(parts[-1])
            place, at = place + len(edge.text), edge
        # What the text does not show, such as an image, is nobody else's.
        return tuple(part for part in (*parts, self._fresh(left)) if part)

    def _fresh(self, count: int) -> range:
        first, self._next = self._next, self._next + count
        return range(first, self._next)


# -- what a chat reads as, about as a template writes it --------------------------------------


def prompt_text(request: Mapping[str, Any]) -> str:
    """A chat request, up to where its answer begins."""
    tools = json.dumps(request["tools"]) if request.get("tools") else ""
    told = "".join(f"{one.get('role')}\n{said(one)}" for one in request["messages"])
    return f"{tools}{told}assistant\n"


def said(message: Mapping[str, Any], calls: Sequence[Mapping[str, Any]] | None = None) -> str:
    """What a message says: its text and its tool calls, without their ids."""
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content or "")
    given = [one["function"] for one in message.get("tool_calls") or ()] if calls is None else calls
    return "".join([text, *map(_called, given), "\n"])


def _called(call: Mapping[str, Any]) -> str:
    arguments = call["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"{call['name']}{arguments}"


# -- how many tokens a text has ---------------------------------------------------------------

CHARACTERS = 4
"""To a token, where no tokenizer is given: about what English and code have."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts a text's tokens; ``rule`` says how, as a note for people."""

    rule: str
    count: Callable[[str], int]

    def __call__(self, text: str) -> int:
        return self.count(text)


def counter(tokenizer: str = "") -> Counter:
    """That of a model's tokenizer, or of so many `CHARACTERS` to a token.

    Raises `ConfigError` for one that cannot be loaded.
    """
    if not tokenizer:
        rule = f"calls whose tokens are guessed: {CHARACTERS} characters each"
        return Counter(rule, lambda text: -(-len(text) // CHARACTERS))
    from tokenizers import Tokenizer

    file = Path(tokenizer, "tokenizer.json")
    try:
        if file.parent.is_dir():
            encode = Tokenizer.from_file(str(file)).encode
        else:
            encode = Tokenizer.from_pretrained(tokenizer).encode
    except Exception as error:  # it raises nothing narrower
        raise ConfigError(f"--tokenizer {tokenizer!r}: {error}") from error
    rule = f"calls whose tokens are counted by the tokenizer of {tokenizer}"
    return Counter(rule, lambda text: len(encode(text, add_special_tokens=False)))
