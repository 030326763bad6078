"""Answers to a graph's questions: how they are written, and which question each is for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrt.cli.values import read_value
from agentrt.errors import UsageError

if TYPE_CHECKING:
    from agentrt.integrations.langgraph.threads import Question

FLAG = "--interrupt-reply"
_ADDRESSED = re.compile(r"([0-9a-f]{32})=(.*)", re.DOTALL)
_LITERALS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered, and the id of the question that it is for, if it was named."""

    value: Any
    to: str | None = None


def read_answer(text: str) -> Answer:
    """The value of ``--interrupt-reply``: ``[ID=]TEXT|JSON|@FILE``.

    As for ``--input``; true, false and null are what they are in JSON, since a text would
    count as a yes.
    """
    match = _ADDRESSED.fullmatch(text)
    to, text = (match[1], match[2]) if match else (None, text)
    value = _LITERALS[text] if text in _LITERALS else read_value(text, FLAG)
    return Answer(value, to)


def choose(
    answers: Sequence[Answer], questions: Sequence[Question]
) -> tuple[dict[str, Any], Sequence[Answer]]:
    """Which of the first ``answers`` are for ``questions``, by id, and those that are left.

    One without an id is for the only question. Raises `UsageError` if it does not fit.
    """
    first, open_ids = answers[0], [question.id for question in questions]
    if first.to is None:
        if len(open_ids) > 1:
            raise UsageError(f"{FLAG}: {_listed(questions)}; say which one it is for: ID=…")
        return {open_ids[0]: first.value}, answers[1:]
    if first.to not in open_ids:
        raise UsageError(f"{FLAG} {first.to}=…: no such question is open; {_listed(questions)}")
    chosen: dict[str, Any] = {}
    for used, one in enumerate(answers):
        if one.to not in open_ids or one.to in chosen:
            return chosen, answers[used:]
        chosen[one.to] = one.value
    return chosen, ()


def _listed(questions: Sequence[Question]) -> str:
    words = ", ".join(f"{one.id} ({as_line(one.value)})" for one in questions)
    return f"the open one is {words}" if len(questions) == 1 else f"several are open: {words}"


def as_line(value: Any, width: int = 60) -> str:
    """What is asked, in one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= width else f"{text[: width - 1]}…"
