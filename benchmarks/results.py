"""The files of results in ``docs/results/data``: the commands that fill them, and what the pages
show of them.

The JSON output of a benchmark is kept in a file, with the commands that printed the output, and the
commit. `SOURCES` has the commands of each file. `VALUES` has the numbers and tables that stand on
pages. `benchmarks.published` writes them onto the pages, and checks them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from agentrt.lab.commands.options import note
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.contenders import DEFAULT, STOCK
from benchmarks.clients.command import OFF
from benchmarks.external import OFFLOAD_128, theirs
from benchmarks.harness import spread_text
from benchmarks.memory.cells import ALL_WORKS, RECORDED
from benchmarks.memory.report import HITS
from benchmarks.mixes import ALIKE, MIXES, UNLIKE
from benchmarks.room import LOADS, WORKS
from benchmarks.stress.ratios import policies_table, worst_table

ROOT = Path(__file__).resolve().parents[1]
_LONGEST_S = 3600
_SEEDS = range(5000, 5005)
_HELD_OUT_FIGURES = ("ms_per_token", "mean_jct_s", "p99_jct_s", "recomputed")
_SMALL_CACHE = {
    "chat": "chats",
    "assistant": "chats with system prompts",
    "bfcl": "ReAct agents",
    "coding": "coding agents",
    "lats": "tree search",
    "deep": "a lead agent with sub-agents",
}
"""The workloads in the table for users (docs/policies.md), with their names there."""
_OFFLOAD = "stock+offload", "default", "default+offload"
_OFFLOAD_FIGURES = ("ms_per_token", "mean_jct_s", "p99_jct_s")
_EQUAL = 1.01
"""A figure counts as equal to a smaller figure if it is at most this many times as large."""
_ROUTED = {
    "chat": "--output-scale 0.1 --programs 15",
    "react": "--context-scale 4 --output-scale 0.5 --gap-scale 0.1 --programs 15",
    "graphs8": "--context-scale 2 --output-scale 0.1 --gap-scale 0.5 --programs 8",
    "mixed": "--context-scale 2 --output-scale 0.1 --gap-scale 0.5 --programs 9",
}
"""The workloads on which routers are compared, with their options. Prompts and outputs are scaled
so that they are closer to those of coding agents.
"""
_MIX_FIGURES = ("mean", "p99", "known")
_HELD_OUT = [name for name in ALL_WORKS if name != RECORDED]

Results = Sequence[Any]
"""The values that the commands of a source printed, in the order of the commands."""
Data = Mapping[str, Any]
"""A file of results: its ``commands``, the ``commit`` that ran them, and their ``results``."""


@dataclass(frozen=True, slots=True)
class Source:
    """The commands that fill a file of results; the last line of their output is JSON. ``without``
    names the keys of the JSON that are not written to the file. ``exits`` are the exit codes of
    commands that did their work: some commands exit with 1 if a limit is exceeded.
    """

    commands: Sequence[str]
    without: Sequence[str] = ()
    exits: Sequence[int] = (0,)

    def run(self) -> dict[str, Any]:
        """Run the commands, and return the content of the file. If a command fails, exit with 1."""
        outputs = [_output(command, self.exits) for command in self.commands]
        results = [_without(output, self.without) for output in outputs]
        return {"commands": list(self.commands), "commit": _commit(), "results": results}


_SCHEDULER = (
    "python -m benchmarks scheduler --policy fcfs,adaptive,adaptive+cost+memory --steps 40 "
    "--repeat 40 --json"
)
_H100 = "python -m benchmarks external --gpu H100 --rate 3 --seeds 5 --seed 5000"
_ON_H100 = "stock,continuum-preview,stock+ample,continuum,default"
SOURCES: Mapping[str, Source] = {
    "h100": Source([f"{_H100} --policy {_ON_H100} --json"], without=["metrics"]),
    "unlike": Source(
        [
            "agentrt compare demos/react.py demos/mcts.py --n 4 --max-num-seqs 4 "
            f"--seed {seed} --history none --json"
            for seed in _SEEDS
        ],
        without=["stock", "agentrt"],
    ),
    "scheduler": Source([_SCHEDULER]),
    "front": Source(["python -m benchmarks front --repeat 8 --json"]),
    "held-out": Source(
        [
            f"python -m benchmarks memory --held-out --workload {name} --caps 0 --json"
            for name in _HELD_OUT
        ],
        without=["by_seed", "stock"],
    ),
    "offload": Source(
        [
            f"python -m benchmarks memory --workload {name} --seeds 5 --seed 7300 --caps 0 "
            "--policy default,stock+offload,default+offload --json"
            for name in _HELD_OUT
        ],
        without=["by_seed", "stock"],
    ),
    "first-runs": Source(
        [
            f"python -m benchmarks first-runs --workload {name} --seeds 5 --seed 9000 --json"
            for name in MIXES
        ]
    ),
    "room": Source(
        [
            f"python -m benchmarks room --workload {name} --seeds 3 --seed 7000 --json"
            for name in WORKS
        ]
    ),
    "routing": Source(
        [
            "python -m benchmarks simulate routing --policy atlas --depth virtual --replicas 4 "
            f"--seeds 5 --max-num-seqs 4 --kv-blocks 3500 --workload {name} {options} --json"
            for name, options in _ROUTED.items()
        ]
    ),
    "clients": Source(["python -m benchmarks clients --json"]),
    "ratios": Source(
        ["python -m benchmarks stress ratios --workloads 500 --seed 9000 --jobs 2 --json"],
        without=["figures"],
        exits=[0, 1],
    ),
}
"""Files of results by name."""


# -- the meanings of the names on pages --------------------------------------------------


def _simulated(contender: str) -> Callable[[Results], str]:
    return lambda results: spread_text(_cell(results, contender)["predicted"], ".0f")


def _measured(contender: str) -> Callable[[Results], str]:
    return lambda results: f"{_cell(results, contender)['measured']:.0f}"


def _cell(results: Results, contender: str) -> Any:
    [cell] = [cell for cell in results[0]["cells"] if cell["contender"] == contender]
    return cell


def _to_stock(when: str) -> Callable[[Results], str]:
    return lambda results: spread_text(_means(results, when), ".2f")


def _means(results: Results, when: str) -> list[float]:
    """Return a value for each seed: the median, over the seed's pairs of runs, of agentrt's mean
    divided by stock's mean.
    """
    return [median(each["mean"][when]) for each in results]


def _pairs(results: Results) -> str:
    """Return the least and the greatest ratio of the first run's mean to stock's, over all pairs of
    runs.
    """
    ratios = [ratio for each in results for ratio in each["mean"]["first"]]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _change(when: str) -> Callable[[Results], str]:
    """Return a function that returns the median of the ratios of `_means` over the seeds, in
    words.
    """
    return lambda results: _in_words(median(_means(results, when)))


def _changes(when: str) -> Callable[[Results], str]:
    """Return a function that returns the least and the greatest of the ratios of `_means` over the
    seeds, in words.
    """

    def spread(results: Results) -> str:
        ratios = _means(results, when)
        return f"from {_in_words(min(ratios))} to {_in_words(max(ratios))}"

    return spread


def _in_words(ratio: float) -> str:
    percent = round(100 * (ratio - 1))
    if not percent:
        return "the same"
    return f"{abs(percent)}% {'less' if percent < 0 else 'more'}"


def _scheduler(case: str, running: int, waiting: int) -> Callable[[Results], str]:
    def ratio(results: Results) -> str:
        wanted = {"case": case, "running": running, "waiting": waiting}
        [row] = [row for row in results[0] if wanted.items() <= row.items()]
        return f"{row['step_to_stock']:.2f}"

    return ratio


def _front(kind: str, figure: str) -> Callable[[Results], str]:
    def ratio(results: Results) -> str:
        [row] = [row for row in results[0] if (row["front"], row["kind"]) == ("agentrt", kind)]
        return f"{row[figure]:.2f}"

    return ratio


def _scheduler_table(results: Results) -> str:
    head = ("running", "waiting", "case", "µs a step", "least", "/ stock in a repeat")
    rows = [
        (
            *(row[name] for name in ("running", "waiting", "case")),
            f"{row['step_us']:.0f}",
            f"{row['spread']['step_us'][0]:.0f}",
            _beside(row, "step_to_stock"),
            f"{row['functions_to_stock']:.2f}",
        )
        for row in results[0]
        if row["case"] != "stock"
    ]
    return _block(markdown((*head, "functions / stock"), rows))


def _front_table(results: Results) -> str:
    head = ("kind of call", "functions / stock", "CPU ms a call", "CPU µs a token", "CPU / stock")
    rows = [
        (
            row["kind"],
            f"{row['called_to_stock']:.3f}",
            _beside(row, "cpu_ms"),
            f"{row['cpu_us']:.0f}",
            _beside(row, "cpu_ms_to_stock"),
        )
        for row in results[0]
        if row["front"] == "agentrt"
    ]
    return _block(markdown(head, rows))


def _held_out_table(results: Results) -> str:
    rows = []
    for [cell] in (each["cells"] for each in results):
        ratios = cell["to_stock"]["default"]
        rows.append(
            (
                f"`{cell['workload']}`",
                *(f"{median(ratios[name]):.2f}" for name in _HELD_OUT_FIGURES),
                f"{cell['default'][HITS]:.0%}",
            )
        )
    head = ("workload", "s/token", "mean", "P99", "recomputed", "hits")
    return _block(markdown(head, rows))


def _small_cache_table(results: Results) -> str:
    """Return a table with the latency per token of the workloads in `_SMALL_CACHE`."""
    ratios = _held_out_ratios(results, "ms_per_token")
    row = tuple(f"{ratios[name]:.2f}" for name in _SMALL_CACHE)
    return _block(markdown(tuple(_SMALL_CACHE.values()), [row]))


def _small_cache_range(figure: str) -> Callable[[Results], str]:
    """Return a function that returns, as text, the least and the greatest ratio to stock over the
    workloads in `_SMALL_CACHE`.
    """

    def spread(results: Results) -> str:
        ratios = _held_out_ratios(results, figure)
        of_these = [ratios[name] for name in _SMALL_CACHE]
        return f"{min(of_these):.2f} to {max(of_these):.2f}"

    return spread


def _held_out_ratios(results: Results, figure: str) -> dict[str, float]:
    """Return, for each workload, the median over the seeds of a figure divided by stock's."""
    cells = [cell for each in results for cell in each["cells"]]
    return {cell["workload"]: median(cell["to_stock"]["default"][figure]) for cell in cells}


