"""The same programs under vLLM's own order and under agentrt's, on an engine or in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentrt.errors import ConfigError
from agentrt.graph import NodeKind
from agentrt.graph.export import to_json
from agentrt.journal.analysis.wall import HUMAN, OWN, TOOL, Piece, engine_spans
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel, step_time
from agentrt.lab.outcome import Outcome
from agentrt.lab.program import LiveProgram
from agentrt.lab.reports.standard import standard
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads import dagfile
from agentrt.lab.workloads.fields import Fields, Notes
from agentrt.lab.workloads.replay import UNSCALED
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import CallReport
from agentrt.request.spans import STARTING
from agentrt.runtime.run import Run
from agentrt.scheduler.config import SchedulerConfig

STOCK = SchedulerConfig("fcfs")
GAIN, LOSS, NOTHING = "gain", "loss", "nothing"
Tokens = Mapping[str, tuple[Sequence[int], Sequence[int]]]
"""Of calls by their ids: prompt and output."""
Call = tuple[float, float, CallReport]
"""When it came and ended, and what it cost."""


@dataclass(frozen=True, slots=True)
class Course:
    """A program and its ``calls``, by their place in its shape; seconds after the run's start."""

    shape: ProgramShape
    began: float
    ended: float
    calls: Mapping[int, Call]

    @property
    def latency_s(self) -> float:
        return self.ended - self.began

    @property
    def outcome(self) -> Outcome:
        reports = {index: report for index, (_, _, report) in self.calls.items()}
        return Outcome.of(self.shape, self.began, self.ended, reports)

    def pieces(self) -> list[Piece]:
        """Its time along its critical path, with reasons, as in `agentrt journal why`."""
        return [piece for piece in self._back() if piece.until > piece.since][::-1]

    def _back(self) -> Iterator[Piece]:
        """The last first. What is between two calls is the tool's, if there was one."""
        at, reason = self.ended, OWN
        index = max(self.calls, key=self._end_of, default=None)
        while index is not None:
            call, (came, ended, report) = self.shape.calls[index], self.calls[index]
            yield Piece(ended, at, reason)
            for span in reversed(engine_spans(report, self.shape.program_id)):
                since = max(came, ended - span.seconds)
                yield Piece(since, ended, span.reason, "", *span[2:])
                ended = since
            yield Piece(came, ended, STARTING)
            at, reason = came, HUMAN if call.human else TOOL if call.tool else OWN
            index = max(call.after, key=self._end_of, default=None)
        yield Piece(self.began, at, reason)

    def _end_of(self, index: int) -> float:
        return self.calls[index][1]


Courses = Sequence[Course]


