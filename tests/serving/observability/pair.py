"""A journal with a program, its fork, and a program of another tenant that made it wait."""

from __future__ import annotations

import json
from pathlib import Path

from agentrt.request import Reply
from tests.journal.made import Made, spent
from tests.journal.test_misses import RULES, chat, computed

FORK = json.dumps({"fork": {"of": "p-1", "at": "0#2", "set": [], "model": None}})


def write_pair(path: Path) -> Path:
    """``p-1`` of Ann, its fork ``p-1-fork-1``, and ``q-1`` of Bob, for whom ``p-1`` had to stop."""
    _run("p-1", "{}", "tea").node("0#3", "tool", 7.0, 9.0, parents=["0#2"]).write(path)
    fork = _run("p-1-fork-1", FORK, "milk").node("0#3", "human", 7.0, 9.0, parents=["0#2"])
    fork.node("0#4", "tool", 9.0, 10.0, parents=["0#3"]).write(path)
    return Made(5.0, id="q-1", tenant="bob").node("0#0", "tool", 0.0, 5.0).write(path)


def _run(name: str, options: str, answer: str) -> Made:
    """Two calls beside each other, and one that sums up: it had to stop for ``q-1``, and another
    run had to be first.
    """
    made = Made(10.0, id=name, tenant="ann", options=options)
    made.node("0.0#0", "call", 0.0, 2.0, report=computed(90, 0), asked=chat(f"1 {RULES}"))
    made.node("0.1#0", "call", 0.0, 2.5, report=computed(90, 0), asked=chat(f"2 {RULES}"))
    report = spent(
        ["queued", 1.0, 3, 4.5, 0, [["p-9", 0, 0.25], ["q-1", 0, 0.5]]],
        ["prefill", 0.5, 3, 4.5, 90],
        ["decode", 0.5, 3, 4.5, 8],
        ["preempted", 1.5, 3, 4.5, 0, [["q-1", 0, 0.5]]],
        ["decode", 1.0, 3, 4.5, 12],
        prompt_tokens=90,
        output_tokens=20,
    )
    asked, said = chat(f"3 {RULES}", "sum up"), Reply(answer)
    parents = ["0.0#0", "0.1#0"]
    return made.node(
        "0#2", "call", 2.5, 7.0, parents=parents, report=report, asked=asked, reply=said
    )