def _offload_table(results: Results) -> str:
    """Return a table with three figures of each workload, divided by stock's, under the contenders
    in `_OFFLOAD`.
    """
    rows = [
        (
            f"`{name}`",
            *(" / ".join(f"{figure:.2f}" for figure in cell[contender]) for contender in _OFFLOAD),
        )
        for name, cell in _offload_cells(results).items()
    ]
    return _block(markdown(("s/token / mean / P99", *_OFFLOAD), rows))


def _offload_cells(results: Results) -> dict[str, dict[str, list[float]]]:
    """Return, for each workload and contender, the medians over the seeds of `_OFFLOAD_FIGURES`,
    each divided by stock's.
    """
    cells = [cell for each in results for cell in each["cells"]]
    return {
        cell["workload"]: {
            contender: [median(cell["to_stock"][contender][figure]) for figure in _OFFLOAD_FIGURES]
            for contender in _OFFLOAD
        }
        for cell in cells
    }


def _offload_goal(figure: int) -> Callable[[Results], str]:
    """Return a function that counts workloads: those in which a figure of ``default+offload`` is
    less than or equal (`_EQUAL`) to the same figure of each of the other two contenders. ``figure``
    is the figure's place in `_OFFLOAD_FIGURES`.
    """

    def reached(results: Results) -> str:
        cells = _offload_cells(results).values()
        better = [min(cell[contender][figure] for contender in _OFFLOAD[:2]) for cell in cells]
        ours = [cell[_OFFLOAD[2]][figure] for cell in cells]
        count = sum(mine <= _EQUAL * best for mine, best in zip(ours, better, strict=True))
        return f"{count} of {len(ours)}"

    return reached


