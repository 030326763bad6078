"""When each call was in an engine's batch: the bars of the dashboard's timeline.

Derived from views of the engines. An engine says since when a call runs or waits, so a view gives
the exact time of the last change before it. A call that started and ended between two views has
the one span that its report gives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agentrt.graph import Node
from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EngineCall, EngineView

Span = list[float | None]
"""Start and end in seconds; the end of a call that still runs is None."""

_MOST_SPANS = 64


@dataclass(slots=True)
class Track:
    """Where and when a call ran. ``run`` and ``node`` are set once it ended."""

    replica: str = ""
    spans: list[Span] = field(default_factory=list)
    run: Run | None = None
    node: Node | None = None

    def update(self, call: EngineCall, at: float) -> None:
        """The call was in an engine ``at`` this time."""
        self.replica = call.replica
        if call.running:
            self._runs(at if call.since is None else call.since, known=call.since is not None)
        else:
            self._waits(call, at if call.since is None else call.since)

    def _runs(self, since: float, *, known: bool) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last[1] is None:
            if not known or last[0] == since:
                return
            last[1] = since  # it was preempted and came back between two views
        self._add([since, None])

    def _waits(self, call: EngineCall, since: float) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last[1] is None:
            last[1] = since
        elif last is None and call.preemptions:
            self._add([since - call.served_s, since])

    def _add(self, span: Span) -> None:
        if len(self.spans) < _MOST_SPANS:
            self.spans.append(span)

    def gone(self, at: float) -> None:
        """The call left the engines: it is ending, or its engine died."""
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
        """Those that ended, the oldest first."""
        return iter(self._ended.values())

    def update(self, view: EngineView, is_open: Callable[[EngineCall], bool]) -> None:
        """Update the calls that are open from a view of the engines."""
        for call_id, call in view.calls.items():
            if is_open(call):
                self._open.setdefault(call_id, Track()).update(call, view.at)
        for call_id in self._open.keys() - view.calls.keys():
            self._open[call_id].gone(view.at)

    def end(self, call_id: str, run: Run, node: Node) -> None:
        """A call ended, as its node says."""
        track = self._open.pop(call_id, None) or Track()
        track.end(run, node)
        self._ended[call_id] = track
        while len(self._ended) > self._kept:
            self._ended.popitem(last=False)
