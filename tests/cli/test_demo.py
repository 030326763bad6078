"""`agentrt demo`: what it shows of both orders is what its rounds came to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from agentrt.cli.demo import rounds as rounds_of_demo
from agentrt.cli.demo.rounds import (
    OURS,
    SLOTS,
    STOCK,
    DemoComparison,
    Means,
    Rounds,
    print_comparison,
    seconds,
    watched,
)
from agentrt.cli.demo.stage import VirtualTimeLoop, rounds_in_virtual_time
from agentrt.engines import EngineOptions, SimulatedEngine
from agentrt.errors import ConfigError, EngineDiedError
from agentrt.graph import NodeKind
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run
from agentrt.scheduler.config import SchedulerConfig
from tests.cli.conftest import Invoke
from tests.cli.conftest import Run as RunCommand

FIGURE = re.compile(r"\d+\.\d")
STEP_S = 0.0005


class FakeVLLM(SimulatedEngine):
    """The simulated engine in place of the real one: fast, and it keeps what was asked of it."""

    made: FakeVLLM

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options.scheduler, slots=options.max_num_seqs or 0, step_s=STEP_S)
        self.asked: list[SchedulerConfig | str] = []
        FakeVLLM.made = self

    async def configure(self, scheduling: SchedulerConfig) -> None:
        self.asked.append(scheduling)
        await super().configure(scheduling)

    async def forget_prefixes(self) -> None:
        self.asked.append("forget")


class DyingVLLM(FakeVLLM):
    async def forget_prefixes(self) -> None:
        raise EngineDiedError("the engine is gone")


@pytest.fixture
def fast(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines and tools that take next to no time where time is real."""
    monkeypatch.setattr("agentrt.engines.VLLMEngine", FakeVLLM)
    quick = partial(SimulatedEngine, step_s=STEP_S)
    monkeypatch.setattr("agentrt.cli.demo.stage.SimulatedEngine", quick)
    monkeypatch.setattr("agentrt.cli.demo.programs.search", lambda question: "nothing new")


def virtual_rounds() -> Rounds:
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(rounds_in_virtual_time())
    finally:
        loop.close()


def ends(runs: Sequence[Run]) -> dict[str, float]:
    return {run.id: seconds(run) for run in runs}


def mean(runs: Sequence[Run]) -> float:
    return Means.of(runs).all


def means(short: float, long: float, longest: float = 10.0) -> Means:
    return Means(short, long, (5 * short + 3 * long) / 8, longest)


# -- the rounds ------------------------------------------------------------------------


def test_each_round_runs_the_same_programs_with_the_same_answers() -> None:
    rounds = virtual_rounds()
    each = [*rounds.stock, *rounds.first, *rounds.known]
    assert len(each) == 3
    kinds = ["report"] * 3 + ["lookup"] * 5
    assert [[run.type for run in runs] for runs in each] == [kinds] * 3
    said = [[run.result for run in runs] for runs in each]
    assert said[0] == said[1] == said[2]


def test_virtual_time_gives_the_same_rounds_each_time() -> None:
    one, other = virtual_rounds(), virtual_rounds()
    for mine, yours in ((one.stock, other.stock), (one.first, other.first)):
        assert ends(mine[0]) == pytest.approx(ends(yours[0]))
    assert ends(one.known[0]) == pytest.approx(ends(other.known[0]))


def test_the_first_round_of_agentrt_knows_nothing_and_the_next_one_does() -> None:
    """They take as long as the first programs of a fresh engine, and its next ones.

    Not to the last digit: with equal ranks, the clock's rounding decides.
    """

    async def alone(again: bool) -> list[Run]:
        clock = asyncio.get_running_loop().time
        engine = SimulatedEngine(OURS, slots=SLOTS, clock=clock)
        async with Runtime(engine, clock=clock) as runtime:
            runs = await watched(runtime, lambda name, runs: None)
            return await watched(runtime, lambda name, runs: None) if again else runs

    rounds = virtual_rounds()
    for again, [runs] in ((False, rounds.first), (True, rounds.known)):
        loop = VirtualTimeLoop()
        fresh = loop.run_until_complete(alone(again))
        loop.close()
        assert mean(fresh) == pytest.approx(mean(runs), rel=0.04)