def _first_runs_table(results: Results) -> str:
    """Return a table with mixes of unlike programs in the left half, and mixes of programs that are
    alike in the right half.
    """
    halves = [_mixes(results, names) for names in (UNLIKE, ALIKE)]
    rows = [(*left, *right) for left, right in zip(*halves, strict=True)]
    head = ("mean", "P99", "known")
    return _block(markdown(("unlike", *head, "alike", *head), rows))


def _mixes(results: Results, names: Iterable[str]) -> list[tuple[str, ...]]:
    ratios = {mix["mix"]: mix["by_seed"] for each in results for mix in each["cells"]}
    return [
        (f"`{name}`", *(f"{_of_seeds(ratios[name], figure):.3f}" for figure in _MIX_FIGURES))
        for name in names
    ]


def _over_mixes(names: Iterable[str]) -> Callable[[Results], str]:
    """Return a function that returns the mean, over the mixes ``names``, of the mean completion
    time divided by stock's.
    """

    def mean(results: Results) -> str:
        ratios = {mix["mix"]: mix["by_seed"] for each in results for mix in each["cells"]}
        return f"{fmean(_of_seeds(ratios[name], 'mean') for name in names):.3f}"

    return mean


def _room_table(results: Results) -> str:
    """Return a table with a row for each workload, and columns for each load."""
    seeds = {
        (cell["workload"], f"{cell['load']:g}"): cell["by_seed"]
        for each in results
        for cell in each["cells"]
    }
    figures = [(load, figure) for load in LOADS for figure in ("mean", "p99")]
    rows = [
        (
            f"`{name}`",
            *(
                spread_text([seed[figure] for seed in seeds[name, load]], ".3f")
                for load, figure in figures
            ),
        )
        for name in WORKS
    ]
    heads = [f"{'mean' if figure == 'mean' else 'P99'} at load {load}" for load, figure in figures]
    return _block(markdown(("workload", *heads), rows))