@dataclass(frozen=True, slots=True)
class Past:
    """What was known of the programs before they were compared.

    Earlier runs had taught the scheduler the program types that are ``known``, and not the ``new``
    ones. ``file`` keeps what is learned; None is nowhere.
    """

    file: str | None = None
    known: Sequence[str] = ()
    new: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of runs that did the same, ours after it had seen the programs; ``first`` are ours
    that knew only what their ``past`` had taught. ``off`` is how far the replay under stock's order
    is from the run that it replays, as a share; 0 where nothing is replayed.
    """

    stock: Sequence[Courses]
    ours: Sequence[Courses]
    first: Sequence[Courses]
    off: float = 0.0
    past: Past = Past()

    def both_ratios(self, of: str = "mean_jct_s") -> tuple[list[float], list[float]]:
        """Ours to stock's in each pair, and the first time's: of a standard metric."""
        stock = [metrics(run)[of] for run in self.stock]
        ours = [metrics(run)[of] / base for run, base in zip(self.ours, stock, strict=True)]
        first = [metrics(run)[of] / base for run, base in zip(self.first, stock, strict=False)]
        return ours, first

    @property
    def ratios(self) -> list[float]:
        """Ours to stock's, of the mean times."""
        return self.both_ratios()[0]

    @property
    def typical(self) -> tuple[Courses, Courses]:
        """The pair whose ratio is the median, programs of a type together."""
        ratios = self.ratios
        at = sorted(range(len(ratios)), key=ratios.__getitem__)[len(ratios) // 2]
        stock, ours = (sorted(one[at], key=_type_of) for one in (self.stock, self.ours))
        return stock, ours

    @property
    def verdict(self) -> str:
        """Something is gained, or lost, if it is in each pair, by more than the replay is off."""
        if max(self.ratios) < 1 - self.off:
            return GAIN
        return LOSS if min(self.ratios) > 1 + self.off else NOTHING


def _type_of(one: Course) -> str:
    return one.shape.type


def metrics(run: Courses) -> dict[str, float]:
    """The standard ones."""
    return standard([one.outcome for one in run])


def latencies(run: Courses) -> list[float]:
    """Seconds from each program's start to its end."""
    return [one.latency_s for one in run]


def read(runs: Sequence[Run], tokens: Tokens) -> list[Course]:
    """Programs that ran together, and ended. Raises `ConfigError` for one without a call."""
    zero, entries = min(run.started_at for run in runs), list[Fields]()
    for run in runs:
        head = {"id": run.id, "type": run.type, "started_at": run.started_at}
        entries.append(Fields(run.id, to_json(run.dag) | {"program": head}))
    shapes = {one.program_id: one for one in dagfile.read(entries, "", UNSCALED, Notes())}
    if silent := [run.id for run in runs if run.id not in shapes]:
        raise ConfigError(f"program {silent[0]} got nothing from its model: nothing to compare")
    return [_read(run, shapes[run.id], tokens, zero) for run in runs]


def _read(run: Run, shape: ProgramShape, tokens: Tokens, zero: float) -> Course:
    calls, shapes, over = dict[int, Call](), list(shape.calls), run.ended_at or zero
    for node in run.dag.nodes():
        if node.kind is NodeKind.CALL and node.report and node.report.output_tokens:
            index, (prompt, said) = len(calls), tokens.get(f"{run.id}/{node.id}", ((), ()))
            calls[index] = node.created_at - zero, (node.ended_at or over) - zero, node.report
            shapes[index] = replace(
                shapes[index],
                node=node.scope.partition("/")[2].rpartition("/")[2],  # as the scheduler had it
                prompt_ids=(prompt,) if prompt else (),
                output_ids=tuple(said),
            )
    over -= zero
    tail_s = over - max(ended for _, ended, _ in calls.values())
    shape = replace(shape, calls=tuple(shapes), tail_s=tail_s)
    return Course(shape, run.started_at - zero, over, calls)


def fitted(run: Courses) -> StepTimeModel:
    """How long the engine's steps took. Raises `ConfigError` where there were too few."""
    reports = [report for one in run for _, _, report in one.calls.values()]
    if (times := step_time(map(asdict, reports))) is None:
        raise ConfigError(
            f"{len(reports)} calls are too few to replay: give a larger --n or --real"
        )
    return times


class _Watched(Virtual):
    """A virtual engine that keeps its calls."""

    def __init__(self, order: SchedulerConfig, machine: Machine) -> None:
        super().__init__(order, machine.virtual_options(), machine.step_time())
        self.calls: dict[str, dict[int, Call]] = {}
        self._came: dict[str, float] = {}

    def submit(self, live: LiveProgram, index: int) -> None:
        self._came[live.call_id(index)] = self._now
        super().submit(live, index)

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        calls = self.calls.setdefault(live.shape.program_id, {})
        calls[index] = self._came.pop(live.call_id(index)), self._now, report
        super().call_ended(live, index, report)


def replay(
    run: Courses, order: SchedulerConfig, machine: Machine, repeat: int = 0, learned: Any = None
) -> tuple[Courses, Any]:
    """The programs in virtual time, and what an order that ``learned`` this knows then. In each
    ``repeat`` but 0 their first calls come in another order.
    """
    coming = [one.shape for one in run]
    firsts = [one.arrives_s + one.calls[0].gap_s for one in coming]
    if repeat:
        random.Random(repeat).shuffle(coming)
    starts = [at - one.calls[0].gap_s for one, at in zip(coming, firsts, strict=True)]
    shapes = [one.arriving(at - min(starts)) for one, at in zip(coming, starts, strict=True)]
    engine = _Watched(order, machine)
    history = engine.lanes[0].engine.scheduler.history
    if learned is not None:
        history.know(learned)
    ends = {one.program_id: one.ended_s for one in drive(engine, shapes).outcomes}
    courses = {
        name: Course(one, one.arrives_s, ends[name], engine.calls[name])
        for one, name in ((one, one.program_id) for one in shapes)
    }
    return [courses[one.shape.program_id] for one in run], history.values()
