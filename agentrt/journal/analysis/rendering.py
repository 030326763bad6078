"""Showing recorded programs and their nodes as JSON, as text and as a DAG."""

from __future__ import annotations

import json
import re
from typing import Any

from agentrt.graph import ExecutionDAG, NodeState
from agentrt.journal.analysis.misses import texts_of
from agentrt.journal.analysis.reading import REPLY, History
from agentrt.journal.codec import loads
from agentrt.journal.past import PastNode
from agentrt.journal.schema import CANCELLED, FAILED, KINDS, LOST
from agentrt.journal.sketch import text_of_question

_SHORT = 40
_JSON = ("input", "options", "asked", "outcome", "account")


def program_json(program: History) -> dict[str, Any]:
    """Return a program as JSON without its nodes. Times of day are in seconds since 1970.

    ``wall_s`` is the time from the start of the first attempt to the end; None if the program has
    not ended. This time does not start with the program's row, because the row of a fork is written
    before the engine starts.
    """
    root, ended = program.root, program.ended
    wall_s = None if root is None or ended is None else ended - root.first
    fields = {**program.program._asdict(), "state": program.state, "ended": ended, "wall_s": wall_s}
    return {name: parsed(name, value) for name, value in fields.items()} | program.totals()


def parsed(name: str, value: Any) -> Any:
    """Return the value of a row's field. If the field has JSON text, return the parsed value, or
    None for empty text.
    """
    return (json.loads(value) if value else None) if name in _JSON else value


# -- requests and answers ---------------------------------------------------------------------


def question_of(node: PastNode, *, whole: bool = False) -> str:
    """Return the request of a node as text for people; "" if it was not recorded.

    For a chat, return its last message, or with ``whole`` all messages and tools. For token ids,
    return only their number.
    """
    request = parsed("asked", node.start.request)
    if whole or (isinstance(request, dict) and "prompt_token_ids" in request):
        request = node.request
    if isinstance(request, dict):
        if whole and (texts := [*texts_of(request)]):
            return "".join(texts)
        if messages := request.get("messages"):
            request = messages[-1].get("content")
        elif "prompt_token_ids" in request:
            request = f"{len(request['prompt_token_ids'])} tokens"
        elif "question" in request:
            request = text_of_question(request)
        else:
            request = request.get("arguments", request)
    return _as_text(request)


def answer_of(node: PastNode) -> str:
    """Return the answer of a node as text for people; "" if no answer was recorded."""
    value = parsed("outcome", node.end.outcome) if node.end else None
    if isinstance(value, dict) and "$" in value:
        if {"value", "state", "text"} <= value.keys():
            return f"{re.split('[.:]', value['$'])[-1]}: {value['text']}"
        if value["$"] == REPLY:
            calls = value.get("tool_calls", {}).get("value", ())
            tools = [f"{call['name']}({_as_text(call.get('arguments'))})" for call in calls]
            return " ".join(filter(None, (value["text"], *tools)))
        value = value.get("payload", value.get("value", value))
    return _as_text(value)


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def short(text: str, most: int = _SHORT) -> str:
    """Return a text as one line of at most ``most`` characters."""
    flat = " ".join(text[: 9 * most].split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


# -- as a DAG ---------------------------------------------------------------------------------


def dag_of(program: History) -> ExecutionDAG:
    """Return the execution DAG of a program. Times are in seconds since 1970. Nodes that were still
    open when the program ended are cancelled, as in the DAG of a run.
    """
    dag, ids = ExecutionDAG(program.program.id, program.program.type), dict[str, int]()
    for place, node in program.nodes.items():
        start, end = node.start, node.end
        if (kind := KINDS.get(start.kind)) is None:
            continue
        places = () if end is None else end.parents.split()
        before = tuple(ids[parent] for parent in places if parent in ids)
        made = dag.add(kind, start.name, start.scope, before, start.started)
        dag.start(made.id, start.started)
        if end is None:
            continue
        ids[place] = made.id
        report = loads(end.account) if end.account and start.kind == "call" else None
        if end.state == FAILED:
            dag.fail(made.id, end.ended, answer_of(node), report)
        elif end.state == CANCELLED:
            dag.cancel(made.id, end.ended, report)
        else:
            dag.finish(made.id, end.ended, report)
    if program.ended is not None:
        state = NodeState.DONE if program.state == LOST else NodeState(program.state)
        dag.close(program.ended, state)
    return dag
