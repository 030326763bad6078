"""``benchmarks gpu``: compares stock vLLM, agentrt's defaults, both with vLLM's offload to host
memory, and the rule of a rival on one GPU.

The benchmark is made for a machine without a network that is available only for some minutes. The
weights are made up, by default in the shape of Llama 3.1 8B; prompts are token ids. The step times
are measured first, and virtual time with these step times predicts each run. The command ends
within ``--minutes``, and keeps all finished measurements even after an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from agentrt import __version__
from agentrt.cli.signals import STOP_WITHIN_S
from agentrt.engines import EngineOptions
from agentrt.errors import AgentrtError, ConfigError, EngineError, UsageError
from agentrt.executors.vllm.options import has_gpus, prepare_environment
from agentrt.lab.backends.real import Open, engine_for, serve, warm_up
from agentrt.lab.commands.calibrate import Calibration
from agentrt.lab.commands.options import (
    flag_option,
    kv_blocks_option,
    many,
    note,
    programs_option,
    seed_option,
    seeds_option,
    silence_vllm,
    text_option,
)
from agentrt.lab.engine.engines import (
    LabEngine,
    started,
)
from agentrt.lab.engine.hardware import hardware, processor
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.reports.standard import GoodputLimits, standard
from agentrt.lab.runs.contenders import OFFLOADED, Contender, contender
from agentrt.lab.runs.machine import vllm_version
from benchmarks.gpu.plan import SIZES, Budget, Size, engine_of, goodput_limits, in_order
from benchmarks.gpu.predict import (
    Prediction,
    Predictor,
    predictions_of,
    predictor,
    virtual_options,
)
from benchmarks.gpu.report import OFFLOADS, Cell, Done, Report
from benchmarks.harness import FlagsCommand, run_shown
from benchmarks.options import minutes_option
from benchmarks.rivals.contenders import wrapper_of
from benchmarks.shapes import engine_options
from benchmarks.summaries import with_ideals
from benchmarks.workloads.agents import JOBS
from benchmarks.workloads.source import short

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_KEPT = 0.04
"""Share of the time that is reserved for the end, in addition to the time for a stop."""
_OFFLOAD_GIB = 64
_PATHS = ("out", "step_time")
"""Options whose values are paths."""
_NO_TIME, _CUT, _CPU = "no time was left for it", "its time was up", "vLLM offloads only from GPUs"
_STOPPED = "stopped before its end"

EPILOG = """\b
Examples:
  python -m benchmarks gpu --minutes 25 --out results
  python -m benchmarks gpu --minutes 10 --out results --seeds 1 -- --enforce-eager
  python -m benchmarks gpu --minutes 3 --model-shape tiny --out /tmp/try    # a trial on a CPU
  python -m benchmarks gpu --predict results -- --max-num-batched-tokens 8192

