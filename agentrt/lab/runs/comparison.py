"""Comparisons of runs of programs in the order of stock vLLM and in the order of agentrt, on an
engine or in virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentrt.errors import ConfigError
from agentrt.graph import NodeKind
from agentrt.graph.export import to_json
from agentrt.journal.analysis.wall import HUMAN, OWN, TOOL, WallInterval, engine_spans
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel, step_time
from agentrt.lab.outcome import Outcome
from agentrt.lab.program import LiveProgram
from agentrt.lab.reports.standard import standard
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads import dagfile
from agentrt.lab.workloads.fields import LocatedFields, Notes
from agentrt.lab.workloads.replay import UNSCALED
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import CallReport
from agentrt.request.spans import STARTING
from agentrt.runtime.run import Run
from agentrt.scheduler.config import SchedulerConfig

STOCK = SchedulerConfig("fcfs")
GAIN, LOSS, NOTHING = "gain", "loss", "nothing"
Tokens = Mapping[str, tuple[Sequence[int], Sequence[int]]]
"""The token ids of the prompt and of the output of each call, by the id of the call."""
Call = tuple[float, float, CallReport]
"""The arrival and the end of a call, in seconds since the start of the run, and the call's report.
"""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One program in a run. ``calls`` has the program's calls by their indices in ``shape``. Times
    are seconds since the start of the run.
    """

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

    def pieces(self) -> list[WallInterval]:
        """Return the pieces of the program's time along the critical path, each with its reason, as
        in `agentrt journal why`.
        """
        return [piece for piece in self._back() if piece.until > piece.since][::-1]

    def _back(self) -> Iterator[WallInterval]:
        """Yield the pieces of the program's time from the last to the first. The reason for the
        time between two calls is a tool or a human if ``shape`` names a tool or a human before the
        later call, and otherwise the program's own code.
        """
        at, reason = self.ended, OWN
        index = max(self.calls, key=self._end_of, default=None)
        while index is not None:
            call, (came, ended, report) = self.shape.calls[index], self.calls[index]
            yield WallInterval(ended, at, reason)
            for span in reversed(engine_spans(report, self.shape.program_id)):
                since = max(came, ended - span.seconds)
                yield WallInterval(since, ended, span.reason, "", *span[2:])
                ended = since
            yield WallInterval(came, ended, STARTING)
            at, reason = came, HUMAN if call.human else TOOL if call.tool else OWN
            index = max(call.after, key=self._end_of, default=None)
        yield WallInterval(self.began, at, reason)

    def _end_of(self, index: int) -> float:
        return self.calls[index][1]


@dataclass(frozen=True, slots=True)
class ComparedHistory:
    """The history of the compared programs.

    The scheduler had learned the program types in ``known`` from earlier runs, but not the types in
    ``new``. ``file`` stores the history; None if it is not stored.
    """

    file: str | None = None
    known: Sequence[str] = ()
    new: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of runs of the same programs.

    ``stock`` are the runs in the order of stock vLLM. ``ours`` are runs in agentrt's order, after
    agentrt had seen the programs; ``first`` are runs in agentrt's order with only the history in
    ``learned``. ``off`` is the relative error of a replay of stock's order; 0 without a replay.
    """

    stock: Sequence[Sequence[ProgramRun]]
    ours: Sequence[Sequence[ProgramRun]]
    first: Sequence[Sequence[ProgramRun]]
    off: float = 0.0
    learned: ComparedHistory = ComparedHistory()

    def both_ratios(self, of: str = "mean_jct_s") -> tuple[list[float], list[float]]:
        """Return the ratio of agentrt's value to stock's value for each pair of runs, and for each
        run in ``first``.

        ``of`` is the name of a standard metric.
        """
        stock = [metrics(run)[of] for run in self.stock]
        ours = [metrics(run)[of] / base for run, base in zip(self.ours, stock, strict=True)]
        first = [metrics(run)[of] / base for run, base in zip(self.first, stock, strict=False)]
        return ours, first

    @property
    def ratios(self) -> list[float]:
        """The ratio of agentrt's mean time to stock's mean time, for each pair of runs."""
        return self.both_ratios()[0]

    @property
    def typical(self) -> tuple[Sequence[ProgramRun], Sequence[ProgramRun]]:
        """The pair of runs with the median ratio, each sorted by program type."""
        ratios = self.ratios
        at = sorted(range(len(ratios)), key=ratios.__getitem__)[len(ratios) // 2]
        stock, ours = (sorted(runs[at], key=_type_of) for runs in (self.stock, self.ours))
        return stock, ours

    @property
    def verdict(self) -> str:
        """``gain`` or ``loss`` if every pair of runs shows it by more than the error of the replay;
        otherwise ``nothing``.
        """
        if max(self.ratios) < 1 - self.off:
            return GAIN
        return LOSS if min(self.ratios) > 1 + self.off else NOTHING


def _type_of(program: ProgramRun) -> str:
    return program.shape.type


def metrics(run: Sequence[ProgramRun]) -> dict[str, float]:
    """Return the standard metrics of a run."""
    return standard([program.outcome for program in run])


def latencies(run: Sequence[ProgramRun]) -> list[float]:
    """Return the seconds from each program's start to its end."""
    return [program.latency_s for program in run]


