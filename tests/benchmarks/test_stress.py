"""The stress in short: nothing breaks, nothing takes much longer, and it sees what is wrong."""

from __future__ import annotations

import itertools
import multiprocessing
import re
from dataclasses import replace
from typing import Any

import pytest

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import stock_scheduler
from benchmarks.__main__ import call
from benchmarks.stress.cases import Outcome, run_case, run_seeds, shrink
from benchmarks.stress.plans import (
    COMBINATIONS,
    CallPlan,
    CasePlan,
    Disturbance,
    EnginePlan,
    Gap,
    ProgramPlan,
    describe,
    draw_case,
)
from benchmarks.stress.ratios import (
    DEFAULT,
    POLICIES,
    by_policy,
    compare,
    policies_table,
    worst_of,
    worst_table,
)
from tests.cli.conftest import check

pytest.importorskip("vllm")

from vllm.v1.core.sched.interface import PauseState

pytestmark = pytest.mark.engine

CASES = len(COMBINATIONS)
PIECE = 15
WORKLOADS = range(100, 103)
LOSSES = (9204, 9211, 9243)
"""Workloads on engines without a prefix cache, with few slots."""
COPIES = ("loads", "stores", "failed_loads", "left_loading", "full_stores")


@pytest.mark.parametrize("first", range(0, CASES, PIECE))
def test_nothing_breaks_in_random_cases(first: int) -> None:
    """Every policy, retention and admission; a case that fails is shown with its seed."""
    outcomes = run_seeds(range(first, first + PIECE), twice=PIECE)
    failed = [outcome.report for outcome in outcomes if outcome.invariant]
    assert not failed, "\n".join(failed)


def test_nothing_breaks_with_host_memory() -> None:
    """Every policy, retention and admission, on an engine that offloads to host memory. Every two
    of these meet in every other case.

    Calls are aborted while they load, loads fail, and host memory is full.
    """
    seeds = range(0, CASES, 2)
    outcomes = [*run_seeds(seeds, twice=PIECE, always=("offload", "aborts"))]
    failed = [outcome.report for outcome in outcomes if outcome.invariant]
    assert not failed, "\n".join(failed)
    sums = [sum(getattr(outcome.figures, name) for outcome in outcomes) for name in COPIES]
    assert all(sums), dict(zip(COPIES, sums, strict=True))


