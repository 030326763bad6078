"""`agentrt compare` from end to end, on an engine in virtual time: what it says is exact there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("vllm")

from agentrt import Runtime
from agentrt.cli.app import call
from agentrt.engines import EngineOptions
from agentrt.lab.runs.comparison import GAIN, LOSS, NOTHING, Comparison, ProgramRun
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals
from tests.cli.conftest import check
from tests.lab.virtual_world import MACHINE, TIMES, World

pytestmark = pytest.mark.engine

CHAT = """
from agentrt import program

@program
async def chat(ctx):
    return str(await ctx.llm(f"A question of {ctx.run_id}", max_tokens=12))
"""
SEARCH = """
from agentrt import program

@program
async def search(ctx):
    for turn in range(6):
        await ctx.llm(f"{ctx.run_id} in turn {turn}", max_tokens=40)
"""
ASKS = """
from agentrt import program

@program
async def asks(ctx):
    await ctx.llm(f"A question of {ctx.run_id}", max_tokens=12)
    more = await ctx.human("Go on?", choices=["yes", "no"])
    await ctx.llm(f"{more} for {ctx.run_id}", max_tokens=12)
"""
GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from agentrt.integrations.langchain import ChatAgentRT

class State(TypedDict):
    text: str

async def say(state: State) -> State:
    reply = await ChatAgentRT(max_tokens=9).ainvoke(state["text"])
    return {"text": interrupt("Is it?") if state["text"] == "ask" else reply.text}

graph = StateGraph(State).add_node("say", say).add_edge(START, "say").compile()
"""


class Engine(World):
    """An embedded engine for one command, which runs so many ``programs`` at a time."""

    def __init__(self, options: EngineOptions, programs: int) -> None:
        super().__init__(options.scheduler, MACHINE.virtual_options(), TIMES)
        self.orders = [options.scheduler]
        self.awake = self._programs = programs

    async def configure(self, config: SchedulerConfig) -> None:
        self.engine.scheduler.control("configure", config.to_dict())
        self.orders.append(config)
        self.awake = self._programs

    async def forget_prefixes(self) -> None:
        assert self.engine.scheduler.reset_prefix_cache()

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        await super().end_program(program_id, totals)
        self.rests()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], list[Engine]]:
    """Has the next commands run on engines for so many programs, in their time; returns those."""
    made = list[Engine]()
    for name, source in (("chat", CHAT), ("search", SEARCH), ("graph", GRAPH)):
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    terms = Runtime.__init__.__kwdefaults__
    assert terms is not None
    monkeypatch.setitem(terms, "clock", lambda: made[-1].now)

    def for_programs(count: int) -> list[Engine]:
        def make(options: EngineOptions) -> Engine:
            made.append(Engine(options, count))
            return made[-1]

        monkeypatch.setattr("agentrt.engines.VLLMEngine", make)
        return made

    return for_programs