def read(
    turns: Sequence[Sequence[Run]], tokens: Tokens
) -> tuple[list[list[ProgramRun]], Sequence[str]]:
    """Read programs that ran together in each of ``turns``, in the same order, and have ended.
    Return their runs in each turn, and the ids of the programs that are left out.

    A program without an answered call in one of the turns is left out of all turns, so that each
    turn has the same programs. Raises `ConfigError` if no program is left.
    """
    shapes = [_shapes(runs) for runs in turns]
    silent = {
        at: run.id
        for runs, known in zip(turns, shapes, strict=True)
        for at, run in enumerate(runs)
        if run.id not in known
    }
    if len(silent) == len(turns[0]):
        raise ConfigError(
            f"run {silent[0]} made no call that a model answered, so there is nothing to compare; "
            "compare programs that call a model"
        )
    each = []
    for runs, known in zip(turns, shapes, strict=True):
        loud = [run for at, run in enumerate(runs) if at not in silent]
        zero = min(run.started_at for run in loud)
        each.append([_read(run, known[run.id], tokens, zero) for run in loud])
    return each, [silent[at] for at in sorted(silent)]


def _shapes(runs: Sequence[Run]) -> dict[str, ProgramShape]:
    """Return the shapes of the programs with an answered call, by their ids."""
    entries = list[LocatedFields]()
    for run in runs:
        head = {"id": run.id, "type": run.type, "started_at": run.started_at}
        entries.append(LocatedFields(run.id, to_json(run.dag) | {"program": head}))
    return {shape.program_id: shape for shape in dagfile.read(entries, "", UNSCALED, Notes())}


def _read(run: Run, shape: ProgramShape, tokens: Tokens, zero: float) -> ProgramRun:
    calls, shapes, over = dict[int, Call](), list(shape.calls), run.ended_at or zero
    for node in run.dag.nodes():
        if node.kind is NodeKind.CALL and node.report and node.report.output_tokens:
            index, (prompt, said) = len(calls), tokens.get(f"{run.id}/{node.id}", ((), ()))
            calls[index] = node.created_at - zero, (node.ended_at or over) - zero, node.report
            shapes[index] = replace(
                shapes[index],
                node=node.scope.partition("/")[2].rpartition("/")[2],  # as in the scheduler
                prompt_ids=(prompt,) if prompt else (),
                output_ids=tuple(said),
            )
    over -= zero
    tail_s = over - max(ended for _, ended, _ in calls.values())
    shape = replace(shape, calls=tuple(shapes), tail_s=tail_s)
    return ProgramRun(shape, run.started_at - zero, over, calls)


def fitted(run: Sequence[ProgramRun]) -> StepTimeModel:
    """Fit a step-time model to the calls of a run. Raises `ConfigError` for too few calls."""
    reports = [report for program in run for _, _, report in program.calls.values()]
    if (times := step_time(map(asdict, reports))) is None:
        raise ConfigError(
            f"{len(reports)} calls are too few to replay; give a larger --n, or use --real"
        )
    return times


class _RecordingBackend(Virtual):
    """A virtual engine that records its calls."""

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
    run: Sequence[ProgramRun],
    order: SchedulerConfig,
    machine: Machine,
    repeat: int = 0,
    learned: Any = None,
) -> tuple[Sequence[ProgramRun], Any]:
    """Run the programs of ``run`` in virtual time, under the scheduler's settings ``order``. Return
    the new run, and the history that the scheduler has learned at its end.

    The scheduler starts with the history ``learned``. If ``repeat`` is not 0, it is the seed by
    which the arrival times of the programs are shuffled.
    """
    coming = [program.shape for program in run]
    firsts = [shape.arrives_s + shape.calls[0].gap_s for shape in coming]
    if repeat:
        random.Random(repeat).shuffle(coming)
    starts = [at - shape.calls[0].gap_s for shape, at in zip(coming, firsts, strict=True)]
    shapes = [shape.arriving(at - min(starts)) for shape, at in zip(coming, starts, strict=True)]
    engine = _RecordingBackend(order, machine)
    history = engine.replicas[0].engine.scheduler.history
    if learned is not None:
        history.know(learned)
    ends = {outcome.program_id: outcome.ended_s for outcome in drive(engine, shapes).outcomes}
    runs = {
        name: ProgramRun(shape, shape.arrives_s, ends[name], engine.calls[name])
        for shape, name in ((shape, shape.program_id) for shape in shapes)
    }
    return [runs[program.shape.program_id] for program in run], history.values()