def test_stocks_order_is_that_of_the_calls_arrival() -> None:
    """A program's wait for a slot, in stock's order, ends in the order in which waits began."""
    [runs] = virtual_rounds().stock
    nodes = [node for run in runs for node in run.dag.nodes() if node.kind is NodeKind.CALL]
    assert len(nodes) == 45
    came = sorted(nodes, key=lambda node: node.created_at)
    began = [node.started_at or 0.0 for node in came]
    assert began == sorted(began)


# -- the words -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (
            means(5, 10),
            ["a gain", "less than", "Short programs end 50% sooner", "at the same time"],
        ),
        (means(11, 12), ["a loss", "more than", "10% later", "long programs 20% later"]),
        (means(10, 10), ["no gain"]),
        (means(9.96, 10.04), ["no gain", "at the same time"]),
        (means(7, 15), ["no gain", "30% sooner", "long programs 50% later"]),
        (means(5, 10, 12), ["a gain", "the last program 20% later"]),
    ],
)
def test_the_verdict_is_what_the_means_say(mine: Means, words: list[str]) -> None:
    stock = means(10, 10)
    first, known = DemoComparison([stock], [mine], [stock]).sentences()
    assert first.startswith("First run, ")
    assert [word for word in words if word not in first] == []
    assert sum(verdict in first for verdict in ("a gain.", "a loss.", "no gain.")) == 1
    assert "no gain." in known
    _, known = DemoComparison([stock], [stock], [mine]).sentences()
    assert [word for word in words if word not in known] == []


STOCK_ROUNDS = [means(10, 10), means(11, 11), means(9, 9)]


@pytest.mark.parametrize(
    ("mine", "verdict", "short"),
    [
        ([means(8, 8), means(8.9, 8.9)], "a gain.", "Short programs end 16% sooner,"),
        ([means(7, 7), means(9, 9)], "no gain.", "end 20% sooner (chance),"),
        ([means(13, 13), means(11, 11)], "no gain.", "end 20% later (chance),"),
        ([means(13, 13), means(12, 12)], "a loss.", "Short programs end 25% later,"),
        ([means(5, 14), means(5.5, 14)], "a gain.", "long programs 40% later,"),
    ],
)
def test_with_several_rounds_all_have_to_agree(mine: list[Means], verdict: str, short: str) -> None:
    first, known, rule = DemoComparison(STOCK_ROUNDS, mine, STOCK_ROUNDS[:2]).sentences()
    assert verdict in first
    assert short in first
    assert "no gain." in known
    assert "in 3 rounds, and agentrt's order in 2 first runs" in rule
    assert "chance" in rule


# -- the command -----------------------------------------------------------------------


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("kind", ["simulated", "vllm"])
def test_tables_and_sentences_have_the_same_figures(kind: str, command: RunCommand) -> None:
    ran = command("demo", "--engine", kind, "--no-dashboard")
    assert ran.code == 0, ran.err
    rows = {line[:16].strip(): FIGURE.findall(line) for line in ran.out.splitlines()}
    assert len(rows["longest"]) == 3
    stock, first, known = rows["all"]
    told = " ".join(ran.out.split())
    of_first, of_known = re.findall(r"A program takes (\d+\.\d) s .*? (\d+\.\d) s", told)
    assert (of_first, of_known) == ((first, stock), (known, stock))
    programs = [f"report-{n}" for n in (1, 2, 3)] + [f"lookup-{n}" for n in (4, 5, 6, 7, 8)]
    assert [line.split()[0] for line in ran.out.splitlines() if "-" in line[:8]] == programs


@pytest.mark.usefixtures("fast")
def test_it_says_that_nothing_is_gained_where_both_orders_are_the_same(
    command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_of_demo, "OURS", STOCK)
    ran = command("demo", "--engine", "simulated", "--no-dashboard")
    told = " ".join(ran.out.split())
    assert told.count("no gain.") == 2
    assert "a gain" not in told
    assert "loss" not in told