def _routing_table(results: Results) -> str:
    """Return a table with a row for each workload and router."""
    figures = {"mean_s": ".2f", "prefix_hit_share": ".3f", "balance": ".2f"}
    rows = [
        (
            f"`{cell['workload']}`",
            f"`{cell['router']}`",
            *(spread_text(cell["by_seed"][name], form) for name, form in figures.items()),
        )
        for each in results
        for cell in each["cells"]
    ]
    return _block(markdown(("workload", "router", "mean, s", "hit rate", "balance"), rows))


def _cost_router_table(results: Results) -> str:
    """Return a table with the latencies of the router ``cost``, divided by those of the best other
    router for each seed.
    """
    rows = []
    for each in results:
        cells = {cell["router"]: cell["by_seed"] for cell in each["cells"]}
        ours = cells.pop("cost")
        ratios = [
            [mine / min(theirs) for mine, *theirs in _by_seed(name, ours, *cells.values())]
            for name in ("mean_s", "p95_s")
        ]
        workload = each["cells"][0]["workload"]
        rows.append((f"`{workload}`", *(spread_text(values, ".3f") for values in ratios)))
    return _block(markdown(("workload", "mean", "P95"), rows))


def _by_seed(name: str, *routers: Mapping[str, Sequence[float]]) -> Iterable[Sequence[float]]:
    return zip(*(router[name] for router in routers), strict=True)


def _of_seeds(seeds: Sequence[Mapping[str, float]], figure: str) -> float:
    return median(seed[figure] for seed in seeds)


def _clients_table(results: Results) -> str:
    """Return a table with the calls per second in each quarter of a minute. For a policy with the
    same numbers of calls as stock, the table says so and does not repeat the numbers.
    """
    [counted] = results
    names = {OFF: "`--admission off`"}
    rows = []
    stock: Sequence[float] = ()
    for run in counted["runs"]:
        calls = run["calls"]
        stock = calls if run["scheduler"] == STOCK else stock
        same = run["scheduler"] != STOCK and calls == stock
        form = ".0f" if sum(stock) > 50 * counted["quarter_s"] * len(stock) else ".1f"
        shown = " ".join(format(number / counted["quarter_s"], form) for number in calls)
        rows.append(
            (
                run["conversation"],
                run["clients"],
                names.get(run["scheduler"], run["scheduler"]),
                "as stock, call for call" if same else shown,
                f"{sum(calls) / sum(stock):.2f}",
            )
        )
    head = ("conversations", "clients", "scheduler", "calls per second in each quarter of a minute")
    return _block(markdown((*head, "calls in five minutes / stock"), rows))


def _clients(kind: str, number: int) -> Callable[[Results], str]:
    """Return a function that returns the number of calls under the defaults, divided by stock's
    number. ``kind`` and ``number`` are the kind of the conversations and the number of clients.
    """

    def ratio(results: Results) -> str:
        calls = {
            run["scheduler"]: sum(run["calls"])
            for run in results[0]["runs"]
            if (run["conversation"], run["clients"]) == (kind, number)
        }
        return f"{calls[DEFAULT] / calls[STOCK]:.2f}"

    return ratio


def _ratios_table(results: Results) -> str:
    return _block(policies_table(results[0]["policies"]))


def _worst_table(results: Results) -> str:
    return _block(worst_table(results[0]["worst"], figures=False))


def _beside(row: Any, name: str) -> str:
    least, most = row["spread"][name]
    return f"{row[name]:.2f} ({least:.2f}-{most:.2f})"


def _block(table: str) -> str:
    return f"\n\n{table}\n\n"


