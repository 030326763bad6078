"""The outcomes of programs in a simulated or measured run, and their summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Statistics over many programs. Times are in seconds if nothing else is said. None or NaN
    means unknown.

    - ``token_latency_s`` is the program-level token latency (Agentix, §6.2): the latency of a
      program divided by the number of tokens that it generated, averaged over programs.
    - ``unloaded_token_s`` is the token latency that the programs would have if each ran alone.
    - ``slowdown`` is the latency divided by the ideal latency, averaged over programs.
    - ``mean_steps`` and ``p95_steps`` are latencies in engine steps.
    - ``balance`` is the busy time of the busiest engine, divided by the mean of all engines.
    - ``steady_per_s`` is the number of programs that ended by the last arrival, and
      ``offered_per_s`` the number of all programs, both divided by the time from the first to the
      last arrival; None if all programs arrived at once.
    - ``prefix_hit_share`` is the share of prompt tokens that were in the prefix cache, and
      ``recomputed_tokens`` is the number of tokens that were computed again after a preemption.
    - ``cpu_us`` is the scheduler's CPU time per step in microseconds.
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
    token_p95_s: float | None = None
    token_p99_s: float | None = None
    mean_steps: float | None = None
    p95_steps: float | None = None
    prefix_hit_share: float | None = None
    recomputed_tokens: float | None = None
    cpu_us: float | None = None
    balance: float = 1.0
    steady_per_s: float | None = None
    offered_per_s: float | None = None
    unloaded_token_s: float = math.nan


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values: the value below which ``share`` of them lie. Between
    two values, interpolate.
    """
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(
    outcomes: Sequence[Outcome],
    counts: EngineCounts | None = None,
    busy_s: Sequence[float] = (),
) -> Summary:
    """Summarize a run. ``counts`` is the sum of the counts of its engines, and ``busy_s`` has the
    busy seconds of each engine.
    """
    latencies = sorted(o.latency_s for o in outcomes)
    token_latencies = sorted(o.token_latency_s for o in outcomes)
    n = len(latencies)
    start = min(o.arrived_s for o in outcomes)
    makespan = max(o.ended_s for o in outcomes) - start
    waiting, service, tool = (
        sum(getattr(o, name) for o in outcomes) for name in ("waiting_s", "service_s", "tool_s")
    )
    whole = (waiting + service + tool) or 1.0
    last = max(o.arrived_s for o in outcomes)
    paced_s = last - start
    return Summary(
        programs=n,
        mean_s=sum(latencies) / n,
        p50_s=quantile(latencies, 0.5),
        p95_s=quantile(latencies, 0.95),
        p99_s=quantile(latencies, 0.99),
        slowdown=sum(o.latency_s / o.ideal_s for o in outcomes) / n,
        token_latency_s=sum(token_latencies) / n,
        makespan_s=makespan,
        throughput_per_s=n / makespan if makespan else float("inf"),
        waiting_share=waiting / whole,
        service_share=service / whole,
        tool_share=tool / whole,
        preemptions=sum(o.preemptions for o in outcomes),
        token_p95_s=quantile(token_latencies, 0.95),
        token_p99_s=quantile(token_latencies, 0.99),
        **({} if counts is None else _of_engine(outcomes, counts)),
        steady_per_s=sum(o.ended_s <= last for o in outcomes) / paced_s if paced_s else None,
        offered_per_s=n / paced_s if paced_s else None,
        unloaded_token_s=sum(o.ideal_s / o.output_tokens for o in outcomes) / n,
        balance=max(busy_s) * len(busy_s) / sum(busy_s) if any(busy_s) else 1.0,
    )


def _of_engine(outcomes: Sequence[Outcome], counts: EngineCounts) -> dict[str, float | None]:
    """Return the fields of a `Summary` that are known only if the engines have counts."""
    steps = sorted(float(o.steps) for o in outcomes)
    return {
        "mean_steps": sum(steps) / len(steps),
        "p95_steps": quantile(steps, 0.95),
        "prefix_hit_share": counts.hit_share,
        "recomputed_tokens": counts.usage.recomputed_tokens,
        "cpu_us": None if counts.cpu_us is None else counts.cpu_us / max(1, counts.steps),
    }


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

    def with_ideals(self, known: RunOutcome) -> RunOutcome:
        """Return this run with the ideal latencies of another run of the same programs, because a
        real engine does not know the ideal latencies.
        """
        ideals = {outcome.program_id: outcome.ideal_s for outcome in known.outcomes}
        outcomes = [
            replace(outcome, ideal_s=ideals[outcome.program_id]) for outcome in self.outcomes
        ]
        return replace(self, outcomes=outcomes)

    def summary(self) -> Summary:
        return summarize(self.outcomes, self.counts if self.engines else None, self.busy_s)

    def summary_of(self, type: str) -> Summary:
        """Summarize the programs of one type, without the engines' counts."""
        return summarize([outcome for outcome in self.outcomes if outcome.type == type])
