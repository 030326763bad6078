"""A reader of conversations as lists of messages: chats of ShareGPT and trajectories of coding
agents.

An object has ``messages``, each with a ``role`` and a ``content``. Each message of the assistant is
read as a call, whose prompt consists of all messages before it.

* ``sharegpt``: the output of vLLM's ``benchmarks/multi_turn/convert_sharegpt_to_openai.py``: a list
  of objects with ``id`` and ``messages``. The file does not say how long humans took.
* ``swe``: trajectories of SWE-smith (data set SWE-bench/SWE-smith-trajectories: ``messages`` as
  text, ``instance_id``, ``traj_id``) and of mini-swe-agent (``*.traj.json``: agents/default.py,
  ``serialize``). mini-swe-agent has the token counts of the model's server in
  ``extra.response.usage``, and its tools took the time between two ``extra.timestamp``. Without
  timestamps, a tool takes `TOOL_S` seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from agentrt.files import parse_json
from agentrt.lab.workloads.fields import LocatedFields, Notes, Number, Record, Tokens
from agentrt.lab.workloads.replay import Scales, Turn, chain
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.texts import TokenCounter

TOOL_S = 1.0
FRAME = 4
"""Number of tokens that a chat template adds to a message for its role."""

UNREADABLE = "conversations that cannot be read, left out"
NO_CALLS = "conversations without a message of the assistant, left out"
UNKNOWN_TOOL = f"tools whose time is not in the file, taken as {TOOL_S:g} s"
UNKNOWN_PAUSE = "pauses of humans that are not in the file, taken as 0 s"


class _Usage(Record):
    prompt_tokens: Tokens
    completion_tokens: Tokens


class _Response(Record):
    usage: _Usage | None = None


class _Extra(Record):
    response: _Response | None = None
    timestamp: Number | None = None


class _Message(Record):
    role: str
    content: str | list[Any] | None = None
    tool_calls: list[Any] | None = None
    extra: _Extra = _Extra()


def read(
    entries: Sequence[LocatedFields],
    type: str,
    scales: Scales,
    notes: Notes,
    *,
    count: TokenCounter,
    tools: bool,
) -> list[ProgramShape]:
    """Return a program of this type for each conversation with a message of the assistant. Other
    conversations, and conversations that cannot be read, are left out and counted in ``notes``.
    With ``tools``, the gaps between calls are the times of tools, and otherwise of humans.

    Conversations with the system prompt of the first conversation share this prompt as a prefix.
    """
    programs: list[ProgramShape] = []
    system: str | None = None
    several = len(entries) > 1
    for place, entry in enumerate(entries):
        with notes.leaving_out(UNREADABLE):
            messages = [message.read(_Message) for message in _listed(entry).inside("messages")]
            reply = chain([*_turns(messages, notes, count, tools=tools)], scales, notes)
            if not reply.calls:
                notes[NO_CALLS] += 1
                continue
            text = _text(messages[0]) if messages[0].role == "system" else ""
            system = text if system is None else system
            shared = reply.system_tokens(FRAME + count(text) if text and text == system else 0)
            programs.append(
                ProgramShape(
                    _id(entry) or (f"{entry.file.stem}-{place}" if several else entry.file.name),
                    type,
                    tuple(reply.calls),
                    system_tokens=shared,
                )
            )
    return programs


def _turns(
    messages: Sequence[_Message], notes: Notes, count: TokenCounter, *, tools: bool
) -> Iterator[Turn]:
    prompt, answer, before = 0, None, None
    for message in messages:
        tokens = FRAME + count(_text(message))
        if message.role == "assistant":
            usage = message.extra.response.usage if message.extra.response else None
            if usage is None:
                notes[count.rule] += 1
            else:
                prompt, tokens = usage.prompt_tokens, usage.completion_tokens
            gap_s = 0.0 if answer is None else _gap(answer, before or answer, notes, tools=tools)
            yield Turn(prompt, tokens, gap_s, human=not tools)
            answer = message
        prompt, before = prompt + tokens, message


def _gap(answer: _Message, last: _Message, notes: Notes, *, tools: bool) -> float:
    """Return the seconds from an answer to the last message before the next answer."""
    began_s, ended_s = answer.extra.timestamp, last.extra.timestamp
    if began_s is not None and ended_s is not None:
        return max(0.0, ended_s - began_s)
    notes[UNKNOWN_TOOL if tools else UNKNOWN_PAUSE] += 1
    return TOOL_S if tools else 0.0


def _listed(entry: LocatedFields) -> LocatedFields:
    """Return the entry with its messages as a list. SWE-smith stores the list as JSON text."""
    text = entry.values.get("messages")
    if not isinstance(text, str):
        return entry
    try:
        return LocatedFields(entry.where, {"messages": parse_json(text)})
    except ValueError as error:
        raise entry.complain(
            f"messages: a text that is not JSON ({error}); write a list of messages, or the list "
            "as JSON"
        ) from error


def _text(message: _Message) -> str:
    text = message.content if isinstance(message.content, str) else json.dumps(message.content)
    return text + (json.dumps(message.tool_calls) if message.tool_calls else "")


def _id(entry: LocatedFields) -> str | None:
    """Return the id of a conversation, which may be a number in the file; None if it has no id."""
    ids = (entry.values.get(name) for name in ("traj_id", "id", "instance_id"))
    return next((str(value) for value in ids if isinstance(value, str | int)), None)
