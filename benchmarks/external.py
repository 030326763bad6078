"""``benchmarks external``: checks virtual time by predicting published runs of another author.

Hung-Chun Lin (Georgia Tech, April 2026) served 100 SWE-smith trajectories with Llama-3.1-8B on
three GPUs, at four rates, under six ways to keep contexts. The 72 single runs were published as the
mean seconds of a job in its turns, without tools (``matrix-100job`` of github.com/hungchun0201's
agentic-ai-survey). Here, programs of the same sizes run in virtual time on engines of the same
size, with the step times that were published with the runs. Then the programs run under agentrt's
defaults.

The costs of copies to host memory (`HostMemory`) are fitted to two of the published cells, and the
other cells with offloading are predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    flag_option,
    jobs_option,
    json_flag,
    many,
    policy_option,
    seed_option,
    seeds_option,
    silence_vllm,
)
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.host_memory import HostMemory
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.reports.standard import standard
from agentrt.lab.reports.tables import Spread, markdown
from agentrt.lab.runs.contenders import DEFAULT, STOCK, Contender, contender
from agentrt.lab.workloads.shape import ProgramShape
from benchmarks.cells import Cell, Load, Measured, cells_of, check_names, measured
from benchmarks.harness import Figures, show
from benchmarks.rivals import CONTINUUM, PREVIEW
from benchmarks.workloads.agents import LONGEST, swe_smith

_KV_BYTES = 131_072
"""Bytes of a token in the KV cache of Llama-3.1-8B: keys and values of 8 heads of 128 in 32 layers,
two bytes each.
"""
_SLOTS = 256
_OTHER_SEED = 100
"""The jobs from which a scheduler has learned have the seed of the run plus this number."""
STEP_TOKENS = 2048
"""The maximum number of tokens that a step computes. The published runs do not state their value.
The default of `vllm serve` is 8,192 on the H100 and the H200, and 2,048 on the A100. On an H100, at
3 jobs a second (seed 5000), stock's predicted time is 2% more than the measured time with 2,048
tokens, and 19% less with 8,192.
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as published: its KV cache in tokens, and a linear model of its step times.

    The published model has a base and a slope for the tokens that a step computes. Its base
    includes the mean time for reading contexts. Here this time is subtracted from the base, and
    each step is charged for the contexts that it reads, at the bandwidth ``bytes_per_s`` of the
    GPU's memory. ``read_tokens``, the mean number of tokens that a step reads, was not published
    and is assumed. Our own FCFS runs read 115,000 to 172,000 tokens (H200 and H100, 1 and 3 jobs a
    second), so the base here is 1 to 4 ms too small. ``link`` is the bandwidth of the GPU's link to
    host memory, as a multiple of PCIe 5.0's bandwidth.
    """

    kv_tokens: int
    base_s: float
    per_token_s: float
    bytes_per_s: float
    read_tokens: int
    link: float = 1.0

    @property
    def step_time(self) -> StepTimeModel:
        per_read_s = _KV_BYTES / self.bytes_per_s
        base_s = self.base_s - per_read_s * self.read_tokens
        return StepTimeModel(base_s, self.per_token_s, 0.0, per_read_s)

    def host(self, gb: float) -> HostMemory:
        """Return host memory of ``gb`` billion bytes behind this GPU's link. The other costs of
        copies are the defaults of `HostMemory`.
        """
        memory = HostMemory(gb * 1e9 / _KV_BYTES / self.kv_tokens)
        return replace(memory, token_s=memory.token_s / self.link)


GPUS: Mapping[str, Gpu] = {
    "H200": Gpu(825_000, 21.4e-3, 37.1e-6, 4.8e12, 250_000),
    "H100": Gpu(458_000, 23.7e-3, 25.8e-6, 3.35e12, 205_000),
    "A100": Gpu(90_000, 66.2e-3, 97.3e-6, 1.555e12, 60_000, link=0.5),
}
_OFFLOAD = "+offload-"
_GB = "gb"
OFFLOAD_128, OFFLOAD_16 = f"{STOCK}{_OFFLOAD}128{_GB}", f"{STOCK}{_OFFLOAD}16{_GB}"
OFFLOADS = (OFFLOAD_128, OFFLOAD_16)
"""Contenders with a size of host memory in billion bytes. The published runs used vLLM 0.19's
`SimpleCPUOffloadConnector`; here vLLM's `OffloadingConnector` decides.
"""
PUBLISHED: Mapping[str, str] = {
    STOCK: "FCFS",
    PREVIEW: "Continuum",
    OFFLOAD_128: "offload 128 GB",
    OFFLOAD_16: "offload 16 GB",
}
"""The contenders that stand for the measured systems."""
AMPLE = f"{STOCK}+ample"
_KNOWN = "+known"
KNOWN = f"{DEFAULT}{_KNOWN}"
UNMEASURED: Mapping[str, str] = {
    AMPLE: "offload at no cost",
    CONTINUUM: "Continuum by its paper",
    DEFAULT: "agentrt's defaults",
    KNOWN: "agentrt's defaults, type known",
    f"{DEFAULT}{_OFFLOAD}128{_GB}": "agentrt's defaults, offload 128 GB",
}
"""Contenders that were not among the published runs. A KV cache with room for all contexts stands
for an offload at no cost. With ``+known``, the scheduler has the history of a run of other jobs.
"""
_THEIRS: Mapping[str, Mapping[float, tuple[float, float, float, float]]] = {
    "H200": {
        1: (39.6, 40.1, 37.2, 45.7),
        3: (58.3, 57.2, 61.6, 69.3),
        6: (62.1, 65.0, 64.7, 76.6),
        10: (66.1, 66.3, 67.1, 80.8),
    },
    "H100": {
        1: (41.0, 41.3, 41.6, 50.5),
        3: (232.9, 69.0, 79.8, 232.3),
        6: (276.0, 75.8, 85.3, 268.4),
        10: (281.0, 79.1, 91.8, 290.3),
    },
    "A100": {
        1: (707.7, 188.4, 202.8, 959.2),
        3: (1086.5, 231.4, 234.2, 1057.2),
        6: (966.3, 233.3, 241.6, 1057.3),
        10: (895.7, 238.0, 240.9, 1419.2),
    },
}
"""The published seconds of a job in its turns, by GPU and jobs per second. The values are in the
order of `PUBLISHED`.
"""
FITTED = {("H200", 1, STOCK), ("H200", 3, OFFLOAD_16), ("H100", 3, OFFLOAD_128)}
"""The cells to which parameters were fitted. They do not count in the errors. The mean of the
outputs was fitted to the first cell, and the costs of copies were fitted to the other two cells.
The H200 hardly loads anything with 16 GB, but stores each context again after each tool, which
determines how much a store slows the steps. The H100 loads most of its prompts from 128 GB, which
determines how much a load slows the steps. The bandwidth of copies is assumed.
"""

EPILOG = """\b
Examples:
  python -m benchmarks external --quick
  python -m benchmarks external --gpu H100 --rate 3 --seeds 5
  python -m benchmarks external --gpu H100 --rate 3 --policy continuum-preview,continuum
