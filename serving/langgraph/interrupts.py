"""The interrupts of threads that wait for an answer, as the database has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

INTERRUPT_ID = re.compile("[0-9a-f]{32}")
"""By such keys LangGraph knows a map from interrupts to answers."""
EXPIRED = {"agentrt": "expired"}
"""What a program's question is answered with when its time is over."""


def is_answer_map(resume: Any) -> bool:
    """Whether a command's ``resume`` has answers by the ids of interrupts."""
    return isinstance(resume, dict) and all(map(INTERRUPT_ID.fullmatch, resume))


def interrupts_in(by_task: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The interrupts of a thread's row, which has them by their tasks."""
    for interrupts in (by_task or {}).values():
        yield from interrupts


def is_open(
    interrupt_id: str, by_task: Mapping[str, Any] | None, active: Iterable[Mapping[str, Any]]
) -> bool:
    """Whether an interrupt of a thread's row still waits for an answer.

    ``active`` has the kwargs of the thread's runs that have not ended: one of them may answer
    it, or begin anew without an answer.
    """
    if all(one["id"] != interrupt_id for one in interrupts_in(by_task)):
        return False
    return not any(_closes(kwargs, interrupt_id) for kwargs in active)


def _closes(kwargs: Mapping[str, Any], interrupt_id: str) -> bool:
    resume = (kwargs.get("command") or {}).get("resume")
    return resume is None or not is_answer_map(resume) or interrupt_id in resume
