"""``benchmarks mutation``: the mutants of the pure packages that their tests do not detect.

Pure packages use no engine, no server and no process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from agentrt.lab.reports.tables import markdown

MUTANTS = Path("mutants")
SURVIVED, KILLED, UNTESTED, TIMED_OUT = 0, 1, 33, 36
"""Exit codes of trials. mutmut keeps the exit code for each mutant, or None for a mutant without a
trial.
"""
_TIMED_OUT = (TIMED_OUT, 24, 152, 255, -24)
_HEADS = ("module", "mutants", "of them ran out of time", "survived", "killed")
_SURVIVORS = "Survivors (`.venv/bin/mutmut show NAME` shows a survivor):"


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
def mutation(patterns: tuple[str, ...]) -> int:
    """Break the pure packages in thousands of small ways, and count the mutants that the tests
    miss. Pure packages use no engine, no server and no process.

    PATTERN, such as 'agentrt.graph.*', chooses mutants by their names. Killed mutants are not tried
    again: a second run tries only the others. Takes some minutes on two cores.
    """
    # In another process, because this one has imported the package, and not the mutants' copy.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.mutation.trials", *patterns], check=False
    )
    if done.returncode == 0:
        click.echo(table())
    return done.returncode


def table(folder: Path = MUTANTS) -> str:
    """Return the results as a Markdown table, followed by the names of the survivors."""
    rows: list[tuple[str, int, int, int]] = []
    left: list[str] = []
    for meta in sorted(folder.rglob("*.py.meta")):
        exits = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
        tried = {name: code for name, code in exits.items() if code is not None}
        if not tried:
            continue
        missed = [name for name, code in tried.items() if code in (SURVIVED, UNTESTED)]
        slow = sum(code in _TIMED_OUT for code in tried.values())
        module = str(meta.relative_to(folder)).removesuffix(".meta")
        rows.append((module, len(tried), slow, len(missed)))
        left += missed
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows), len(left)))
    names = "\n".join(f"- {name}" for name in left or ["none"])
    cells = [
        [name, tried, slow, missed, f"{100 * (tried - missed) / max(tried, 1):.0f}%"]
        for name, tried, slow, missed in rows
    ]
    return f"{markdown(_HEADS, cells)}\n\n{_SURVIVORS}\n\n{names}"
