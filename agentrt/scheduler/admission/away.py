"""Who of the working set's members waits for something else than a call."""

from __future__ import annotations

import heapq
import math

from agentrt.scheduler.admission.claims import Program


class Away:
    """Members that wait for something else than a call, and until when their blocks are kept.

    Who has come back since, or has left, is dropped when it is met. Amortised O(log n).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Program]] = []
        self._serial = 0

    def add(self, program: Program, until: float) -> None:
        """A member went away; before ``until`` it need not leave."""
        program.away += 1
        self._serial += 1
        heapq.heappush(self._heap, (until, self._serial, program.away, program))

    def next_moment(self) -> float:
        """When the time of the first of them is up; inf where nobody is away."""
        heap = self._heap
        while heap and not (heap[0][2] == heap[0][3].away and heap[0][3].waits):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def due(self, now: float) -> Program | None:
        """Whose time is up, no longer counted as away; None where nobody's is."""
        return heapq.heappop(self._heap)[3] if self.next_moment() <= now else None
