"""Places: positions of code in its program that are the same in each run of the same code.

A place depends only on the code: on which tasks each task has started, and in which order. It does
not depend on the order in which parallel tasks make progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import iscoroutine

from agentrt.moments import moment


class Place:
    """The place of a task, identified by its ``path``.

    The path consists of the path of the parent task, which started this task, and this task's
    number among the tasks that the parent started, such as ``0.1.4``. A task that runs the work of
    a node has a path within the node: ``0.1#2.0`` is the first task of the third node of ``0.1``.

    ``nodes`` is the number of nodes that the task has emitted so far, and ``forks`` the number of
    tasks that it has started. ``during`` is the place of a call whose stream is being read by this
    task or by an ancestor of this task. ``last`` is the id, in the DAG, of the last node that was
    emitted here, or None before the first node. ``began`` is the `moment` at which the task
    started.
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

        ``beside`` are all coroutines that are started together with ``coro`` in an arbitrary order.
        In this case, the number of the task follows from the position of ``coro`` in ``beside`` and
        not from the order of the starts.
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
        """Return whether the code at this place may have reacted to the end of ``node`` at the
        moment ``at``.

        The code of the node's own task, and of the ancestors of that task, may have reacted. The
        code of any other task may have reacted only if the task started after that moment.
        """
        here = self.path
        return node.startswith((f"{here}#", f"{here}.")) or self.began > at

    def inside(self, node: str) -> Place:
        """Return the place of the work of a node that was emitted here. This work does not run when
        the node is answered from a journal.
        """
        return Place(node, self.during)