\b
DIR gets tables.md, jobs.svg (with matplotlib), about.json (versions, hardware, options, step times)
and records.jsonl, a line for each cell as it ends. Cells that do not fit into the time are listed.
Arguments after -- go to vLLM.
Exit codes: 0 done; 1 an engine failed; 2 bad usage; 130 Ctrl-C; 143 SIGTERM, which the command also
sends to itself if it would otherwise not end within --minutes.
"""


@click.command(cls=FlagsCommand, epilog=EPILOG)
@minutes_option(25.0, "Minutes for the whole run.", least=0.5)
@click.option("--out", type=_FOLDER, metavar="DIR", help="Folder for all results.")
@text_option(
    "--model-shape",
    "NAME",
    f"Shape of the model: {', '.join(SIZES)}.",
    type=click.Choice([*SIZES]),
    default="llama-8b",
    former=["--shape"],
)
@kv_blocks_option("Size of the smaller KV cache in blocks.  [default: 28,625; tiny 64]", least=8)
@programs_option("Number of jobs of a run.  [default: 100; tiny 8]")
@flag_option(
    "--whole",
    "Run all turns of the jobs with their original tokens at 3 jobs a second, as in the "
    "published runs. This takes one hour.",
)
@seeds_option(default=2)
@seed_option
@many(
    "--goodput",
    metavar="NAME:MS,…",
    help="Limits for goodput, in milliseconds.  [default: ttft:2000,tpot:100,jct:60000]",
)
@text_option("--step-time", "FILE", "File with step times, instead of measuring them.", type=_FILE)
@click.option(
    "--predict",
    type=_FOLDER,
    metavar="DIR",
    help="Run nothing: predict the cells of the first seed of the earlier run in DIR with the step "
    "times that were measured there, and print them beside its measurements. Needs no GPU.",
)
def gpu(engine_flags: Sequence[str], **options: Any) -> None:
    """Measure stock vLLM, agentrt's defaults, both with vLLM's offload to host memory, and
    ThunderAgent's rule on one GPU.

    100 coding agents with SWE-smith's sizes, but with at most six turns each and twice the tokens,
    arrive at 6 per second. They run first with 28,625 KV blocks of 16 tokens, and then with all KV
    blocks of the GPU. Each run is predicted in virtual time with the step times measured here.
    """
    folder = options.pop("predict")
    if folder is not None:
        silence_vllm()
        limits = goodput_limits(options["goodput"])
        click.echo(predictions_of(folder, limits, engine_flags))
        return
    if options["out"] is None:
        raise click.UsageError("name a folder for the results, as in --out results")
    bench = _bench(options, engine_flags)
    # A last resort: the cells are planned to fit, and each engine has a time limit.
    latest_s = 60 * options["minutes"] - STOP_WITHIN_S
    ends = threading.Timer(latest_s, os.kill, (os.getpid(), signal.SIGTERM))
    ends.daemon = True
    ends.start()
    try:
        with predictor() as bench.predictor:
            run_shown(bench.run(), bench.tell)
    finally:
        ends.cancel()
    if bench.failed:
        raise EngineError("; ".join(dict.fromkeys(bench.failed)))


def _bench(options: dict[str, Any], flags: Sequence[str]) -> GpuBench:
    """Check the options before anything is loaded, and return the benchmark for them."""
    began, shape, folder = time.monotonic(), options["model_shape"], options["out"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        report = Report(folder)
        report.begin()
    except OSError as error:
        raise ConfigError(
            f"--out {str(folder)!r} cannot be written: {error.strerror}; name another folder"
        ) from error
    known = {"blocks": options["kv_blocks"], "jobs": options["programs"]}
    size = replace(SIZES[shape], **{name: value for name, value in known.items() if value})
    size = size.whole() if options["whole"] else size
    if size.jobs > JOBS:
        raise ConfigError(
            f"--programs {size.jobs}: there are only {JOBS} jobs; give at most {JOBS}"
        )
    filled = -(-size.longest // size.block_size)
    if size.blocks <= filled:
        raise ConfigError(
            f"--kv-blocks {size.blocks}: a call may fill {filled} blocks, and vLLM keeps one block "
            f"for itself; give at least {filled + 1}"
        )
    silence_vllm()
    base = engine_options(None, shape, size.slots, flags)
    prepare_environment(base)
    seconds = 60 * options["minutes"]
    seeds = range(options["seed"], options["seed"] + options["seeds"])
    file = options["step_time"]
    return GpuBench(
        base,
        size,
        seeds,
        Budget(began + seconds * (1 - _KEPT) - STOP_WITHIN_S),
        report,
        goodput_limits(options["goodput"]),
        started,
        None if file is None else StepTimeModel.load(file),
        {**options, "flags": list(flags)},
    )


@dataclass(slots=True)
class GpuBench:
    """The runs of all cells on one machine, one engine after the other. If an engine fails, the
    engine's other cells are skipped.
    """

    base: EngineOptions
    size: Size
    seeds: Sequence[int]
    budget: Budget
    report: Report
    limits: GoodputLimits
    open: Open
    times: StepTimeModel | None
    options: dict[str, Any]
    predictor: Predictor = field(default_factory=Predictor)
    failed: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Run all cells that fit into the time."""
        groups = in_order(self.seeds)
        for at, group in enumerate(groups):
            later = [cell for others in groups[at + 1 :] for cell in others]
            if group[0].contender in OFFLOADS and not has_gpus():
                self._leave(group, _CPU)
            elif not self.budget.fitting([*group, *later]) & {*group}:
                self._leave(group, _NO_TIME)
            else:
                await self._opened(group, later)

    async def _opened(self, group: Sequence[Cell], later: Sequence[Cell]) -> None:
        """Run the cells that share an engine."""
        began, (memory, kind) = time.monotonic(), engine_of(group[0])
        flags = self.size.flags(memory)
        flags += ["--kv-offloading-size", str(_host_gib())] if kind in OFFLOADS else []
        base = replace(self.base, flags=(*flags, *self.base.flags))
        engine = engine_for(_real(kind), base)
        note(f"loading an engine: {memory}, {kind}")
        try:
            async with asyncio.timeout(self.budget.left_s), self.open(engine):
                self.budget.load_s = time.monotonic() - began
                if self.times is None:
                    self.times = await Calibration(engine).run(1)
                self._about(engine)
                await self._cells(engine, group, later)
        except TimeoutError:
            self._leave(group, _CUT)
        except AgentrtError as error:
            if isinstance(error, UsageError) and not self.report.done:
                raise
            self.failed.append(f"{memory}, {kind}: {error}")
            self._leave(group, f"the engine failed: {error}")

    async def _cells(self, engine: LabEngine, group: Sequence[Cell], later: Sequence[Cell]) -> None:
        options, key = virtual_options(engine.sizes()), engine_of(group[0])
        await warm_up(engine, _real(group[0].contender), short(self.size.programs(self.seeds[0])))
        # All predictions are made before the first cell, because a cell may need all cores.
        sized = [cell for cell in (*group, *later) if cell.memory == group[0].memory]
        virtuals = await self._predicted(sized, options)
        for at, cell in enumerate(group):
            contender, programs = _real(cell.contender), self.size.programs(cell.seed)
            virtual, left_s = virtuals[cell], self.budget.left_s
            if cell not in self.budget.fitting([*group[at:], *later], key):
                self.report.leave(cell, _NO_TIME)
                continue
            predicted_s = virtual.summary().makespan_s
            note(f"{cell}: predicted {predicted_s:.0f} s, {left_s:.0f} s left")
            wrap, began = wrapper_of(contender, options), time.monotonic()
            ran = await serve(engine, contender, programs, run=f"/{cell}", wrap=wrap)
            self.budget.ran(cell, time.monotonic() - began)
            ran = with_ideals(ran, virtual)
            real, predicted = (standard(run.outcomes, self.limits) for run in (ran, virtual))
            self.report.add(Done(cell, options.kv_blocks, real, predicted), ran)

    async def _predicted(
        self, cells: Sequence[Cell], options: VirtualOptions
    ) -> dict[Cell, RunOutcome]:
        """Predict the cells, which have engines with the sizes of ``options``."""
        assert self.times is not None
        wanted = [
            Prediction(cell.contender, cell.seed, self.size, options, self.times) for cell in cells
        ]
        virtuals = dict(zip(cells, await self.predictor.make(wanted), strict=True))
        # In descending order of the seeds, so that the seconds of the first seed remain.
        for cell in sorted(cells, key=lambda cell: -cell.seed):
            seconds = virtuals[cell].summary().makespan_s
            self.budget.predicted_s[cell.memory, cell.contender] = seconds
        return virtuals

    def _leave(self, cells: Sequence[Cell], why: str) -> None:
        """Record ``why`` these cells are not run. Cells that have a result or a reason already do
        not change.
        """
        over = {done.cell for done in self.report.done} | self.report.not_run.keys()
        for cell in cells:
            if cell not in over:
                self.report.leave(cell, why)

    def _about(self, engine: LabEngine) -> None:
        """Write the description of the machine and the engine, from the first engine."""
        if self.report.head:
            return
        assert self.times is not None
        # Paths of this machine have no meaning on other machines.
        options = {name: value for name, value in self.options.items() if name not in _PATHS}
        about = {**_versions(), "options": options, "jobs": asdict(self.size)}
        about |= {"engine": engine.sizes(), "step_time": asdict(self.times)}
        text = json.dumps(about, indent=2, default=str)
        (self.report.folder / "about.json").write_text(text + "\n", encoding="utf-8")
        size, times = self.size, self.times
        self.report.head = (
            f"# A GPU run\n\nvLLM {vllm_version()} on {about['hardware']}, a model of the shape "
            f"{self.options['model_shape']} with made-up weights, agentrt {__version__}. "
            f"{size.jobs} jobs of SWE-smith's sizes at {size.per_s:g} a second, tokens x "
            f"{size.tokens:g}, {size.turns or 'all'} turns at most; seeds "
            f"{', '.join(map(str, self.seeds))}. A step takes {1e3 * times.base_s:.1f} ms, "
            f"{1e6 * times.per_prefill_token_s:.1f} us for a token of prompt, "
            f"{1e9 * times.per_context_token_s:.0f} ns for a token of context."
        )

    def tell(self) -> None:
        """Print and write the results so far."""
        for group in in_order(self.seeds):
            self._leave(group, _STOPPED)
        self.report.write()
        click.echo(self.report.text())
        try:
            if self.report.done:
                self.report.draw()
        except ConfigError as error:
            note(f"no drawing: {error}")


def _real(name: str) -> Contender:
    """Return the contender of a name for a real engine. An offload is not part of the contender,
    because the flags of the engine turn it on.
    """
    return contender(name.removesuffix(f"+{OFFLOADED}"))


def _host_gib() -> int:
    """Return half of the host's free memory in GiB, but at least 1 and at most `_OFFLOAD_GIB`,
    because vLLM pins all memory for the offload at once.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return max(1, min(_OFFLOAD_GIB, free // 2))


def _versions() -> dict[str, Any]:
    import torch

    driver = Path("/proc/driver/nvidia/version")
    return {
        "agentrt": __version__,
        "vllm": vllm_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": driver.read_text().splitlines()[0] if driver.exists() else None,
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "hardware": hardware(),
        "processor": f"{processor()}, {len(os.sched_getaffinity(0))} cores",
    }