def test_an_engine_has_at_most_one_connector(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(40):
        engine = draw_case(seed, always=["connector"]).engine
        assert engine.connector
        assert not engine.host
    check(capsys, call(["stress", "--always", "connector,offload"]), "--always", "name one of them")


def test_a_partly_filled_block_that_is_copied_again_ends_no_engine() -> None:
    """A turn of a streaming session ends in a block, and its next turn fills the block."""
    outcome = run_case(draw_case(991082))
    assert not outcome.invariant, outcome.report


@pytest.mark.parametrize("seed", [902421, 960663, 961884, 970046, 1100807, 1200465])
def test_cases_in_which_the_scheduler_failed_pass(seed: int) -> None:
    """Streaming sessions that were preempted or stored in host memory, and calls whose loaded
    blocks left no room for any call.
    """
    outcome = run_case(draw_case(seed))
    assert not outcome.invariant, outcome.report


@pytest.mark.parametrize("seed", range(1000, 1060))
def test_stocks_scheduler_passes_too(seed: int) -> None:
    """So what fails is not vLLM's own, and not a mistake of the stress."""
    outcome = run_case(draw_case(seed), stock_scheduler())
    assert not outcome.invariant, outcome.report


@pytest.mark.parametrize("seed", WORKLOADS)
def test_no_policy_takes_much_longer_than_stock(seed: int) -> None:
    ratios = compare(seed, POLICIES)
    above = [ratio for ratio in ratios if ratio.ratio > ratio.limit]
    assert not above, worst_table(worst_of(above, len(above)))
    (fcfs,) = (ratio for ratio in ratios if ratio.policy == "fcfs")
    assert (fcfs.ratio, fcfs.mean) == (1.0, 1.0)


@pytest.mark.parametrize("seed", LOSSES)
def test_policies_that_preempt_often_take_half_as_long_again_at_most(seed: int) -> None:
    """Without a prefix cache, each preemption loses the whole context of a call."""
    for ratio in compare(seed, ("round-robin", "mlfq")):
        assert ratio.ratio <= ratio.limit, ratio


def test_the_table_has_a_row_for_each_policy_and_the_worst_of_all() -> None:
    ratios = compare(5, [DEFAULT, "fcfs"])
    ratios[0] = replace(ratios[0], ratio=1.2)
    ratios[1] = replace(ratios[1], ratio=1.3)
    table = policies_table(by_policy(ratios))
    rows = [[cell.strip() for cell in row.split("|")] for row in table.splitlines()]
    assert [(row[1], row[5], row[8]) for row in rows[2:]] == [
        (DEFAULT, "1.200", "1"),
        ("fcfs", "1.300", "0"),
    ]
    worst = worst_of(ratios, 1)
    assert "| the order alone | preemptions: 0 for others" in worst_table(worst)
    assert "preemptions" not in worst_table(worst, figures=False)


# -- it sees what is wrong -------------------------------------------------------------


def plan(*programs: ProgramPlan, engine: EnginePlan | None = None, **fields: Any) -> CasePlan:
    sizes = engine or EnginePlan(slots=2, blocks=40, step_tokens=64, max_model_len=256)
    settings = {"policy": "atlas", "quanta": [0.1, 0.2]}
    return CasePlan(0, sizes, settings, programs, **fields)


def program(name: str, *stages: Any, **fields: Any) -> ProgramPlan:
    return ProgramPlan(name, "t", stages, **fields)


USUAL = plan(
    program("a", CallPlan("plain-1", fresh=50), Gap("tool", "x", 0.5), CallPlan("plain-2")),
    program("b", CallPlan("plain-3", fresh=70, output=12), end="twice"),
    program("c", CallPlan("plain-4", output=3), session="s", end="silent"),
)


class Forgets(ProgramScheduler):
    """Hears of no end."""

    def end_program(self, *args: Any) -> None: ...

    def use(self, *args: Any) -> None:
        super().use(*args)
        self.core.drop_stale = lambda now: None  # type: ignore[method-assign]


class Keeps(ProgramScheduler):
    """Holds a call that ended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ended: list[Any] = []

    def _call_finished(self, request: Any) -> Any:
        self.ended.append(self.core.calls.get(request.request_id))
        return super()._call_finished(request)


class Loses(ProgramScheduler):
    """Does not give back the blocks of a call."""

    def _free_blocks(self, request: Any) -> None:
        if request.request_id != "plain-3":
            super()._free_blocks(request)
        else:
            del self.requests[request.request_id]


class Mixes(ProgramScheduler):
    """Tells the model runner another call's block."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)
        for new in output.scheduled_new_reqs:
            if new.req_id == "plain-3":
                new.block_ids[0][0] = self.kv_cache_manager.get_block_ids("plain-1")[0][-1]
        return output


class Skips(ProgramScheduler):
    """Leaves out a token of a prompt."""

    def update_from_output(self, *args: Any) -> Any:
        outputs = super().update_from_output(*args)
        for request in self.running:
            request.num_computed_tokens += request.is_prefill_chunk
        return outputs


class Sleeps(ProgramScheduler):
    """Takes in no call any more after a while."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        state = self.pause_state
        if self.current_step > 8:
            self.set_pause_state(PauseState.PAUSED_NEW)
        output = super().schedule(*args, **kwargs)
        self.set_pause_state(state)
        return output


class Exceeds(ProgramScheduler):
    """Takes in a call more than it has slots."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_num_active_reqs += 1
        self.max_num_running_reqs += 1


class Fails(ProgramScheduler):
    """Dies of a call's end."""

    def _call_finished(self, request: Any) -> Any:
        raise KeyError(request.request_id)


class Swaps(ProgramScheduler):
    """Tells a client other tokens than the model said."""

    def update_from_output(self, output: Any, result: Any) -> Any:
        outputs = super().update_from_output(output, result)
        for each in outputs.values():
            for answer in each.outputs:
                answer.new_token_ids = [token + 1 for token in answer.new_token_ids]
        return outputs


class Unpauses(ProgramScheduler):
    """Runs while it is paused."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        state = self.pause_state
        self.set_pause_state(PauseState.UNPAUSED)
        output = super().schedule(*args, **kwargs)
        self.set_pause_state(state)
        return output


@pytest.mark.parametrize(
    ("cls", "invariant"),
    [
        (Forgets, "left"),
        (Keeps, "left"),
        (Loses, "left"),
        (Mixes, "memory"),
        (Skips, "order"),
        (Sleeps, "idle"),
        (Exceeds, "slots"),
        (Fails, "survives"),
        (Swaps, "output"),
    ],
)
def test_a_scheduler_that_is_wrong_is_found(cls: type[Any], invariant: str) -> None:
    assert not run_case(USUAL).invariant, run_case(USUAL).report
    outcome = run_case(USUAL, cls)
    assert outcome.invariant == invariant, outcome.report


class Overwrites(ProgramScheduler):
    """Does not wait for the stores of blocks that it gives to other calls."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)
        if output.kv_connector_metadata is not None:
            output.kv_connector_metadata.jobs_to_flush = set()
        return output


class Unlearns(ProgramScheduler):
    """Does not hear that copies have ended."""

    def update_from_output(self, output: Any, result: Any) -> Any:
        if result.kv_connector_output is not None:
            result.kv_connector_output.kv_connector_worker_meta = None
        return super().update_from_output(output, result)


@pytest.mark.parametrize(("cls", "invariant"), [(Overwrites, "memory"), (Unlearns, "progress")])
def test_a_scheduler_that_is_wrong_about_copies_is_found(cls: type[Any], invariant: str) -> None:
    plans = [draw_case(seed, always=("offload",)) for seed in range(12)]
    assert invariant in [run_case(case, cls).invariant for case in plans]


def test_a_pause_that_does_not_hold_is_found() -> None:
    paused = replace(USUAL, disturbances=(Disturbance(0.05, "all", 1.0),))
    assert not run_case(paused).invariant, run_case(paused).report
    assert run_case(paused, Unpauses).invariant == "paused"


@pytest.mark.parametrize(("better", "invariant"), [("another", "kept progress"), ("", "progress")])
def test_calls_that_lose_all_their_work_again_and_again_are_found(
    better: str, invariant: str
) -> None:
    class Rotates(ProgramScheduler):
        """Preempts whatever has not put anything out yet."""

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            if any(not request.num_output_tokens for request in self.running):
                for request in self.running:
                    self.core.calls[request.request_id].gave_way_to = better
                self.reset_prefix_cache(reset_running_requests=True)
            return super().schedule(*args, **kwargs)

    long = EnginePlan(4, 80, step_tokens=64, max_model_len=512, prefix_cache=False)
    programs = [
        program(f"p{n}", CallPlan(f"plain-{n}", fresh=200), arrives=500.0) for n in range(4)
    ]
    outcome = run_case(plan(*programs, engine=long), Rotates)
    assert outcome.invariant == invariant, outcome.report
    if invariant == "progress":
        now_s, latest_s = map(int, re.findall(r"(\d+) s\b", outcome.detail))
        assert now_s >= latest_s > programs[0].arrives


def test_a_seed_is_a_case_and_the_same_case_each_time() -> None:
    first, second, other = (run_case(draw_case(seed)) for seed in (4, 4, 5))
    assert first == second
    assert first.digest != other.digest


def test_a_failure_names_its_seed_settings_invariant_and_last_events() -> None:
    report = run_case(USUAL, Swaps).report
    assert report.startswith("seed 0: atlas+None+None: output: the call got the tokens [")
    assert "[plain-4]" in report
    assert "'policy': 'atlas'" in report
    assert "plain-4 sent by c: 52 + 3 tokens" in report
    assert "plain-3 sent by" not in report


def test_a_failing_case_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(case: CasePlan) -> Outcome:
        fails = {"b", "c"} <= {program.name for program in case.programs}
        outcome = run_case(case)
        return replace(outcome, invariant="output" if fails else "")

    monkeypatch.setattr("benchmarks.stress.cases.run_case", run)
    case = replace(USUAL, disturbances=(Disturbance(1.0, "messages"),))
    smaller, outcome = shrink(case, "output")
    assert outcome.invariant == "output"
    assert [line.split(" (")[0] for line in describe(smaller)] == ["0.000 s: b", "0.000 s: c"]


@pytest.mark.parametrize(("differing", "shown"), [(99, ["b"]), (2, [])])
def test_a_case_whose_runs_differ_shrinks_while_they_differ(
    differing: int,
    shown: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first ``differing`` runs of cases with the program b have different digests."""
    digests = itertools.count()

    def run(case: CasePlan) -> Outcome:
        outcome = run_case(case)
        if "b" in {program.name for program in case.programs}:
            return replace(outcome, digest=str(min(next(digests), differing)))
        return outcome

    monkeypatch.setattr("benchmarks.stress.cases.draw_case", lambda *kinds: USUAL)
    monkeypatch.setattr("benchmarks.stress.command.draw_case", lambda *kinds: USUAL)
    monkeypatch.setattr("benchmarks.stress.cases.run_case", run)
    assert call(["stress", "--seed", "0", "--cases", "1", "--shrink"]) == 1
    lines = capsys.readouterr().err.splitlines()
    programs = [line.split()[2] for line in lines if line.startswith("0.000 s: ")]
    assert programs == shown
    assert any("did not violate 'deterministic' again" in line for line in lines) == (not shown)
    assert any("two runs differ" in line for line in lines)


def test_the_command_counts_cases_and_tells_failures_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(seed: int) -> Outcome:
        outcome = run_case(replace(USUAL, seed=seed))
        return replace(outcome, invariant="output" if seed in (3, 5) else "")

    monkeypatch.setattr("benchmarks.stress.cases.draw_case", lambda seed, *kinds: seed)
    monkeypatch.setattr("benchmarks.stress.cases.run_case", run)
    assert call(["stress", "--seed", "2", "--cases", "2"]) == 1
    assert call(["stress", "--seed", "0", "--cases", "2"]) == 0
    assert call(["stress", "--seed", "2", "--cases", "5"]) == 1
    said = capsys.readouterr()
    assert "| output    | 2     | 3          |" in said.out
    assert "seed 5: " in said.err


def test_cases_in_several_processes_come_to_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two forks of this process, since to import vLLM takes a worker ten seconds."""
    forks = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: forks)
    monkeypatch.setattr("benchmarks.stress.cases._PIECE", 4)
    line = ["stress", "--seed", "80", "--cases", "12", "--without", "pauses"]
    codes = [call(line), call([*line, "--jobs", "2"])]
    said = capsys.readouterr()
    half = len(said.out.splitlines()) // 2
    assert codes[0] == codes[1]
    assert said.out.splitlines()[:half] == said.out.splitlines()[half:]