"""


@dataclass(frozen=True, slots=True)
class GpuLoad(Load):
    """A load and the GPU that serves it. ``earlier`` are the jobs of another seed, from which the
    scheduler of a contender with ``+known`` has learned.
    """

    gpu: Gpu
    earlier: Sequence[ProgramShape]


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs that arrive at a GPU, at a rate of ``per_s`` jobs per second. A step of the engine
    computes at most ``step_tokens`` tokens.
    """

    gpu: str
    per_s: float
    step_tokens: int = STEP_TOKENS

    def load(self, seed: int) -> GpuLoad:
        """Make the jobs, and an engine of the GPU's size."""
        gpu = GPUS[self.gpu]
        blocks = gpu.kv_tokens // BLOCK_SIZE
        options = VirtualOptions(
            _SLOTS, blocks, max_model_len=LONGEST, max_num_batched_tokens=self.step_tokens
        )
        jobs, earlier = (swe_smith(self.per_s, each) for each in (seed, seed + _OTHER_SEED))
        return GpuLoad(jobs, options, gpu.step_time, gpu, earlier)


Predicted = Mapping[tuple[str, float, str], Sequence[float]]
"""The mean seconds of a job in its turns, for each seed."""


@click.command(cls=ManyCommand, epilog=EPILOG)
@many(
    "--gpu", metavar="NAME,…", help=f"GPUs whose runs are predicted.  [default: {', '.join(GPUS)}]"
)
@many("--rate", metavar="N,…", help="Arrival rates, in jobs a second.  [default: 1, 3, 6, 10]")
@policy_option(f"Run only these contenders.  [default: {', '.join([*PUBLISHED, *UNMEASURED])}]")
@count_option(
    "--max-num-batched-tokens", "Maximum number of tokens in an engine step.", default=STEP_TOKENS
)
@seeds_option(suffix="  [default: 3; 1 with --quick]")
@seed_option
@jobs_option
@flag_option("--quick", "Run only H100 at 3 jobs a second with one seed.")
@json_flag("Print all cells as one JSON line at the end.")
def external(**options: Any) -> None:
    """Predict GPU runs that other people published, in virtual time, and report the errors.

    FCFS is stock vLLM. Continuum follows the rule of its preview code, which the published runs
    used. For the offloads to 128 and 16 GB of host memory, vLLM's connector decides what is copied;
    the costs of copies were fitted to two of the published results. The offload with LMCache is not
    modelled. Predictions without a published run are: an offload at no cost, the rule of
    Continuum's paper, and agentrt's defaults: in a first run, once the type of the jobs is known
    from a run of other jobs, and in a first run with an offload to 128 GB.
    """
    planned = _cells(options)
    silence_vllm()
    with measured(planned, figures, options["jobs"]) as results:
        if results:
            predicted = in_turns(results)
            texts = table(predicted), verdict(predicted)
            show(texts, {"cells": cells(results)}, as_json=options["as_json"])


