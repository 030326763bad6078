"""A reader of BFCL v4: the multi-turn agents of the Berkeley function-calling leaderboard.

Two kinds of files of the package ``bfcl-eval`` can be read:

* results that ``bfcl generate`` wrote for a model (``BFCL_v4_*_result.json``, model_handler/
  base_handler.py), with ``input_token_count`` and ``output_token_count`` of each step of each turn;
* the questions (``data/BFCL_v4_multi_turn_*.json``), with the correct answers in the folder
  ``possible_answer`` next to them. Each function call of an answer becomes an LLM call, and one
  more LLM call with `CLOSING` output tokens ends the turn. The prompt begins with the descriptions
  of the functions of the involved classes (``multi_turn_func_doc``). The result of a function
  counts as `RESULT` tokens.

The files have no times. It is assumed that a function takes one second, and a human no time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.workloads.fields import LocatedFields, Notes, Number, Record, read_objects
from agentrt.lab.workloads.messages import FRAME, TOOL_S, UNKNOWN_PAUSE, UNKNOWN_TOOL
from agentrt.lab.workloads.replay import Scales, Turn, chain
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.texts import TokenCounter

CLOSING, RESULT = 40, 60
UNREADABLE = "agents that cannot be read, left out"
NO_CALLS = "agents without a call, left out"
GUESSED = (
    f"results of functions and last answers of turns, counted as {RESULT} and {CLOSING} tokens"
)

_DOCS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}


class _Result(Record):
    id: str
    input_token_count: list[list[Number]]
    output_token_count: list[list[Number]]


class _Question(Record):
    id: str
    question: list[list[dict[str, Any]]]
    involved_classes: list[str]


class _Answer(Record):
    id: str
    ground_truth: list[list[str]]


def read(
    entries: Sequence[LocatedFields],
    type: str,
    scales: Scales,
    notes: Notes,
    *,
    count: TokenCounter,
) -> list[ProgramShape]:
    """Return a program for each agent that makes a call. Agents that make none or cannot be read
    are left out, and counted in ``notes``. Agents with the same functions have the same type,
    because their prompts share the descriptions of the functions.
    """
    programs: list[ProgramShape] = []
    for entry in entries:
        with notes.leaving_out(UNREADABLE):
            counted = "input_token_count" in entry.values
            turns = _counted(entry) if counted else _answered(entry, notes, count)
            replay = chain([step for turn in turns for step in turn], scales, notes)
            if not replay.calls:
                notes[NO_CALLS] += 1
                continue
            notes[UNKNOWN_TOOL] += sum(max(0, len(turn) - 1) for turn in turns)
            notes[UNKNOWN_PAUSE] += len(turns) - 1
            kind = "+".join([type, *entry.values.get("involved_classes", ())])
            shared = 0 if counted else replay.system_tokens(_docs(entry, count))
            programs.append(
                ProgramShape(
                    str(entry.values["id"]), kind, tuple(replay.calls), system_tokens=shared
                )
            )
    return programs


def _counted(entry: LocatedFields) -> list[list[Turn]]:
    """Return the steps that a model has made, by turn. Raises `ConfigError` if they cannot be
    read.
    """
    result = entry.read(_Result)
    prompts, outputs = result.input_token_count, result.output_token_count
    if [*map(len, prompts)] != [*map(len, outputs)]:
        raise entry.complain(
            "input_token_count and output_token_count have different numbers of steps"
        )
    return [
        [
            Turn(round(prompt), round(output), TOOL_S if step else 0.0, human=not step)
            for step, (prompt, output) in enumerate(zip(*turn, strict=True))
        ]
        for turn in zip(prompts, outputs, strict=True)
    ]


def _answered(entry: LocatedFields, notes: Notes, count: TokenCounter) -> list[list[Turn]]:
    """Return the steps, by turn, that a model makes if it gives the correct answers. Raises
    `ConfigError` if the question or the answers cannot be read.
    """
    file = entry.file
    question = entry.read(_Question)
    answer = _answers(file.parent / "possible_answer" / file.name).get(question.id)
    if answer is None:
        raise entry.complain(
            f"no answer to question {question.id!r} in possible_answer/{file.name}"
        )
    try:
        right = answer.read(_Answer).ground_truth
    except ConfigError as error:
        raise ConfigError(
            f"{error}; so the answers cannot be read from this file; give the results of "
            "`bfcl generate` instead"
        ) from error
    held = _docs(entry, count)
    turns: list[list[Turn]] = []
    for messages, called in zip(question.question, right, strict=False):
        held += sum(FRAME + count(str(message.get("content"))) for message in messages)
        outputs = [FRAME + count(text) for text in called]
        turn = []
        for step, output in enumerate([*outputs, CLOSING]):
            turn.append(Turn(held, output, TOOL_S if step else 0.0, human=not step))
            held += output + (RESULT if step < len(outputs) else 0)
        turns.append(turn)
        notes[GUESSED] += len(called) + 1
    notes[count.rule] += sum(map(len, turns))
    return turns


@lru_cache(maxsize=8)
def _answers(path: Path) -> Mapping[str, LocatedFields]:
    return {str(entry.values.get("id")): entry for entry in read_objects(path, Notes())}


def _docs(entry: LocatedFields, count: TokenCounter) -> int:
    """Return the number of tokens of the descriptions of an agent's functions."""
    folder, names = entry.file.parent / "multi_turn_func_doc", entry.values["involved_classes"]
    files = [folder / f"{_DOCS.get(name, name)}.json" for name in names]
    return sum(count(text) for file in files for text in _texts(file))


@lru_cache(maxsize=16)
def _texts(path: Path) -> list[str]:
    return [json.dumps(entry.values) for entry in read_objects(path, Notes())]
