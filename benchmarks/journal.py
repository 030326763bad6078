"""``benchmarks journal``: the CPU time of a journal for each call.

The same programs run in this process with a journal and without a journal, in turns. The engine
answers at once, so that a call costs little besides its journal. With ``--real``, the programs also
run on vLLM's engine; the CPU time of this engine's own process does not count.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from agentrt.cli.engine_log import EngineLog, start_engine
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.executors.base import Chunk, Executor
from agentrt.executors.history import NONE
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.journal import Content
from agentrt.journal.store import SQLiteStore
from agentrt.lab.commands.options import (
    count_option,
    flag_option,
    note,
)
from agentrt.lab.runs.grid import turns
from agentrt.program import Context, Program
from agentrt.request import Call, CallReport, Reply
from agentrt.runtime import Runtime
from agentrt.runtime.durable import Durable
from agentrt.scheduler.config import SchedulerConfig
from benchmarks.harness import Column, Results, run_shown, show
from benchmarks.options import (
    json_option,
    repeat_option,
)

OFF, INSTANT, VLLM = "off", "answers at once", "vLLM"
_KEPT: Sequence[Content] = ("none", "full")
SIDES: Sequence[str] = (OFF, *_KEPT)
_PROMPT = "What does the harvest of the northern fields need before the first frost? " * 8
_WORD = "dry, "
_BY = [["other-1", 0, 0.5], ["other-2", 1, 2.5]]
_SPANS = [
    ["queued", 0.125, 0, 0.5, 0, _BY],
    ["prefill", 0.05, 0, 0.5, 130, []],
    ["decode", 0.2, 1, 0.5, 128, []],
]
"""Spans like those of vLLM's engine."""
_SPREAD = "{:.0f} ({:.0f}-{:.0f})"
COLUMNS = (
    Column("CPU us a call", "cpu_us", _SPREAD),
    Column("more than off, us", "more_us", _SPREAD),
    Column("CPU / off", "to_off", "{:.3f} ({:.3f}-{:.3f})"),
)
EPILOG = """\b
Examples:
  python -m benchmarks journal --repeat 20
  python -m benchmarks journal --real --calls 10 --json

\b
Each row is a value of agentrt run's --journal-content; off is without a journal. CPU is the
processor time of this process, including the time of the kernel. Each repeat measures all rows; the
last two columns compare a row with the row off of the same repeat.
"""


@click.command(epilog=EPILOG)
@count_option("--programs", default=16, about="Number of programs at once.")
@count_option("--calls", default=40, about="Number of calls of each program, one after the other.")
@count_option("--tokens", default=128, about="Number of tokens of each answer.")
@repeat_option(10, "Number of turns of each row.")
@flag_option("--real", "Run also on a real engine of vLLM.")
@json_option
def journal(**options: Any) -> None:
    """Compare the processor time of a call with a journal and without a journal."""
    load = JournalLoad(options["programs"], options["calls"], options["tokens"])
    engines: dict[str, Callable[[], Executor]] = {INSTANT: partial(Instant, load.tokens)}
    if options["real"]:
        engines[VLLM] = partial(_vllm, load)
    measured = Results({"engine": "engine", "journal": "journal"})
    measured.expect((engine, side) for engine in engines for side in SIDES)

    def report() -> None:
        show(measured.table(COLUMNS), measured.medians(), as_json=options["as_json"])

    run_shown(measure(measured, engines, load, options["repeat"]), report)


async def measure(
    measured: Results,
    engines: Mapping[str, Callable[[], Executor]],
    load: JournalLoad,
    repeats: int,
) -> None:
    """Run the load on each engine, with each kind of journal and without a journal, in ``repeats``
    turns.
    """
    for engine, made in engines.items():
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrt-bench-"))
            runtime = Runtime(made())
            note(f"{engine}: starting")
            with EngineLog(verbose=False) as log:
                await start_engine(runtime, lambda message: None, log)
            stack.push_async_callback(runtime.close)
            sides: dict[str, Journal | None] = {OFF: None}
            for content in _KEPT:
                opened = partial(SQLiteStore, Path(folder, content))
                journal = await Journal.open(opened, JournalOptions(content))
                sides[content] = await stack.enter_async_context(journal)
            for repeat in range(-1, repeats):
                note(f"{engine}: repeat {repeat + 1} of {repeats}")
                order = turns(SIDES, max(0, repeat))
                cpu_us = {side: await load.run(runtime, sides[side]) for side in order}
                if repeat < 0:  # the first calls import modules and fill caches
                    continue
                for side in SIDES:
                    cpu, off = cpu_us[side], cpu_us[OFF]
                    figures = {"cpu_us": cpu, "more_us": cpu - off, "to_off": cpu / off}
                    measured.add(engine, side, figures=figures)


@dataclass(frozen=True, slots=True)
class JournalLoad:
    """The work of one measurement: ``programs`` programs run at once, and each makes ``calls``
    calls, whose answers have ``tokens`` tokens.
    """

    programs: int
    calls: int
    tokens: int

    async def run(self, runtime: Runtime, journal: Journal | None) -> float:
        """Run the programs, and return the microseconds of processor time for each call."""
        runtime.journal = journal
        made = Program(self._ask)
        durable = None if journal is None else Durable()
        gc.collect()
        began = time.process_time()
        runs = [runtime.start(made, number, durable=durable) for number in range(self.programs)]
        for run in runs:
            await run.wait()
        return (time.process_time() - began) / (self.programs * self.calls) * 1e6

    async def _ask(self, ctx: Context, number: int) -> None:
        for call in range(self.calls):
            question = f"{number}.{call}: {_PROMPT}"
            await ctx.llm(question, max_tokens=self.tokens, ignore_eos=True)


class Instant(Executor):
    """An engine that gives every call the same answer, in the next turn of the event loop."""

    def __init__(self, tokens: int) -> None:
        self._text = _WORD * tokens
        self._report = CallReport(
            service_s=0.25, waiting_s=0.125, steps=tokens, output_tokens=tokens, spans=_SPANS
        )

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        await asyncio.sleep(0)
        yield Chunk(self._text, Reply(self._text, report=self._report))


def _vllm(load: JournalLoad) -> VLLMEngine:
    """Return an engine with the embedded model's tokenizer and one layer of made-up weights."""
    model, folder = embedded_model(note), Path(tempfile.mkdtemp(prefix="agentrt-bench-model-"))
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            Path(folder, file.name).symlink_to(file)
    shape = json.loads(Path(model, "config.json").read_text("utf-8"))
    Path(folder, "config.json").unlink()
    Path(folder, "config.json").write_text(json.dumps({**shape, "num_hidden_layers": 1}), "utf-8")
    flags = ("--load-format", "dummy", "--max-model-len", "1024")
    scheduling = SchedulerConfig(history=NONE)
    return VLLMEngine(EngineOptions(str(folder), load.programs, scheduling, flags))
