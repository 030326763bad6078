"""Where code is in its program, told by the code alone: which task of which task it runs in.

It is the same in each run of the same code, in whatever order tasks that run beside each other
come on.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import iscoroutine


class Place:
    """One task's place. ``path`` is that of the task which started it, and the how manieth it was
    there, such as ``0.1.4``; what a node itself starts is inside of it, such as ``0.1#2.0``.

    ``nodes`` and ``forks`` count what the task has emitted and started so far. ``during`` is a call
    that is read while it grows, by this task or one that it comes from. ``last`` is the id in the
    DAG of the last node that was emitted here.
    """

    __slots__ = ("_beside", "_first", "during", "forks", "last", "nodes", "path")

    def __init__(self, path: str = "0", during: str = "") -> None:
        self.path = path
        self.during = during
        self.nodes = 0
        self.forks = 0
        self.last: int | None = None
        self._beside: Sequence[object] = ()
        self._first = 0

    def fork(self, coro: object = None, beside: Sequence[object] = ()) -> Place:
        """That of a task which is started now. ``beside`` are those that are started together with
        its ``coro``, in whatever order; its place is that which it has among them.
        """
        number, self.forks = self.forks, self.forks + 1
        if beside:
            if beside is not self._beside:
                self._beside, self._first = beside, number
            among = [one for one in beside if iscoroutine(one)]
            number = self._first + next(at for at, one in enumerate(among) if one is coro)
        else:
            self._beside = ()
        return Place(f"{self.path}.{number}", self.during)

    def inside(self, node: str) -> Place:
        """Of what belongs to a node that is emitted here: it is not there when it is answered."""
        return Place(node, self.during)
