"""Tenants that game the scheduler: what the scenarios hold equal, and what the others lose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median

import pytest

from agentrt.cli.app import call
from agentrt.errors import ConfigError
from agentrt.lab.outcome import Outcome
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.pressure import Pressure
from agentrt.lab.studies.adversaries import GAMER, ONE_OF, OTHERS, SCENARIOS, population
from agentrt.lab.studies.gaming import (
    Chained,
    Effect,
    effects,
    gamed_arrivals,
    run_count,
    split,
    whole,
)
from agentrt.lab.workloads.arrivals import Arrivals
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from tests.cli.test_bad_input import check

LYING = [name for name, scenario in SCENARIOS.items() if not scenario.everyone]
PAYING = ("split-2", "split-4", "new-names")
"""Those that cost the others more than a tenth on some seeds: see docs/results/adversaries.md."""
SMALL = ("--programs", "12", "--batch", "4", "--seeds", "1", "--load", "0.9")


def chain(*tokens: int, program_id: str = "p") -> ProgramShape:
    """A program whose calls come one after another."""
    calls = (
        CallShape(n, after=(i - 1,) if i else (), extends=i - 1 if i else None)
        for i, n in enumerate(tokens)
    )
    return ProgramShape(program_id, "chain", tuple(calls), tenant=GAMER)


def everything(arrivals: Arrivals) -> list[ProgramShape]:
    """All programs of a stream, if each takes a second."""
    found, waiting = [], list(arrivals.first())
    while waiting:
        program = waiting.pop(0)
        found.append(program)
        waiting += arrivals.after_end(program.program_id, program.arrives_s + 1.0)
    return found


def told(name: str) -> tuple[Sequence[ProgramShape], list[ProgramShape]]:
    """A scenario's programs, honestly and as the gamer has them."""
    scenario = SCENARIOS[name]
    work = Pressure.parse("0.9").arrange(scenario.work(population(60, 0), 0), 1.0, 0)
    return work, everything(gamed_arrivals(scenario, work, 0))


# -- what is held equal ----------------------------------------------------------------


def test_the_gamer_has_its_share_of_each_type() -> None:
    programs = population(120, 3)
    for name in ("chat", "react", "lats"):
        tenants = [program.tenant for program in programs if program.type == name]
        assert (tenants.count(GAMER), len(tenants)) == (len(tenants) // ONE_OF, 40)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_lie_changes_no_work_and_nothing_of_the_others_arrivals(name: str) -> None:
    honest, gamed = told(name)
    for tenant in (OTHERS, GAMER):
        work = [sum(p.output_tokens for p in ps if p.tenant == tenant) for ps in (honest, gamed)]
        assert work[0] == work[1] > 0
    calls = [
        {(p.program_id, p.arrives_s, p.calls) for p in ps if p.tenant == OTHERS}
        for ps in (honest, gamed)
    ]
    assert calls[0] == calls[1]


@pytest.mark.parametrize("name", LYING)
def test_only_the_gamer_lies(name: str) -> None:
    honest, gamed = told(name)
    assert {p for p in honest if p.tenant == OTHERS} == {p for p in gamed if p.tenant == OTHERS}
    assert {p for p in honest if p.tenant == GAMER} != {p for p in gamed if p.tenant == GAMER}


@pytest.mark.parametrize(("name", "factor"), [("grows", 10), ("shrinks", 0.1)])
def test_sizes_change_tenfold_halfway(name: str, factor: float) -> None:
    sizes = [p.output_tokens / len(p.calls) for p in told(name)[0] if p.tenant == GAMER]
    half = len(sizes) // 2
    early, late = median(sizes[: half + 1]), median(sizes[half + 1 :])
    assert late / early == pytest.approx(factor, rel=0.5)


def test_baits_are_the_beginning_of_the_long_ones() -> None:
    gamers = [p for p in told("nearly-done")[0] if p.tenant == GAMER]
    longest = max(gamers, key=lambda p: p.output_tokens)
    assert {p.type for p in gamers} == {"bait", "hook"}
    assert all(p.calls == longest.calls[: len(p.calls)] for p in gamers)
    assert {p.type for p in gamers[-5:]} == {"hook"}


# -- programs in parts -----------------------------------------------------------------


def test_a_program_is_cut_in_parts_of_about_the_same_work() -> None:
    first, second = split(chain(10, 10, 15, 5), 2)
    assert [c.output_tokens for c in first.calls] == [10, 10]
    assert [(c.output_tokens, c.after, c.extends) for c in second.calls] == [
        (15, (), None),
        (5, (0,), 0),
    ]
    assert first.program_id == "p" != second.program_id


@pytest.mark.parametrize("tokens", [(7,), (1, 100), (100, 1, 1), (1,) * 9])
def test_no_part_is_empty_and_nothing_is_lost(tokens: tuple[int, ...]) -> None:
    parts = split(chain(*tokens), 4)
    assert [c.output_tokens for part in parts for c in part.calls] == list(tokens)
    assert len(parts) <= min(4, len(tokens))
    assert len({part.program_id for part in parts}) == len(parts)


def test_a_part_arrives_when_the_one_before_it_ends() -> None:
    chained = Chained([split(chain(5, 5, 5), 3), [chain(1, program_id="q").arriving(2.0)]])
    assert [p.program_id for p in chained.first()] == ["p", "q"]
    (second,) = chained.after_end("p", 7.0)
    assert second.arrives_s == 7.0
    (third,) = chained.after_end(second.program_id, 9.0)
    assert chained.after_end(third.program_id, 11.0) == chained.after_end("q", 3.0) == ()


def test_the_parts_of_a_program_count_as_one() -> None:
    def part(program_id: str, arrived_s: float, ended_s: float) -> Outcome:
        return Outcome(program_id, "t", GAMER, arrived_s, ended_s, 1.0, 10, 1.0, 0.5, 0.0)

    one, other = whole([part("p", 1.0, 3.0), part("q", 0.0, 4.0), part("p~1", 3.0, 8.0)])
    assert (one.latency_s, one.ideal_s, one.output_tokens) == (7.0, 2.0, 20)
    assert other.latency_s == 4.0


def test_a_population_without_a_gamer_of_each_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="give 12 or more"):
        population(11, 0)