@pytest.mark.usefixtures("fast")
def test_a_real_engine_runs_stocks_order_before_and_after(command: RunCommand) -> None:
    """It learns nothing before agentrt's first round, and no round finds another's prompts."""
    ran = command("demo", "--engine", "vllm", "--no-dashboard")
    assert ran.code == 0, ran.err
    forget = "forget"
    cycle = [STOCK, forget, OURS, forget, forget]
    assert FakeVLLM.made.asked == [*cycle, *cycle, STOCK, forget]
    assert FakeVLLM.made.slots == SLOTS
    shown = [line for line in ran.err.splitlines() if line.startswith(("warming", "round"))]
    assert [line.partition(":")[0] for line in shown] == ["warming up"] + [
        f"round {number} of 7" for number in range(1, 8)
    ]


@pytest.mark.usefixtures("fast")
def test_it_ends_with_commands_that_go_on(
    invoke: Invoke, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Any] = []

    def run(*job: Any, **options: Any) -> int:
        compared.append(job)
        return 0

    monkeypatch.setattr("agentrt.lab.commands.compare._run", run)
    for kind in ("simulated", "vllm"):
        assert invoke("demo", "--engine", kind, "--no-dashboard") == 0
        lines = capsys.readouterr().err.partition("next:\n")[2].splitlines()
        commands = [line.partition(": agentrt ")[2].split() for line in lines]
        assert len(commands) == 2
        if kind == "simulated":
            assert commands[0] == ["demo", "--engine", "vllm"]
        else:
            assert invoke(*commands[0]) == 0
            assert len(compared) == 1


@pytest.mark.usefixtures("fast")
def test_an_engine_that_dies_ends_it_with_one_line(
    command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.engines.VLLMEngine", DyingVLLM)
    ran = command("demo", "--engine", "vllm", "--no-dashboard")
    assert (ran.code, ran.out) == (1, "")
    assert re.fullmatch(r"error: the engine is gone \(vLLM's own log: \S+\)", ran.said)


@pytest.mark.parametrize("args", [["--engine", "simulated", "--model", "m"], ["--model", "./no"]])
def test_a_mistake_is_refused_before_anything_runs(args: list[str], refused: Any) -> None:
    refused("demo", *args, says=["--model" if "simulated" in args else "no such folder"])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_comparison(virtual_rounds())
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out


# -- virtual time ----------------------------------------------------------------------


def in_virtual_time(work: Any) -> Any:
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_virtual_seconds_are_those_that_were_waited_for() -> None:
    async def work() -> tuple[float, list[str]]:
        loop, order = asyncio.get_running_loop(), list[str]()

        async def after(seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append(f"{seconds:g}")

        began = loop.time()
        await asyncio.gather(after(3600), after(0.5), after(60))
        return loop.time() - began, order

    took, order = in_virtual_time(work())
    assert took == pytest.approx(3600, abs=0.01)
    assert order == ["0.5", "60", "3600"]


def test_no_two_looks_at_a_virtual_clock_are_the_same() -> None:
    async def work() -> list[float]:
        loop = asyncio.get_running_loop()
        return [loop.time() for _ in range(100)]

    looks = in_virtual_time(work())
    assert looks == sorted(set(looks))


def test_a_thread_can_wake_a_loop_in_virtual_time() -> None:
    async def work() -> str:
        return await asyncio.to_thread(lambda: "done")

    assert in_virtual_time(work()) == "done"


# -- the simulated engine --------------------------------------------------------------


async def test_the_simulated_engine_changes_its_order_only_while_it_is_idle() -> None:
    engine = SimulatedEngine(STOCK, slots=1, step_s=0.001)
    async with Runtime(engine) as runtime:
        running = asyncio.create_task(watched(runtime, lambda name, runs: None))
        while not (await engine.snapshot())["requests"]:
            await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="calls are unfinished"):
            await engine.configure(OURS)
        running.cancel()
        await asyncio.wait([running])
