"""The command line once more, changed so that it answers what this one left open."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from agentrt.cli.answers import FLAG

_OF_ITS_BEGINNING = ("--input", "--n", "--thread", FLAG)
"""Options, each with a value, that a command which goes on with one thread has anew or not."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The arguments that ``agentrt run`` was called with."""

    arguments: Sequence[str] = ()

    def going_on(self, thread: str) -> str:
        """The command that goes on with ``thread``, where it is."""
        return self.answering(thread, ())

    def answering(self, thread: str | None, ids: Sequence[str]) -> str:
        """The command that answers the questions ``ids`` in ``thread``.

        Without a thread that outlives the process everything runs again from its start, and
        its questions get new ids: only a single one can be answered in advance.
        """
        border = self.arguments.index("--") if "--" in self.arguments else len(self.arguments)
        own, flags = list(self.arguments[:border]), self.arguments[border:]
        if thread is not None:
            own = [*_without(own, _OF_ITS_BEGINNING), "--thread", thread]
        elif len(ids) != 1:
            own = [*_without(own, ("--checkpointer",)), "--checkpointer", "sqlite:threads.db"]
            ids = ()
        replies = [FLAG, "TEXT"] * (len(ids) == 1)
        if len(ids) > 1:
            replies = [word for one in ids for word in (FLAG, f"{one}=TEXT")]
        return shlex.join(["agentrt", "run", *own, *replies, *flags])


def _without(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    left: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in names:
            next(words, None)
        elif word.partition("=")[0] not in names:
            left.append(word)
    return left
