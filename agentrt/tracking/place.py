"""Places: positions of code in its program that are the same in each run of the same code.

A place is derived from the code alone: which task started which, and in which order. It does not
depend on the order in which parallel tasks make progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import iscoroutine

from agentrt.moments import moment


class Place:
    """The place of a task. ``path`` is the path of the task that started it, and its number among
    the tasks that this task started, such as ``0.1.4``. A task that a node starts has a path within
    the node, such as ``0.1#2.0``.

    ``nodes`` and ``forks`` count the nodes that the task has emitted and the tasks that it has
    started. ``during`` is a call whose stream this task, or a task from which it descends, is
    reading. ``last`` is the DAG's id of the last node that was emitted here. ``began`` is the
    `moment` at which the task started.
    """

    __slots__ = ("_beside", "_first", "began", "during", "forks", "last", "nodes", "path")

    def __init__(self, path: str = "0", during: str = "") -> None:
        self.path = path
        self.during = during
        self.nodes = 0
        self.forks = 0
        self.last: int | None = None
        self.began = moment()
        self._beside: Sequence[object] = ()
        self._first = 0

    def fork(self, coro: object = None, beside: Sequence[object] = ()) -> Place:
        """Return the place of a task that starts now for ``coro``.

        ``beside`` are all coroutines that are started together, in an arbitrary order. Then the
        number of the task is the index of ``coro`` among them.
        """
        number, self.forks = self.forks, self.forks + 1
        if beside:
            if beside is not self._beside:
                self._beside, self._first = beside, number
            among = [each for each in beside if iscoroutine(each)]
            number = self._first + next(at for at, each in enumerate(among) if each is coro)
        else:
            self._beside = ()
        return Place(f"{self.path}.{number}", self.during)

    def can_know(self, node: str, at: int) -> bool:
        """Return whether the code here may have reacted to the end of a node at the moment ``at``.

        The code of the node's task may have, and so may the tasks from which that task descends.
        A task beside it may have only if it started after that moment.
        """
        here = self.path
        return node.startswith((f"{here}#", f"{here}.")) or self.began > at

    def inside(self, node: str) -> Place:
        """Return the place of work that belongs to a node emitted here. Such work does not run when
        the node is answered from a journal.
        """
        return Place(node, self.during)