def _cells(options: dict[str, Any]) -> list[Cell[Jobs, str]]:
    quick = options["quick"]
    gpus = options["gpu"] or (["H100"] if quick else list(GPUS))
    rates = options["rate"] or (["3"] if quick else ["1", "3", "6", "10"])
    for name in gpus:
        if name not in GPUS:
            raise ConfigError(f"--gpu {name}: no published runs; available: {', '.join(GPUS)}")
    known = [f"{rate:g}" for rate in _THEIRS["H100"]]
    for rate in rates:
        if rate not in known:
            raise ConfigError(f"--rate {rate}: no published runs; available: {', '.join(known)}")
    seeds = range(options["seed"], options["seed"] + (options["seeds"] or (1 if quick else 3)))
    policies = check_names("--policy", options["policy"], [*PUBLISHED, *UNMEASURED])
    tokens = options["max_num_batched_tokens"]
    works = [Jobs(gpu, float(rate), tokens) for gpu, rate in product(gpus, rates)]
    return cells_of(works, policies, seeds)


def figures(load: GpuLoad, name: str) -> dict[str, float]:
    """Return a run's standard metrics, the tokens that were copied from host memory and to it, and
    ``in_turns``, the mean seconds of a job in its turns.
    """
    ran = _run(load, name)
    in_turns = fmean(entry.latency_s - entry.tool_s for entry in ran.outcomes)
    copied = {"loaded": ran.counts.loaded_tokens, "stored": ran.counts.stored_tokens}
    return {"in_turns": in_turns, **standard(ran.outcomes), **copied}


def _run(load: GpuLoad, name: str) -> RunOutcome:
    """Run a contender. With ``+known``, its scheduler begins with the history of a run of
    ``load.earlier``, the jobs of another seed, as on an engine that has served jobs of this type
    before.
    """
    made = _on_gpu(load.gpu, name.replace(_KNOWN, ""))
    if _KNOWN not in name:
        return load.virtual(made)
    _, learned = load.serve(made, programs=load.earlier)
    return load.serve(made, learned)[0]


