"""The outcomes of programs in a simulated or measured run, and their summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentrt.lab.engine.virtual import EngineCounts, sum_counts
from agentrt.lab.workloads.shape import ProgramShape, cached_tokens
from agentrt.request import CallReport
from agentrt.request.spans import DECODE


class ServedCall(NamedTuple):
    """The measurements of a call that an engine has served.

    ``ttft_s`` is the time to first token, and ``e2el_s`` the time to the last token, both in
    seconds from the call's arrival at the engine. ``turn`` is the number of calls on the longest
    path to the call, including this call. ``cacheable_tokens`` is the number of prompt tokens that
    a prefix cache of unlimited size would have had.
    """

    turn: int
    ttft_s: float
    e2el_s: float
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int
    cacheable_tokens: int

    @property
    def tpot_s(self) -> float:
        """The time per output token after the first token, in seconds."""
        return (self.e2el_s - self.ttft_s) / max(1, self.output_tokens - 1)


def served(shape: ProgramShape, reports: Mapping[int, CallReport]) -> Iterator[ServedCall]:
    """Yield the measurements of the calls for which the engine has reported spans.

    ``reports`` maps the index of each call in ``shape.calls`` to the engine's report.
    """
    turns: list[int] = []
    for index, call in enumerate(shape.calls):
        turns.append(1 + max((turns[parent] for parent in call.after), default=0))
        report = reports.get(index)
        if report is None or not report.spans:
            continue
        seconds = [(span[0], span[1]) for span in report.spans]
        before = next((at for at, (why, _) in enumerate(seconds) if why == DECODE), len(seconds))
        yield ServedCall(
            turns[index],
            sum(length for _, length in seconds[:before]),
            sum(length for _, length in seconds),
            report.output_tokens,
            report.prompt_tokens,
            report.cached_tokens,
            max(report.cached_tokens, cached_tokens(shape, call)),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one program. Times are in seconds; in a simulation, in simulated seconds.

    ``ideal_s`` is the latency that the program would have if no call ever waited; NaN if it is
    unknown. ``service_s`` and ``waiting_s`` are sums over the program's calls. ``tool_s`` is the
    sum of the gaps before calls and of the time after the last call; tools, humans or the program's
    own code run then. ``steps`` is the number of engine steps from the arrival of the first call to
    the end of the last call. ``calls`` are the calls for which the engine has reported spans.
    """

    program_id: str
    type: str
    arrived_s: float
    ended_s: float
    ideal_s: float
    output_tokens: int
    service_s: float
    waiting_s: float
    tool_s: float
    preemptions: int = 0
    steps: int = 0
    calls: tuple[ServedCall, ...] = ()

    @classmethod
    def of(
        cls,
        shape: ProgramShape,
        arrived_s: float,
        ended_s: float,
        reports: Mapping[int, CallReport],
        ideal_s: float = math.nan,
    ) -> Outcome:
        """Make the outcome of a program from the reports of its calls, by their indices."""
        calls = reports.values()
        last = max((report.finished_step for report in calls), default=0)
        return cls(
            program_id=shape.program_id,
            type=shape.type,
            arrived_s=arrived_s,
            ended_s=ended_s,
            ideal_s=ideal_s,
            output_tokens=shape.output_tokens,
            service_s=sum(report.service_s for report in calls),
            waiting_s=sum(report.waiting_s for report in calls),
            tool_s=sum(call.gap_s for call in shape.calls) + shape.tail_s,
            preemptions=sum(report.preemptions for report in calls),
            steps=last - min((report.arrived_step for report in calls), default=0),
            calls=tuple(served(shape, reports)),
        )

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def token_latency_s(self) -> float:
        """Latency divided by the number of generated tokens (Agentix, §6.2)."""
        return self.latency_s / self.output_tokens


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics over many programs. Times are in seconds if nothing else is said. NaN means
    unknown.

    - ``token_latency_s`` is the program-level token latency (Agentix, §6.2): the latency of a
      program divided by the number of tokens that it generated, averaged over programs.
    - ``slowdown`` is the latency divided by the ideal latency, averaged over programs.
    """

    programs: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    slowdown: float
    token_latency_s: float
    makespan_s: float
    throughput_per_s: float
    waiting_share: float
    service_share: float
    tool_share: float
    preemptions: int


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values: the value below which ``share`` of them lie. Between
    two values, interpolate.
    """
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(outcomes: Sequence[Outcome]) -> Summary:
    """Summarize the programs of a run."""
    latencies = sorted(o.latency_s for o in outcomes)
    n = len(latencies)
    makespan = max(o.ended_s for o in outcomes) - min(o.arrived_s for o in outcomes)
    waiting, service, tool = (
        sum(getattr(o, name) for o in outcomes) for name in ("waiting_s", "service_s", "tool_s")
    )
    whole = (waiting + service + tool) or 1.0
    return Summary(
        programs=n,
        mean_s=sum(latencies) / n,
        p50_s=quantile(latencies, 0.5),
        p95_s=quantile(latencies, 0.95),
        p99_s=quantile(latencies, 0.99),
        slowdown=sum(o.latency_s / o.ideal_s for o in outcomes) / n,
        token_latency_s=sum(sorted(o.token_latency_s for o in outcomes)) / n,
        makespan_s=makespan,
        throughput_per_s=n / makespan if makespan else float("inf"),
        waiting_share=waiting / whole,
        service_share=service / whole,
        tool_share=tool / whole,
        preemptions=sum(o.preemptions for o in outcomes),
    )


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcomes of a run's programs, in the order in which the programs ended, with the counts
    and the busy seconds of each engine. Some simple engines have no counts.
    """

    outcomes: list[Outcome]
    engines: list[EngineCounts]
    busy_s: list[float]

    @property
    def counts(self) -> EngineCounts:
        return self.engines[0] if len(self.engines) == 1 else sum_counts(self.engines)

    def summary(self) -> Summary:
        return summarize(self.outcomes)
