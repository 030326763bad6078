"""When each call was in an engine's batch: the bars of the timeline.

Put together from views of the engines. An engine tells since when a call runs or waits as it
does now, so a view finds the time of a change that came before it. A call that came and went
between two views has the one span that its report gives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agentrt.graph import Node
from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EngineView, Placed

Span = list[float | None]
"""From and to, in seconds; to None: it still runs."""

_MOST_SPANS = 64


@dataclass(slots=True)
class Track:
    """Where a call ran, and when. ``run`` and ``node`` are known once it ended."""

    replica: str = ""
    spans: list[Span] = field(default_factory=list)
    run: Run | None = None
    node: Node | None = None

    def see(self, placed: Placed, at: float) -> None:
        """The call was seen in an engine ``at`` this time."""
        self.replica = placed.replica
        if placed.running:
            self._runs(at if placed.since is None else placed.since, known=placed.since is not None)
        else:
            self._waits(placed, at if placed.since is None else placed.since)

    def _runs(self, since: float, *, known: bool) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last[1] is None:
            if not known or last[0] == since:
                return
            last[1] = since  # it was preempted and came back between two views
        self._add([since, None])

    def _waits(self, placed: Placed, since: float) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last[1] is None:
            last[1] = since
        elif last is None and placed.preemptions:
            self._add([since - placed.served_s, since])

    def _add(self, span: Span) -> None:
        if len(self.spans) < _MOST_SPANS:
            self.spans.append(span)

    def gone(self, at: float) -> None:
        """The call is in no engine: it ends just now, or its engine died."""
        if self.spans and self.spans[-1][1] is None:
            self.spans[-1][1] = at

    def end(self, run: Run, node: Node) -> None:
        """The call ended."""
        self.run, self.node = run, node
        assert node.ended_at is not None
        report = node.report
        self.replica = (report.replica if report else "") or self.replica
        if self.spans and self.spans[-1][1] is None:
            self.spans[-1][1] = node.ended_at
        elif not self.spans and report is not None and report.steps:
            began = max(node.created_at, node.ended_at - report.service_s)
            self.spans.append([began, node.ended_at])


class Tracks:
    """The tracks of calls by id: those in an engine, and the last ``kept`` that ended."""

    def __init__(self, kept: int = 2000) -> None:
        self._open: dict[str, Track] = {}
        self._ended: OrderedDict[str, Track] = OrderedDict()
        self._kept = kept

    def get(self, call_id: str) -> Track | None:
        """The track of a call, if it is known."""
        return self._open.get(call_id) or self._ended.get(call_id)

    def ended(self) -> Iterator[Track]:
        """Those that ended, the longest ago first."""
        return iter(self._ended.values())

    def saw(self, view: EngineView, is_open: Callable[[Placed], bool]) -> None:
        """Take in a view of the engines, as far as its calls are known and open."""
        for call_id, placed in view.calls.items():
            if is_open(placed):
                self._open.setdefault(call_id, Track()).see(placed, view.at)
        for call_id in self._open.keys() - view.calls.keys():
            self._open[call_id].gone(view.at)

    def end(self, call_id: str, run: Run, node: Node) -> None:
        """A call ended, as its node says."""
        track = self._open.pop(call_id, None) or Track()
        track.end(run, node)
        self._ended[call_id] = track
        while len(self._ended) > self._kept:
            self._ended.popitem(last=False)
