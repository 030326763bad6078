"""What both barrier demos ask the model: one small research agent, as prompts and data edges.

    outline ─┬─ survey ───────────────────┬─ write
             ├─ search ── read ── compare ┤
             └─ quotes ── check ──────────┘

`survey` is slow, `search` is quick, and the branch that starts with `search` is the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

TOPIC = "how tea came to Europe"


@dataclass(frozen=True)
class Task:
    """One step: its question, its limit of tokens, and the steps whose answers it needs."""

    ask: str
    tokens: int
    needs: tuple[str, ...] = ()


TASKS = {
    "outline": Task("Outline a short report about {topic}.", 32),
    "survey": Task("Survey what is known. Be thorough.", 128, ("outline",)),
    "search": Task("Name one source to read first.", 16, ("outline",)),
    "read": Task("Sum up what that source says.", 64, ("search",)),
    "compare": Task("Compare it with other accounts.", 64, ("read",)),
    "quotes": Task("Find a fitting quotation.", 24, ("outline",)),
    "check": Task("Check who said it, and when.", 80, ("quotes",)),
    "write": Task("Write the report.", 48, ("survey", "compare", "check")),
}


def prompt(name: str, topic: str, *notes: str) -> str:
    """Return the prompt of a step: the notes that it needs, in order, and its own question."""
    task = TASKS[name]
    known = [f"{need}: {note}" for need, note in zip(task.needs, notes, strict=True)]
    return "\n".join([f"Topic: {topic}", *known, task.ask.format(topic=topic)])
