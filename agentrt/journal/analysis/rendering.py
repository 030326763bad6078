"""Recorded programs and their nodes as JSON, as texts for people, and as a DAG."""

from __future__ import annotations

import json
import re
from typing import Any

from agentrt.graph import ExecutionDAG
from agentrt.journal.analysis.misses import texts_of
from agentrt.journal.analysis.reading import REPLY, History
from agentrt.journal.codec import loads
from agentrt.journal.past import PastNode
from agentrt.journal.schema import FAILED, KINDS

_SHORT = 40
_JSON = ("input", "options", "asked", "outcome", "account")


def program_json(found: History) -> dict[str, Any]:
    """A program as JSON, without its nodes; times of day are seconds since 1970.

    It takes time from when it first begins: a fork is there before its engine.
    """
    root, ended = found.root, found.ended
    wall_s = None if root is None or ended is None else ended - root.first
    told = {**found.program._asdict(), "state": found.state, "ended": ended, "wall_s": wall_s}
    return {name: parsed(name, value) for name, value in told.items()} | found.totals()


def parsed(name: str, value: Any) -> Any:
    """A field of a row: those that hold JSON as values, None for an empty one."""
    return (json.loads(value) if value else None) if name in _JSON else value


# -- what was asked and answered --------------------------------------------------------------


def question_of(node: PastNode, *, whole: bool = False) -> str:
    """What a node was asked, for people; "" if that is its name, or was not kept. Of a chat that is
    its last message, or the ``whole`` of it.
    """
    asked = parsed("asked", node.start.asked)
    if whole or (isinstance(asked, dict) and "prompt_token_ids" in asked):
        asked = node.asked
    if isinstance(asked, dict):
        if whole and (texts := [*texts_of(asked)]):
            return "".join(texts)
        if messages := asked.get("messages"):
            asked = messages[-1].get("content")
        elif "prompt_token_ids" in asked:
            asked = f"{len(asked['prompt_token_ids'])} tokens"
        else:
            asked = asked.get("arguments", asked.get("question", asked))
    return _as_text(asked)


def answer_of(node: PastNode) -> str:
    """What a node answered, for people; "" if that was nothing, or was not kept."""
    value = parsed("outcome", node.end.outcome) if node.end else None
    if isinstance(value, dict) and "$" in value:
        if {"value", "state", "text"} <= value.keys():
            return f"{re.split('[.:]', value['$'])[-1]}: {value['text']}"
        if value["$"] == REPLY:
            calls = value.get("tool_calls", {}).get("value", ())
            asked = [f"{one['name']}({_as_text(one.get('arguments'))})" for one in calls]
            return " ".join(filter(None, (value["text"], *asked)))
        value = value.get("payload", value.get("value", value))
    return _as_text(value)


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def short(text: str, most: int = _SHORT) -> str:
    """A text in one line of at most so many characters."""
    flat = " ".join(text[: 9 * most].split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


# -- as a DAG ---------------------------------------------------------------------------------


def dag_of(found: History) -> ExecutionDAG:
    """A program's execution DAG. Times are seconds since 1970."""
    dag, ids = ExecutionDAG(found.program.id, found.program.type), dict[str, int]()
    for place, node in found.nodes.items():
        start, end = node.start, node.end
        if (kind := KINDS.get(start.kind)) is None:
            continue
        before = () if end is None else tuple(ids[one] for one in end.parents.split() if one in ids)
        made = dag.add(kind, start.name, start.scope, before, start.started)
        dag.start(made.id, start.started)
        if end is None:
            continue
        ids[place] = made.id
        report = loads(end.account) if end.account and start.kind == "call" else None
        if end.state == FAILED:
            dag.fail(made.id, end.ended, answer_of(node), report)
        else:
            dag.finish(made.id, end.ended, report)
    return dag