def compared(capfd: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    capfd.readouterr()
    assert call(["compare", *args, "--json"]) == 0, capfd.readouterr().err
    found: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return found


def test_chats_beside_searches_gain_and_the_replay_is_as_the_engine(
    engines: Callable[[int], list[Engine]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = engines(12)
    monkeypatch.setattr("agentrt.lab.commands.compare.fitted", lambda run: TIMES)
    mix = ("search.py", "chat.py", "--n", "6", "--repeat", "3")
    replayed, real = compared(capfd, *mix), compared(capfd, *mix, "--real")
    assert replayed["verdict"] == real["verdict"] == GAIN
    # Who comes first among alike is decided by little once it has learned.
    for name, close in (("ratios", 0.25), ("first", 0.01)):
        assert replayed["mean"][name][0] == pytest.approx(real["mean"][name][0], rel=close)
    assert replayed["off"] < 0.01
    assert real["off"] == 0
    stock_order, ours = SchedulerConfig("fcfs"), SchedulerConfig()
    assert made[0].orders == [stock_order]
    assert [replace(order, history=None) for order in made[1].orders] == [stock_order, ours] * 4

    stock, ours = replayed["stock"], replayed["agentrt"]
    assert [one["type"] for one in stock] == ["chat"] * 6 + ["search"] * 6
    chats = [fmean(one["seconds"] for one in run[:6]) for run in (stock, ours)]
    assert chats[1] < 0.6 * chats[0]
    for one in [*stock, *ours]:
        told = {share["reason"]: share for share in one["reasons"]}
        assert sum(share["seconds"] for share in told.values()) == pytest.approx(one["seconds"])
        assert {cause["program"] for cause in told.get("queued", {"by": []})["by"]} <= {
            *(other["id"] for other in stock)
        }


def test_a_change_that_some_pair_of_runs_lacks_is_no_gain_and_the_report_says_the_rule(
    engines: Callable[[int], list[Engine]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replayed steps are half as long as the engine's, so a change must be above a half."""
    engines(12)
    times = replace(TIMES, base_s=TIMES.base_s / 2)
    monkeypatch.setattr("agentrt.lab.commands.compare.fitted", lambda run: times)
    assert call(["compare", "search.py", "chat.py", "--n", "6", "--repeat", "3"]) == 0
    verdict = capfd.readouterr().out.splitlines()[-2]
    assert verdict.startswith("no gain: on average, a run takes ")
    assert "% less time than under stock vLLM" in verdict
    assert "only if every pair of runs has it by more than" in verdict


def test_changes_of_less_than_one_percent_are_no_zeros(
    engines: Callable[[int], list[Engine]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. The error of the replay, which a change must exceed. 2. A small gain in every pair."""
    engines(3)
    times = replace(TIMES, base_s=1.004 * TIMES.base_s)
    monkeypatch.setattr("agentrt.lab.commands.compare.fitted", lambda run: times)
    command = ["compare", "search.py", "--n", "3", "--repeat", "3"]
    assert call(command) == 0
    assert re.search(r"has it by more than 0\.[1-9]%, because", capfd.readouterr().out)

    def small_gain(*_: object) -> Comparison:
        shape = ProgramShape("one", "one", (CallShape(1),))
        stock, ours = ([[ProgramRun(shape, 0.0, ended, {})]] * 3 for ended in (100.0, 99.7))
        return Comparison(stock, ours, stock)

    monkeypatch.setattr("agentrt.lab.commands.compare._replayed", small_gain)
    assert call(command) == 0
    out = capfd.readouterr().out
    assert (
        "\ngain: on average, a run takes less than 1% less time than under stock vLLM once" in out
    )
    assert "and the same time as under stock vLLM the first time" in out


def test_who_waits_for_nobody_gains_nothing(
    engines: Callable[[int], list[Engine]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engines(3)
    assert call(["compare", "search.py", "--n", "3", "--plot", "ends.svg"]) == 0
    out = capfd.readouterr().out
    assert "\nno gain: on average, a run takes the same time as under stock vLLM once" in out
    assert " 0% (0% to 0%)" in out
    assert "waiting for a batch slot" not in out
    assert out.endswith("agentrt had no history of these programs; nothing is saved\n")
    texts = [one.text for one in ElementTree.parse(tmp_path / "ends.svg").iter() if one.text]
    assert {"search-1", "search-2", "search-3"} <= {*texts}
    assert not any("script" in one.tag for one in ElementTree.parse(tmp_path / "ends.svg").iter())


@pytest.mark.parametrize("real", [(), ("--real",)], ids=["replayed", "real"])
def test_a_comparison_starts_from_what_earlier_ones_taught_and_says_so(
    real: tuple[str, ...],
    engines: Callable[[int], list[Engine]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """1. Nothing is known. 2. All is known, so the first run is as good as the next ones. 3. A new
    type is told apart. 4. Without a history, it is as at first."""
    engines(12)
    mix = ("search.py", "chat.py", "--n", "6", "--repeat", "3", *real)
    path = str(tmp_path / "kept.json")
    first = compared(capfd, *mix, "--history", path)
    assert first["history"] == {"file": path, "known": [], "new": ["search", "chat"]}
    again = compared(capfd, *mix, "--history", path)
    assert again["history"] == {"file": path, "known": ["search", "chat"], "new": []}
    assert again["mean"]["first"][0] < first["mean"]["first"][0] - 0.05

    engines(6)
    some = ("search.py", 'graph.py={"text": "a"}', "--n", "3", "--repeat", "3", *real)
    capfd.readouterr()
    assert call(["compare", *some, "--history", path]) == 0
    out = capfd.readouterr().out
    assert " with the earlier history" in out
    last = f"agentrt knew search from {path}, but not graph; --history none ignores that file"
    assert out.splitlines()[-1] == last

    engines(12)
    without = compared(capfd, *mix, "--history", "none")
    assert without["history"] == {"file": None, "known": [], "new": ["search", "chat"]}
    assert without["mean"]["first"] == pytest.approx(first["mean"]["first"], rel=1e-3)


def test_graphs_run_beside_programs_each_with_its_input(
    engines: Callable[[int], list[Engine]], capfd: pytest.CaptureFixture[str]
) -> None:
    engines(6)
    found = compared(
        capfd, 'graph.py={"text": "a"}', "search.py", 'graph.py={"text": "b"}', "--n", "2"
    )
    assert [one["type"] for one in found["stock"]] == ["graph"] * 4 + ["search"] * 2


def test_each_program_gets_the_prepared_answers(
    engines: Callable[[int], list[Engine]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engines(3)
    (tmp_path / "asks.py").write_text(ASKS)
    args = ("asks.py", "--n", "3", "--repeat", "3", "--human", "yes", "--real")
    assert [one["type"] for one in compared(capfd, *args)["stock"]] == ["asks"] * 3


QUIET = """
from agentrt import program

seen = []

@program
async def quiet(ctx):
    seen.append(ctx.run_id)
    if len(seen) <= {calls}:
        await ctx.llm(f"A question of {{ctx.run_id}}", max_tokens=12)
"""


@pytest.mark.parametrize(
    ("calls", "how"), [(0, ()), (2, ("--real", "--repeat", "3"))], ids=["replayed", "real"]
)
def test_programs_without_calls_are_left_out_of_all_runs(
    calls: int,
    how: tuple[str, ...],
    engines: Callable[[int], list[Engine]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also programs that make a call in one run only, because the runs are compared in pairs."""
    engines(5)
    (tmp_path / "quiet.py").write_text(QUIET.format(calls=calls))
    mix = "search.py", "quiet.py", "quiet.py", 'graph.py={"text": "a"}', "search.py"
    capfd.readouterr()
    assert call(["compare", *mix, "--n", "1", "--json", *how]) == 0
    out, err = capfd.readouterr()
    assert [run["type"] for run in json.loads(out)["stock"]] == ["graph", "search", "search"]
    assert "left out, because no call was answered in one of their runs: 2 of 5 programs (" in err


def test_what_cannot_be_compared_is_refused(
    engines: Callable[[int], list[Engine]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engines(1)
    none = "from agentrt import program\n\n@program\nasync def main(ctx):\n    {}\n"
    (tmp_path / "silent.py").write_text(none.format("pass"))
    (tmp_path / "broken.py").write_text(none.format("1 / 0"))
    (tmp_path / "asks.py").write_text(ASKS)
    for args, said in (
        ((), "missing argument"),
        (("none.py",), "none.py"),
        (("chat.py", "--plot", "a.png"), "must end in .svg"),
        (("chat.py", "--repeat", "2"), "--repeat"),
        (("chat.py=tea",), "takes no input"),
        (("graph.py",), "needs an input"),
        (("chat.py", "--model", "./none"), "none"),
        (("chat.py", "--history", "silent.py"), "name a file that this version of agentrt wrote"),
    ):
        capfd.readouterr()
        check(capfd, call(["compare", *args]), said)
    for args, code, said in (
        (("silent.py",), 2, "error: run main-1 made no call that a model answered"),
        (("chat.py",), 2, "error: 1 calls are too few to replay; give a larger --n, or use --real"),
        (("graph.py", "--input", '{"text": "ask"}'), 2, "error: graph run graph-1 asks a human"),
        (("asks.py",), 2, "add --human TEXT once for each question"),
        (("asks.py", "--human", "maybe"), 2, "--human 'maybe': "),
        (("broken.py",), 1, "ZeroDivisionError"),
    ):
        assert call(["compare", *args, "--n", "1"]) == code
        assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("stock", "ours", "off", "verdict"),
    [
        ((10, 10, 10), (8, 9.9, 8), 0.0, GAIN),
        ((10, 10, 10), (8, 9, 8), 0.1, NOTHING),
        ((10, 10, 10), (8, 10.1, 8), 0.0, NOTHING),
        ((10, 20, 10), (11, 21, 11), 0.0, LOSS),
        ((10, 20, 10), (11, 21, 11), 0.06, NOTHING),
        ((10, 10, 10), (10, 10, 10), 0.0, NOTHING),
    ],
)
def test_a_difference_is_one_if_all_pairs_have_it(
    stock: tuple[float, ...], ours: tuple[float, ...], off: float, verdict: str
) -> None:
    shape = ProgramShape("one", "one", (CallShape(1),))
    runs = [[[ProgramRun(shape, 0.0, ended, {})] for ended in times] for times in (stock, ours)]
    assert Comparison(runs[0], runs[1], [], off).verdict == verdict