# -- what the others lose --------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> dict[str, list[Effect]]:
    """The effect of each lie on `adaptive`, of two seeds under two loads."""
    loads = [Pressure.parse("0.9"), Pressure.parse("b0.8")]
    scenarios = [SCENARIOS[name] for name in LYING]
    found: dict[str, list[Effect]] = {}
    for effect in effects(
        scenarios, ["adaptive"], loads, range(2), programs=60, machine=Machine(5)
    ):
        found.setdefault(effect.scenario, []).append(effect)
    return found


@pytest.mark.parametrize("name", LYING)
def test_the_others_mean_is_at_most_a_tenth_worse(
    name: str, small: dict[str, list[Effect]]
) -> None:
    assert len(small[name]) == 4
    assert median(effect.mean for effect in small[name]) <= 1.10
    if name not in PAYING:
        assert all(effect.mean <= 1.10 for effect in small[name])


@pytest.mark.parametrize("name", LYING)
def test_nobody_starves_for_a_lie(name: str, small: dict[str, list[Effect]]) -> None:
    assert all(effect.p99 <= 1.25 for effect in small[name])


def test_the_lies_reach_the_scheduler(small: dict[str, list[Effect]]) -> None:
    """All but `nearly-done`, which claims nothing: few long programs of it need not overtake."""
    moved = {name for name, found in small.items() if any(e.gamer != 1.0 for e in found)}
    assert moved | {"nearly-done"} == set(LYING)


def test_a_policy_that_reads_no_types_is_not_lied_to() -> None:
    scenarios = [SCENARIOS["short-name"], SCENARIOS["split-2"]]
    loads = [Pressure.parse("0.9")]
    lie, cut = effects(scenarios, ["atlas"], loads, [0], programs=40, machine=Machine(4))
    assert (lie.mean, lie.p99, lie.slowdown, lie.gamer) == (1.0,) * 4
    assert cut.gamer != 1.0


@pytest.mark.parametrize("names", [("split-2",), tuple(SCENARIOS)])
def test_every_run_is_counted(names: tuple[str, ...]) -> None:
    scenarios, policies, ended = [SCENARIOS[name] for name in names], ["adaptive", "fcfs"], []
    loads = [Pressure.parse("0.9")]
    found = effects(
        scenarios,
        policies,
        loads,
        [0],
        programs=12,
        machine=Machine(4),
        done=lambda: ended.append(1),
    )
    assert len(list(found)) == len(names) * len(policies)
    assert len(ended) == run_count(scenarios, policies)


# -- the command -----------------------------------------------------------------------


def test_the_table_has_a_row_per_scenario_and_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["simulate", "adversaries", *SMALL, "--scenario", "split-2", "tiny-hints"]) == 0
    text = capsys.readouterr().out
    assert "- split-2: each program is cut in two" in text
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| 0.9")]
    assert [row[2].strip() for row in rows] == ["split-2", "tiny-hints"]


def test_the_effects_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["simulate", "adversaries", *SMALL, "--scenario", "split-2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["policy"] == "adaptive"
    assert [e["policy"] for e in told["effects"]] == ["adaptive", "atlas", "fcfs"]
    assert all(e["mean"] > 0 for e in told["effects"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--policy", "best"], ["unknown policy 'best'", "adaptive"]),
        (["--policy", "adaptive+hints"], ["leave +hints out"]),
        (["--scenario", "lying"], ["unknown scenario 'lying'", "split-2"]),
        (["--load", "b9"], ["load 'b9'"]),
        (["--programs", "11"], ["--programs", "12"]),
        (["--seeds", "0"], ["--seeds"]),
    ],
)
def test_bad_usage(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call(["simulate", "adversaries", *args]), *words)
