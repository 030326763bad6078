"""``benchmarks scheduler``: the CPU time of agentrt's scheduler class in the engine core, and of
vLLM's scheduler class.

The real schedulers run over real KV-cache blocks without a model. Programs of several calls keep
the batch full: calls arrive, run and end, and their programs end. The CPU time of all calls from
the engine core to the scheduler is summed up. The cases take turns of a few steps. Each case has a
process of its own, like each engine core. Python specializes code for the classes that run it, so
schedulers of several classes would slow each other down in one process. The functions that a
scheduler calls are also counted; other work on the machine does not change this number.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, product
from multiprocessing.connection import Connection
from typing import Any

import click

import benchmarks.rivals  # noqa: F401  # makes their names known
from agentrt.executors.identity import to_extra_args
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    many,
    note,
    policy_option,
    seed_option,
    silence_vllm,
)
from agentrt.lab.engine.headless import BLOCK_SIZE, HeadlessEngine, make_scheduler, stock_scheduler
from agentrt.lab.runs.contenders import STOCK, Contender, check_parts, contenders
from agentrt.lab.runs.grid import turns
from agentrt.request import Identity
from benchmarks.harness import Column, Figures, Results, no_collections, ratios, run_with_table
from benchmarks.options import (
    counts,
    json_option,
    repeat_option,
)

CASES = (STOCK, "fcfs", "atlas", "adaptive", "adaptive+cost", "adaptive+cost+memory")
CALLS = 4
"""Number of consecutive calls of a program."""
PROMPT, GROWTH, LONGEST = 96, 64, 96
"""The tokens of a program's first prompt, the tokens that each later prompt adds, and the tokens of
the longest output.
"""
STEP_S = 0.02
METHODS = ("add_request", "schedule", "update_from_output", "control")
"""The methods of the scheduler that the engine core calls, by itself or for a client of agentrt."""
COLUMNS = (
    Column("us a step", "step_us", "{:.0f}"),
    Column("least us a step", "step_us", "{1:.0f}"),
    Column(f"us more than {STOCK}", "added_us", "{:+.0f}"),
    Column(f"step / {STOCK}", "step_to_stock"),
    Column("functions a step", "functions", "{:.0f}"),
    Column(f"functions / {STOCK}", "functions_to_stock", "{:.2f}"),
    Column("ends a step", "ends", "{:.2f}"),
    Column("preemptions a step", "preemptions", "{:.2f}"),
)


@click.command(cls=ManyCommand)
@policy_option(
    "Policies, optionally with a retention and an admission after plus signs.  [default: "
    f"{','.join(CASES)}]",
    former=["--cases"],
)
@many("--running", metavar="N,…", help="Numbers of calls in the batch.  [default: 4,64]")
@many("--waiting", metavar="N,…", help="Numbers of calls that wait.  [default: 10,1000]")
@count_option("--steps", "Number of steps in a turn.", default=200)
@repeat_option(15, "Number of turns of each case.")
@count_option(
    "--warm-up",
    about="Number of steps before the first measured step. With the default, the engine has seen "
    "few programs end; after 3000 steps, it knows all types of programs.  [default: as many "
    "as --steps]",
)
@seed_option
@json_option
def scheduler(**options: Any) -> None:
    """Measure the CPU time of a step of agentrt's scheduler and of vLLM's own scheduler."""
    cases = contenders([STOCK, *(options["policy"] or CASES)])
    check_parts(cases)
    silence_vllm()
    running = counts("--running", options["running"] or ("4", "64"))
    waiting = counts("--waiting", options["waiting"] or ("10", "1000"))
    measured = Results({"running": "running", "waiting": "waiting", "case": "case"})

    async def work() -> None:
        for size in product(running, waiting):
            note("{} running, {} waiting".format(*size))
            for name, figures in measure(cases, *size, options):
                measured.add(*size, name, figures=figures)
                await asyncio.sleep(0)  # let a signal stop the benchmark here

    run_with_table(work(), measured, COLUMNS, as_json=options["as_json"])


def measure(
    cases: Sequence[Contender], running: int, waiting: int, options: dict[str, Any]
) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of every case in each repeat. All cases serve the same programs."""
    with ExitStack() as stack:
        loads = {
            case.name: stack.enter_context(load_elsewhere(case, running, waiting, options["seed"]))
            for case in cases
        }
        names, steps = tuple(loads), options["steps"]
        for name in names:
            loads[name]("run", options.get("warm_up") or steps)
        functions = {name: loads[name]("functions", steps) for name in names}
        for repeat in range(options["repeat"]):
            here = {name: loads[name]("run", steps) for name in turns(names, repeat)}
            for name, timed in here.items():
                mine = {**timed, "functions": functions[name]}
                mine["functions_to_stock"] = functions[name] / functions[STOCK]
                over = ratios(mine, here[STOCK], ["step"], "_to_stock", of="_us")
                added = mine["step_us"] - here[STOCK]["step_us"]
                yield name, {**mine, **over, "added_us": added}