_DEFAULTS = "adaptive+cost+memory"
VALUES: Mapping[str, tuple[str, Callable[[Results], str] | None]] = {
    "stock-measured": ("h100", _measured("stock")),
    "continuum-measured": ("h100", _measured("continuum-preview")),
    # Not simulated: the costs of copies are fitted to this run.
    "offload-measured": ("h100", lambda results: f"{theirs('H100', 3, OFFLOAD_128):.0f}"),
    "stock": ("h100", _simulated("stock")),
    "continuum": ("h100", _simulated("continuum-preview")),
    "continuum-paper": ("h100", _simulated("continuum")),
    "offload-free": ("h100", _simulated("stock+ample")),
    "default": ("h100", _simulated("default")),
    "unlike-first": ("unlike", _to_stock("first")),
    "unlike-known": ("unlike", _to_stock("ratios")),
    "unlike-first-change": ("unlike", _change("first")),
    "unlike-first-changes": ("unlike", _changes("first")),
    "unlike-known-change": ("unlike", _change("ratios")),
    "unlike-known-changes": ("unlike", _changes("ratios")),
    "unlike-off": ("unlike", lambda results: spread_text([each["off"] for each in results], ".0%")),
    "unlike-first-pairs": ("unlike", _pairs),
    "scheduler-4-10": ("scheduler", _scheduler(_DEFAULTS, 4, 10)),
    "scheduler-4-1000": ("scheduler", _scheduler(_DEFAULTS, 4, 1000)),
    "scheduler-64-10": ("scheduler", _scheduler(_DEFAULTS, 64, 10)),
    "scheduler-64-1000": ("scheduler", _scheduler(_DEFAULTS, 64, 1000)),
    "scheduler-fcfs-64-10": ("scheduler", _scheduler("fcfs", 64, 10)),
    "scheduler-fcfs-64-1000": ("scheduler", _scheduler("fcfs", 64, 1000)),
    "scheduler-table": ("scheduler", _scheduler_table),
    "front-calls": ("front", _front("calls", "cpu_ms_to_stock")),
    "front-functions": ("front", _front("calls", "called_to_stock")),
    "front-tokens": ("front", _front("streams", "cpu_ms_to_stock")),
    "front-functions-tokens": ("front", _front("streams", "called_to_stock")),
    "front-table": ("front", _front_table),
    "held-out-table": ("held-out", _held_out_table),
    "small-cache-table": ("held-out", _small_cache_table),
    "small-cache-mean": ("held-out", _small_cache_range("mean_jct_s")),
    "small-cache-p99": ("held-out", _small_cache_range("p99_jct_s")),
    "offload-table": ("offload", _offload_table),
    "offload-mean": ("offload", _offload_goal(1)),
    "offload-p99": ("offload", _offload_goal(2)),
    "first-runs-table": ("first-runs", _first_runs_table),
    "first-runs-unlike": ("first-runs", _over_mixes(UNLIKE)),
    "first-runs-alike": ("first-runs", _over_mixes(ALIKE)),
    "room-table": ("room", _room_table),
    "routing-table": ("routing", _routing_table),
    "routing-cost-table": ("routing", _cost_router_table),
    "clients-table": ("clients", _clients_table),
    "clients-long-256": ("clients", _clients("long", 256)),
    "ratios-table": ("ratios", _ratios_table),
    "ratios-worst-table": ("ratios", _worst_table),
    **{f"{source}-commit": (source, None) for source in SOURCES},
}
"""For each name, the file of results, and a function that makes the text on the page from the
file's results. Without a function (None), the text is the commit of the file.
"""


# -- running -----------------------------------------------------------------------------


def _output(command: str, exits: Sequence[int]) -> Any:
    """Run a command of this checkout, and return the JSON of its last line. With another exit code
    than those of ``exits``, exit with 1.
    """
    note(command)
    program, *words = shlex.split(command)
    start = Path(sys.executable).with_name(program)
    # With a fixed hash seed, a run in virtual time takes the same decisions again.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [start, *words],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    if done.returncode not in exits:
        note(f"the command failed with exit code {done.returncode}; nothing was recorded")
        raise SystemExit(1)
    return json.loads(done.stdout.splitlines()[-1])


def _commit() -> str:
    """Return the commit of the code, with ``-dirty`` if a file of the code differs from the
    commit.
    """
    changed = _git("status", "--porcelain", "--", "agentrt", "benchmarks", "demos")
    return _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _without(value: Any, names: Sequence[str]) -> Any:
    """Return a value without the keys ``names``, at any depth."""
    if isinstance(value, dict):
        return {key: _without(item, names) for key, item in value.items() if key not in names}
    return [_without(item, names) for item in value] if isinstance(value, list) else value
