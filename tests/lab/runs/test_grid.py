"""Grids of runs: what they run, what they compare, and that processes change nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from agentrt.errors import ConfigError, InvariantError
from agentrt.lab.commands.progress import run_all
from agentrt.lab.outcome import Summary
from agentrt.lab.program import Stock
from agentrt.lab.reports.compare import Series, as_dicts, cells
from agentrt.lab.runs.contenders import Contender, contenders
from agentrt.lab.runs.grid import RunSpec, Setting, Source, arrivals, do, grid
from agentrt.lab.workloads.arrivals import Pressure, bursts, share_in_time
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from benchmarks.steps import SlotMachine
from benchmarks.workloads.source import WorkloadSource

REACT = WorkloadSource("react")
SOME = Summary(
    programs=10,
    mean_s=4.0,
    p50_s=3.0,
    p95_s=8.0,
    p99_s=9.0,
    slowdown=2.0,
    token_latency_s=0.1,
    makespan_s=50.0,
    throughput_per_s=0.2,
    waiting_share=0.5,
    service_share=0.5,
    tool_share=0.0,
    preemptions=0,
)


def small(*names: str, loads: tuple[str, ...] = ("0.9",), seeds: int = 1) -> list[RunSpec]:
    settings = [Setting(REACT, Pressure.parse(load), 20) for load in loads]
    return grid(settings, contenders(names), range(seeds), SlotMachine(max_num_seqs=4))


# -- pressure --------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "b", "x", "0", "-1", "nan", "inf", "0.9.1", "b2", "b0.1"])
def test_a_bad_load_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"load '{text}'"):
        Pressure.parse(text)


def test_twice_the_load_is_half_the_time() -> None:
    programs = REACT.programs(50, 1)
    slow, fast = (Pressure("load", x).arrange(programs, 2.0, 7) for x in (0.5, 1.0))
    assert slow[-1].arrives_s == pytest.approx(2 * fast[-1].arrives_s)
    assert Pressure("load", 0.5).rate_per_s(
        SlotMachine(4).capacity_per_s(programs)
    ) == pytest.approx(0.5 * 4 / 0.025 * 50 / sum(p.output_tokens for p in programs))


def test_other_ways_to_arrive() -> None:
    programs = REACT.programs(5, 1)
    assert {p.arrives_s for p in Pressure("at-once").arrange(programs, 2.0, 7)} == {0.0}
    many = REACT.programs(1500, 1)
    for some, period in ((programs, 5), (many, 1000)):
        burst = bursts(some, 0.8 * 2.0, 7, load=0.8, period_programs=period)
        assert Pressure("bursts", 0.8).arrange(some, 2.0, 7) == burst
    assert Pressure("rate", 0.5).rate_per_s(9.0) == 0.5


# -- runs ------------------------------------------------------------------------------


def test_all_policies_of_a_seed_see_the_same_programs() -> None:
    first, second, third, fourth = small("fcfs", "atlas", seeds=2)
    order = [spec.contender.name for spec in (first, second, third, fourth)]
    assert order == ["fcfs", "atlas", "atlas", "fcfs"]
    assert arrivals(first) == arrivals(second)
    assert arrivals(third) == arrivals(fourth) != arrivals(first)


def test_processes_change_nothing_but_the_time_and_end_with_who_listens() -> None:
    specs = small("fcfs", "atlas", loads=("0.8", "0.9", "1.3"))
    alone = {result.spec: result.summary for result in run_all(specs, 1, do)}
    together = run_all(specs, 2, do)
    for _ in range(3):
        result = next(together)
        assert result.summary == alone.pop(result.spec)
    together.close()
    assert next(together, None) is None


def test_an_error_in_a_process_is_raised_here() -> None:
    bad = [replace(one, contender=Contender("s", Stock())) for one in small("fcfs", "atlas")]
    with pytest.raises(InvariantError, match="vLLM's own scheduler"):
        list(run_all(bad, 2, do))


# -- traces ----------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Source:
    """Four programs of one call each, a second apart."""
    line = '{{"id": "{0}", "start": {0}, "calls": [{{"t": 0, "in": 9, "out": 40}}]}}'
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(line.format, range(4))), encoding="utf-8")
    return Source("log", path)


def test_programs_of_a_trace_come_in_another_order_for_each_seed(log: Source) -> None:
    held = {program.program_id for program in log.trace().programs}
    orders = {tuple(p.program_id for p in log.programs(None, seed)) for seed in range(9)}
    assert len(orders) > 1
    assert all(set(order) == held for order in orders)
    assert [p.program_id for p in log.programs(2, 5)] == [
        p.program_id for p in log.programs(None, 5)[:2]
    ]


def test_programs_of_a_trace_come_again_once_all_have_come(log: Source) -> None:
    ids = [program.program_id for program in log.programs(10, 0)]
    assert len(set(ids)) == log.count(10) == 10
    assert [sorted(ids[:4])] * 2 == [
        sorted(name.removesuffix(f"#{again}") for name in ids[4 * again : 4 * again + 4])
        for again in (0, 1)
    ]


def test_recorded_programs_come_as_they_stand(log: Source) -> None:
    setting = Setting(log, Pressure("recorded"), 10)
    assert setting.count == 4
    assert setting.arrivals(SlotMachine(), 3) == log.trace().programs


def test_sleeping_programs_bring_their_work_late() -> None:
    """Two programs arrive at 0 and 10 s: a call of 5 s, and after a gap another one."""

    def arrive(gap_s: float) -> list[ProgramShape]:
        calls = (CallShape(5), CallShape(5, after=(0,), gap_s=gap_s))
        return [ProgramShape(f"{at_s}", "two", calls, arrives_s=at_s) for at_s in (0.0, 10.0)]

    assert share_in_time(arrive(0), 1.0) == 0.5
    assert share_in_time(arrive(3), 1.0) == 0.35
    assert share_in_time(arrive(60), 1.0) == 0.25


# -- guesses of sizes ------------------------------------------------------------------


def test_only_policies_with_hints_are_told_sizes() -> None:
    plain, told, best = small("fcfs", "fcfs+hints", "srpt+hints")
    assert [spec.contender.name for spec in (plain, told, best)] == [
        "fcfs",
        "fcfs+hints",
        "srpt+hints",
    ]
    configs = [spec.contender.config for spec in (told, best)]
    assert [config.policy for config in configs if config] == ["fcfs", "srpt"]
    assert {program.hint_tokens for program in arrivals(plain)} == {None}
    assert all(program.hint_tokens for program in arrivals(told))
    assert [replace(p, hint_tokens=None) for p in arrivals(told)] == arrivals(plain)
    assert do(told).summary == do(plain).summary


# -- comparison ------------------------------------------------------------------------


def test_ratios_are_to_the_baseline_of_the_same_seed() -> None:
    specs = small("fcfs", "srpt", seeds=2)
    results = [do(spec) for spec in specs]
    base, best = cells(results, [specs[0].setting], ["fcfs", "srpt"], "fcfs")
    assert base.ratios("mean_s") == [1.0, 1.0]
    means = {(r.spec.seed, r.spec.contender.name): r.summary.mean_s for r in results}
    expected = [means[seed, "srpt"] / means[seed, "fcfs"] for seed in (0, 1)]
    assert best.ratios("mean_s") == pytest.approx(expected)


def test_what_was_not_done_is_left_out() -> None:
    specs = small("fcfs", "atlas", seeds=2)
    found = cells([do(specs[1])], [specs[0].setting], ["fcfs", "atlas"], "fcfs")
    assert [cell.name for cell in found] == ["atlas"]
    assert found[0].ratios("mean_s") == []


def test_what_is_not_known_has_no_ratio_and_is_json() -> None:
    setting = Setting(REACT, Pressure.parse("0.9"), 20)
    unknown = {0: replace(SOME, slowdown=math.nan)}
    for baseline in ({0: SOME}, unknown):
        cell = Series(setting, "atlas", summaries=unknown, baseline=baseline)
        measured = as_dicts([cell], ["slowdown"])[0]
        assert set(measured["measures"]["slowdown"].values()) == {None}
        json.dumps(measured, allow_nan=False)