@contextmanager
def load_elsewhere(*made_of: Any) -> Iterator[Callable[[str, int], Any]]:
    """Run a `LoadedScheduler` in a process of its own. Yield a function that takes the
    name of a method of the `LoadedScheduler` and a number of steps, and calls this method.
    """
    context = multiprocessing.get_context("fork")  # vLLM takes seconds to import
    here, there = context.Pipe()
    process = context.Process(target=_answer, args=(here, there, made_of), daemon=True)
    process.start()
    there.close()

    def ask(method: str, steps: int) -> Any:
        here.send((method, steps))
        return here.recv()

    try:
        yield ask
    finally:
        here.close()
        process.join()


def _answer(other: Connection, requests: Connection, made_of: tuple[Any, ...]) -> None:
    other.close()  # so that this end of the pipe closes when the parent ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    load = LoadedScheduler(*made_of)
    with no_collections():
        while True:
            try:
                method, steps = requests.recv()
            except EOFError:
                return
            requests.send(getattr(load, method)(steps))


@dataclass(slots=True)
class LoadedScheduler:
    """A scheduler that serves programs. At each time, ``running + waiting`` programs have a call in
    the scheduler.
    """

    case: Contender
    running: int
    waiting: int
    seed: int
    engine: HeadlessEngine = field(init=False)
    preempted: int = 0
    _spent: dict[str, int] = field(init=False)
    _called: Counter[str] | None = None
    _programs: Iterator[int] = field(default_factory=count)
    _calls: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.case.config
        longest = PROMPT + CALLS * GROWTH + LONGEST
        made: Any = make_scheduler(
            _program_scheduler() if config else stock_scheduler(),
            max_num_seqs=self.running,
            blocks=2 * self.running * -(-longest // BLOCK_SIZE) + 1,
            settings=config.to_dict() if config else {},
        )
        self._spent = dict.fromkeys(METHODS, 0)
        for name in METHODS:
            if hasattr(made, name):
                setattr(made, name, self._timed(name, getattr(made, name)))
        made._preempt_request = self._counted(made._preempt_request)
        self.engine = HeadlessEngine(made, step_s=lambda work: STEP_S)
        for _ in range(self.running + self.waiting):
            self._arrive(next(self._programs), 0)

    def run(self, steps: int) -> Figures:
        """Do ``steps`` steps, and return the microseconds, the ended calls and the preemptions per
        step.
        """
        self._spent.update(dict.fromkeys(METHODS, 0))
        self.preempted = ended = 0
        for _ in range(steps):
            for call_id in self.engine.step().finished:
                ended += 1
                self._go_on(*self._calls.pop(call_id))
        us = {f"{name}_us": spent / 1000 / steps for name, spent in self._spent.items()}
        counted = {"ends": ended / steps, "preemptions": self.preempted / steps}
        return {"step_us": sum(us.values()), **us, **counted}

    def functions(self, steps: int) -> float:
        """Return the mean number of functions (of Python and C) that the scheduler calls in a step,
        over ``steps`` further steps.
        """
        self._called = called = Counter[str]()
        self.run(steps)
        self._called = None
        return (called["call"] + called["c_call"]) / steps

    def _go_on(self, program: int, calls: int) -> None:
        if calls + 1 < CALLS:
            self._arrive(program, calls + 1)
            return
        if self.case.config:
            self.engine.scheduler.control("ends", [f"p{program}"])
        self._arrive(next(self._programs), 0)

    def _arrive(self, program: int, call: int) -> None:
        draw = random.Random(f"{self.seed} {program}")
        prompt = draw.choices(range(10, 40_000), k=PROMPT + CALLS * GROWTH)
        lengths = [draw.randint(LONGEST // 6, LONGEST) for _ in range(CALLS)]
        call_id = f"p{program}/{call}"
        self._calls[call_id] = program, call
        identity = Identity(call_id, f"p{program}", f"type{program % 8}")
        extra = to_extra_args(identity)
        self.engine.add(call_id, prompt[: PROMPT + call * GROWTH], lengths[call], extra)

    def _counted(self, preempt: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: Any, **kwargs: Any) -> None:
            self.preempted += 1
            preempt(*args, **kwargs)

        return counted

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        spent, clock = self._spent, time.thread_time_ns

        def timed(*args: Any, **kwargs: Any) -> Any:
            if (called := self._called) is not None:
                sys.setprofile(lambda frame, event, arg: called.update((event,)))
            start = clock()
            try:
                return method(*args, **kwargs)
            finally:
                spent[name] += clock() - start
                if called is not None:
                    sys.setprofile(None)

        return timed


def _program_scheduler() -> type[Any]:
    # Not imported for stock, which must not pay for the changes that this makes to vLLM.
    from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler

    return ProgramScheduler