def _on_gpu(gpu: Gpu, name: str) -> Contender:
    """Return a contender, with host memory of the size that its name states (billion bytes)."""
    rule, _, size = name.partition(_OFFLOAD)
    made = contender(rule)
    return replace(made, host=gpu.host(float(size.removesuffix(_GB)))) if size else made


# -- results -----------------------------------------------------------------------------


def by_key(results: Measured[Jobs, str]) -> dict[tuple[str, float, str], list[Figures]]:
    """Return the figures by GPU, rate and contender, in the order of the seeds."""
    return {
        (work.gpu, work.per_s, name): [figures for _, figures in sorted(seeds.items())]
        for (work, name), seeds in results.by_seed().items()
    }


def in_turns(results: Measured[Jobs, str]) -> Predicted:
    """Return, for each cell, the mean seconds of a job in its turns with each seed."""
    return {key: [entry["in_turns"] for entry in seeds] for key, seeds in by_key(results).items()}


def theirs(gpu: str, per_s: float, name: str) -> float | None:
    """Return the published measurement; None for a contender that was not measured."""
    measured = dict(zip(PUBLISHED, _THEIRS[gpu][per_s], strict=True))
    return measured.get(name)


def errors(predicted: Predicted) -> dict[tuple[str, float, str], float]:
    """Return the error of the median prediction of each cell, as a share of the measurement. Cells
    without a measurement, and cells to which parameters were fitted, are left out.
    """
    results = {}
    for key, seconds in predicted.items():
        measured = theirs(*key)
        if measured is not None and key not in FITTED:
            results[key] = median(seconds) / measured - 1
    return results


def table(predicted: Predicted) -> str:
    """Return a table with a row for each GPU and rate: measurement, prediction and error of each
    published system, then the predictions of the unmeasured contenders.
    """
    off = errors(predicted)
    rows = []
    for gpu, per_s in dict.fromkeys(key[:2] for key in predicted):
        row = [gpu, f"{per_s:g}"]
        for name in PUBLISHED:
            key = (gpu, per_s, name)
            error = f"{off[key]:+.0%}" if key in off else "fitted"
            seconds = predicted.get(key)
            row.append(f"{theirs(*key)} / {_shown(seconds)} ({error})" if seconds else "")
        row += [_shown(predicted.get((gpu, per_s, name), ())) for name in UNMEASURED]
        rows.append(row)
    head = ["GPU", "jobs/s", *(f"{name}: measured / predicted" for name in PUBLISHED.values())]
    head += [f"{name}, predicted" for name in UNMEASURED.values()]
    return markdown(head, rows)


def _shown(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    spread = Spread.of(seconds)
    most = f" [{spread.least:.0f}-{spread.most:.0f}]" if len(seconds) > 1 else ""
    return f"{spread.median:.1f}{most}"


def verdict(predicted: Predicted) -> str:
    """Return a text with the median error over all cells and for each published system, and with
    the median and the largest error of the cells with offloading.
    """
    off = errors(predicted)
    if not off:
        return "no cell to compare: each has no published run, or a parameter was fitted to it"
    by = {
        shown: [abs(off[key]) for key in off if key[2] == name] for name, shown in PUBLISHED.items()
    }
    parts = ", ".join(f"{name} {median(values):.0%}" for name, values in by.items() if values)
    lines = [f"median error of {len(off)} cells: {median(map(abs, off.values())):.0%} ({parts})"]
    if copied := [abs(error) for key, error in off.items() if key[2] in OFFLOADS]:
        lines.append(
            f"median error of the {len(copied)} cells with offloading: {median(copied):.0%} "
            f"(largest error: {max(copied):.0%})"
        )
    return "\n".join(lines)


def cells(results: Measured[Jobs, str]) -> list[dict[str, Any]]:
    """Return all cells as JSON values, in seconds."""
    return [
        {
            "gpu": gpu,
            "jobs_per_s": per_s,
            "contender": name,
            "predicted": [entry["in_turns"] for entry in seeds],
            "measured": theirs(gpu, per_s, name),
            "metrics": [{k: v for k, v in entry.items() if k != "in_turns"} for entry in seeds],
        }
        for (gpu, per_s, name), seeds in by_key(results).items()
    ]
