"""``benchmarks batch``: many programs that are all submitted at the start, as in ``agentrt run
--inputs``.

The benchmark measures the end of the last program (the makespan), and the tokens that the engine
generates per second until then. The programs are those of ``benchmarks memory``. As in a batch, a
limited number of programs is live at the same time, in the order of the inputs; the next program
begins when a program ends. Runs are in virtual time, with vLLM's real scheduler and KV-cache
manager. No contender except ``lrpt`` knows how long an output will be: each call may use the rest
of its context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from agentrt.batch.runner import DEFAULT_LIVE
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    file,
    many,
    max_num_seqs_option,
    policy_option,
    programs_option,
    silence_vllm,
)
from agentrt.lab.driver import drive
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.oracles import Lrpt
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.runs.contenders import (
    DEFAULT,
    STOCK,
    check_parts,
    contender,
    contenders,
    how,
)
from agentrt.lab.workloads.shape import ProgramShape, prompt_tokens
from agentrt.scheduler.config import BATCH_SCHEDULER, LONGEST_REMAINING
from benchmarks.cells import Cell, Load, check_names, measured, seeds_of, study_options
from benchmarks.harness import Column, Figures, Results, read_json_output, show
from benchmarks.memory.cells import (
    ALL_WORKS,
    RECORDED,
    Memory,
    Setup,
    with_ample_memory,
    with_room_for_all,
)
from benchmarks.options import number, positive_option, workload_option
from benchmarks.rivals import CAP, THUNDER
from benchmarks.rivals.contenders import ALL_RUN
from benchmarks.rivals.gates import CapGate, GatedBackend
from benchmarks.summaries import hit_share

SCALES: Mapping[str, float] = {"bfcl": 0.25, "coding": 0.1, "assistant": 0.2, "chat": 0.25}
"""The default workloads, each with a factor for its tokens that keeps its runs short."""
PROGRAMS, SLOTS = 512, 64
BEST_CAP, CAPS = "best cap", (0.5, 1.0)
"""A cap is a maximum number of concurrent programs. `CAPS` are the caps to try, in multiples of the
number of programs that fit into the KV cache. `BEST_CAP` is the contender with the best of these
caps for each seed, as if a user had known the best cap before.
"""
LEARNED, KNOWN = (f"{name}+cost+memory" for name in (LONGEST_REMAINING, Lrpt.name))
"""The policies that run the longest remaining program first: by learned lengths and, as a bound, by
known lengths.
"""
BATCH = f"{BATCH_SCHEDULER.policy}+{BATCH_SCHEDULER.retention}+{BATCH_SCHEDULER.admission}"
"""The settings that a batch gives its own engine."""
CONTENDERS = (STOCK, BEST_CAP, THUNDER, BATCH, DEFAULT, LEARNED, KNOWN)
AMPLE = "ample"
_WORKS = [name for name in ALL_WORKS if name != RECORDED]


@dataclass(frozen=True, slots=True)
class BatchLoad(Load):
    """The programs of a batch and the engine. At most ``live`` programs are live at the same time.
    The engine's KV cache has room for about ``fit`` programs.
    """

    live: int
    fit: float

    def run(self, name: str) -> RunOutcome:
        """Run the contender with this name, with a limit on live programs in front of it."""
        backend = contender(name).backend(self.options, self.times)
        return drive(GatedBackend(backend, CapGate(self.live)), self.programs)

    def expanded(self, name: str) -> list[str]:
        """Return the names of the contenders to run for ``name``: for `BEST_CAP`, one contender for
        each cap; otherwise ``name`` itself.
        """
        if name != BEST_CAP:
            return [name]
        caps = {min(self.live, max(1, round(share * self.fit))) for share in CAPS}
        return [f"{CAP}:{cap}" for cap in sorted(caps)]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of ``count`` programs, on an engine whose KV cache holds a share of their working
    set. ``memory`` is that share, or infinity for room for all tokens of all programs.
    """

    name: str
    memory: float
    count: int = PROGRAMS
    slots: int = SLOTS
    live: int = DEFAULT_LIVE
    scale: float = 1.0

    @property
    def shown_memory(self) -> str:
        """The share of the working set that fits into the KV cache, as tables show it."""
        return AMPLE if math.isinf(self.memory) else f"{self.memory:g}"

    def load(self, seed: int) -> BatchLoad:
        """Make the programs and the engine."""
        work = ALL_WORKS[self.name]
        scale = self.scale * SCALES.get(self.name, 1.0) / work.scale
        bench = Memory(slots=self.slots, count=self.count, scale=scale)
        setup = Setup(self.name, self.memory, work.tool_s)
        longest = bench.longest(setup)
        programs = [_unlimited(program, longest) for program in bench.programs(setup, seed)]
        size = BLOCK_SIZE
        small = VirtualOptions(self.slots, longest // size + 2, size, max_model_len=longest)
        if math.isinf(self.memory):
            roomy = with_room_for_all(programs, small)
            return BatchLoad(programs, roomy, work.step_time, self.live, float(self.live))
        wanted, at_peak, _ = with_ample_memory(programs, small, work.step_time, self.live)
        blocks = max(small.kv_blocks, math.ceil(self.memory * wanted / size))
        fit = min(self.live, at_peak) * blocks * size / wanted
        engine = replace(small, kv_blocks=blocks)
        return BatchLoad(programs, engine, work.step_time, self.live, fit)


def _unlimited(program: ProgramShape, longest: int) -> ProgramShape:
    """Return the program with arrival time 0. Only the maximum context limits its outputs."""
    calls = [
        replace(call, max_tokens=max(call.output_tokens, longest - prompt_tokens(call)))
        for call in program.calls
    ]
    return replace(program, arrives_s=0.0, calls=tuple(calls))


def figures(load: BatchLoad, name: str) -> Figures:
    """Return the figures of a contender's run in virtual time."""
    return _best({each: load.run(each) for each in load.expanded(name)})


def _best(runs: Mapping[str, RunOutcome]) -> Figures:
    """Return the figures of the run whose last program ends first."""
    name, ran = min(runs.items(), key=lambda each: _figures(each[1])["makespan_s"])
    cap = name.removeprefix(f"{CAP}:")
    return {**_figures(ran), **({"cap": float(cap)} if cap != name else {})}


def _figures(ran: RunOutcome) -> dict[str, float]:
    makespan_s = max(outcome.ended_s for outcome in ran.outcomes)
    used = ran.counts.usage
    return {
        "makespan_s": makespan_s,
        "tokens_per_s": sum(outcome.output_tokens for outcome in ran.outcomes) / makespan_s,
        "hits": hit_share(used),
        "prefill": used.uncached_tokens + used.recomputed_tokens,
        "recomputed": used.recomputed_tokens,
        "preemptions": sum(outcome.preemptions for outcome in ran.outcomes),
    }


@click.command(cls=ManyCommand, epilog=f"Contenders, except +hints: {BEST_CAP!r}, or: {how()}.")
@workload_option(
    f"Workloads to run: {', '.join(_WORKS)}.  [default: {','.join(SCALES)}]",
)
@many(
    "--memory",
    metavar="X,…",
    help=f"Sizes of the KV cache, as shares of the working set; {AMPLE}: room for all tokens of "
    f"all programs.  [default: 0.25,{AMPLE}]",
)
@policy_option(f"Contenders in addition to {STOCK}.  [default: {','.join(CONTENDERS[1:])}]")
@programs_option("Number of programs of each batch.", PROGRAMS)
@count_option(
    "--max-live", about="Maximum number of programs that are live at once.", default=DEFAULT_LIVE
)
@max_num_seqs_option(SLOTS)
@positive_option("--scale", "Multiplies the tokens of programs.", 1.0)
@file(
    "--add",
    about="Add the runs of this file, the --json output of another run with the same sizes, to the "
    "table. They are not run again.",
)
@study_options(5)
def batch(**options: Any) -> None:
    """Compare the end of the last program of a batch with stock vLLM.

    Runs are in virtual time: vLLM's real scheduler and KV-cache manager, without a model. The
    working set is the peak of the tokens that are used again. The ratios are medians over the
    seeds, with the least and the greatest value. A ratio of makespans below 1 is better than stock,
    and so is a ratio of tokens per second above 1. lrpt knows the lengths of all programs, which no
    real engine knows.
    """
    names = check_names("workload", options["workload"] or [*SCALES], _WORKS)
    shares = [_share(text) for text in options["memory"] or ("0.25", AMPLE)]
    chosen = _contenders(options["policy"])
    works = [
        Batch(
            name,
            share,
            options["programs"],
            options["max_num_seqs"],
            options["max_live"],
            options["scale"],
        )
        for name in names
        for share in shares
    ]
    # With room for all programs, a gate that keeps programs out of memory gains nothing.
    gated = {BEST_CAP, THUNDER} if not options["policy"] else set[str]()
    runs: list[dict[str, Any]] = [] if options["add"] is None else read_runs(options["add"])
    present = {tuple(run[key] for key in (*_KEYS, "seed")) for run in runs}
    cells = [
        Cell(work, name, seed)
        for seed in seeds_of(options)
        for work in works
        for name in chosen
        if not (math.isinf(work.memory) and name in gated)
    ]
    cells = [cell for cell in cells if (*_place(cell), cell.seed) not in present]

    silence_vllm()
    with measured(cells, figures, options["jobs"]) as finished:
        runs += [_row(cell, values) for cell, values in finished.cells.items()]
        show([report(runs), verdict(runs)], {"runs": runs}, as_json=options["as_json"])


def _row(cell: Cell[Batch, str], values: Figures) -> dict[str, Any]:
    return {**dict(zip(_KEYS, _place(cell), strict=True)), "seed": cell.seed, **values}


def _place(cell: Cell[Batch, str]) -> tuple[str, str, str]:
    """Return the workload, the memory and the contender of a run as tables show them."""
    work = cell.workload
    return work.name, work.shown_memory, cell.contender


def _contenders(names: Sequence[str]) -> list[str]:
    names = names or CONTENDERS
    check_parts(contenders(name for name in names if name != BEST_CAP), ALL_RUN)
    return [*dict.fromkeys((STOCK, *names))]


def _share(text: str) -> float:
    if text == AMPLE:
        return math.inf
    return number("--memory", text, f"a positive number such as 0.25, or {AMPLE}")


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Read the runs of a file with the output of ``--json``. Raises `ConfigError` for any other
    file.
    """
    names = {*_KEYS, *_SHOWN, "seed"}
    return read_json_output(path, "--add", "batch", "runs", lambda run: names <= run.keys())


# -- tables ------------------------------------------------------------------------------

_KEYS = ("workload", "memory", "contender")


def over_stock(runs: Sequence[Mapping[str, Any]]) -> Results:
    """Return the figures of each seed, with the ratios to stock's figures of the same seed. Runs
    without such figures of stock are left out.
    """
    stock = {
        (run["workload"], run["memory"], run["seed"]): run
        for run in runs
        if run["contender"] == STOCK
    }
    places: dict[tuple[str, str], None] = {(run["workload"], run["memory"]): None for run in runs}
    results = Results(dict(zip(_KEYS, _KEYS, strict=True)))
    names = dict.fromkeys(run["contender"] for run in runs)
    results.expect((*place, name) for place in places for name in names)
    for run in runs:
        base = stock.get((run["workload"], run["memory"], run["seed"]))
        if base is not None:
            ratios = {
                "makespan": run["makespan_s"] / base["makespan_s"],
                "rate": run["tokens_per_s"] / base["tokens_per_s"],
            }
            values = {name: run[name] for name in _SHOWN}
            results.add(*(run[key] for key in _KEYS), figures={**values, **ratios})
    return results


_SHOWN = ("makespan_s", "tokens_per_s", "hits", "prefill", "preemptions")


def report(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row for each workload, share of memory and contender."""
    return over_stock(runs).table(
        [
            Column("makespan / stock", "makespan"),
            Column("tokens a second / stock", "rate"),
            Column("makespan, s", "makespan_s", "{:,.1f}"),
            Column("tokens a second", "tokens_per_s", "{:,.0f}"),
            Column("hits", "hits", "{:.0%}"),
            Column("prefill tokens", "prefill", "{:,.0f}"),
            Column("preemptions", "preemptions", "{:,.0f}"),
        ]
    )


def verdict(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each contender except stock: the ratio of its makespan to stock's, with
    little and with ample memory.
    """
    lines = []
    samples = over_stock(runs).samples
    for name in dict.fromkeys(run["contender"] for run in runs):
        if name == STOCK:
            continue
        ratios: dict[str, list[float]] = {"little": [], AMPLE: []}
        for (_, memory, contender_name), seeds in samples.items():
            if contender_name == name and seeds:
                kind = AMPLE if memory == AMPLE else "little"
                ratios[kind].append(median(each["makespan"] for each in seeds))
        parts = [
            f"{kind} memory: {median(values):.2f} (worst {max(values):.2f})"
            for kind, values in ratios.items()
            if values
        ]
        lines.append(f"- {name}: makespan / stock, median over the workloads; {'; '.join(parts)}")
    return "\n".join(lines)
