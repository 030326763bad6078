"""The predictions of ``benchmarks gpu``: the same jobs in virtual time."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.executors.vllm.entrypoints.flags import given_flags
from agentrt.executors.vllm.processes import interrupts_blocked
from agentrt.lab.commands.progress import process_pool
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.reports.standard import GoodputLimits, Metrics, standard
from agentrt.lab.reports.tables import digits, markdown
from agentrt.lab.runs.contenders import AMPLE, OFFLOADED, STOCK, Contender, contender
from benchmarks.gpu.plan import ENGINES, SIZES, Size
from benchmarks.gpu.report import CAPPED, COMPARED, UNCAPPED, Cell
from benchmarks.memory.report import HITS

_RATIO = "ratio"
_SIZES = ("max_num_batched_tokens", "max_num_seqs")
"""Options of vLLM that may differ from the earlier run's when this run is predicted again."""
_CORES_EACH = 4
"""Each process that predicts gets this number of cores for itself, so that it does not slow down
the engine that is started at the same time. With fewer cores there is no such process.
"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A run to predict: a contender's jobs on an engine of a size with these step times."""

    contender: str
    seed: int
    size: Size
    options: VirtualOptions
    times: StepTimeModel

    def run(self) -> RunOutcome:
        programs = self.size.programs(self.seed)
        return in_virtual_time(self.contender).run(programs, self.options, self.times)


def in_virtual_time(name: str) -> Contender:
    """Return the contender of a name. An offload is a much larger KV cache at no cost here, because
    the size of a token in bytes is not known before the real engine has started.
    """
    return contender(name.replace(f"+{OFFLOADED}", f"+{AMPLE}"))


def virtual_options(sizes: Mapping[str, Any]) -> VirtualOptions:
    """Return the options of a virtual engine with the ``sizes`` of a real one
    (`LabEngine.sizes`).
    """
    known = dict(sizes)
    return VirtualOptions(in_flight=2 if known.pop("async_scheduling", False) else 1, **known)


@dataclass(slots=True)
class Predictor:
    """A maker of predictions, which makes each prediction only once. The predictions run in the
    processes of ``pool``, or, if it is None, in this process.
    """

    pool: ProcessPoolExecutor | None = None
    _made: dict[Prediction, RunOutcome] = field(default_factory=dict)

    async def make(self, wanted: Iterable[Prediction]) -> list[RunOutcome]:
        """Return the predictions for ``wanted``, in this order."""
        wanted = list(wanted)
        new = [each for each in dict.fromkeys(wanted) if each not in self._made]
        if self.pool is None:
            made = [each.run() for each in new]
        else:
            loop = asyncio.get_running_loop()
            made = await asyncio.gather(
                *(loop.run_in_executor(self.pool, each.run) for each in new)
            )
        self._made.update(zip(new, made, strict=True))
        return [self._made[each] for each in wanted]


@contextmanager
def predictor(cores: int | None = None) -> Iterator[Predictor]:
    """Yield a `Predictor` for a machine with ``cores`` cores (by default the cores that this
    process may use). Its processes load vLLM at once, while the caller starts an engine.
    """
    processes = (cores or len(os.sched_getaffinity(0))) // _CORES_EACH
    if not processes:
        yield Predictor()
        return
    tiny = replace(SIZES["tiny"], jobs=1)
    options = VirtualOptions(max_model_len=tiny.longest)
    first = Prediction(STOCK, 0, tiny, options, StepTimeModel(1e-3, 0.0, 0.0, 0.0))
    with process_pool(processes) as pool:
        with interrupts_blocked():  # the first submitted tasks start the processes
            for _ in range(processes):
                pool.submit(first.run)
        yield Predictor(pool)


def predictions_of(folder: Path, limits: GoodputLimits, flags: Sequence[str] = ()) -> str:
    """Return tables of predictions beside measurements, for the first seed of an earlier run whose
    results are in ``folder``. The predictions use the step times that were measured there. There is
    a table for each KV cache that was measured, with all contenders.

    ``flags`` are vLLM's flags for other sizes of the engine. Raises `ConfigError` if the files of
    such a run are missing or not readable, or if a flag changes nothing in virtual time.
    """
    changed = given_flags(flags)
    if unknown := sorted(changed.keys() - _SIZES):
        raise ConfigError(
            f"--{unknown[0].replace('_', '-')} changes no prediction; allowed: "
            + ", ".join(f"--{name.replace('_', '-')}" for name in _SIZES)
        )
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
        records = [record for record in map(json.loads, lines) if "real" in record]
        size, times = Size(**about["jobs"]), StepTimeModel(**about["step_time"])
        options, seed = virtual_options({**about["engine"], **changed}), about["options"]["seed"]
        real = {Cell(**record["cell"]): record for record in records}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--predict {str(folder)!r} has no finished run of benchmarks gpu: {error}"
        ) from error
    names = [name for group in ENGINES for name in group]
    blocks = {cell.memory: record["blocks"] for cell, record in real.items()}
    parts = []
    for memory in (CAPPED, UNCAPPED):
        if memory in blocks:
            sized = replace(options, kv_blocks=blocks[memory])
            virtual = {
                name: standard(Prediction(name, seed, size, sized, times).run().outcomes, limits)
                for name in names
            }
            measured = {name: real.get(Cell(memory, name, seed), {}).get("real") for name in names}
            parts.append(f"{memory.capitalize()}: {blocks[memory]:,} KV blocks\n\n")
            parts[-1] += _beside(names, virtual, measured)
    return "\n\n".join(parts)


def _beside(
    names: Sequence[str], virtual: Mapping[str, Metrics], real: Mapping[str, Metrics | None]
) -> str:
    """Return a table of measurements and predictions; a measurement that is missing is "-"."""
    rows = []
    for name in names:
        sides = [(side[name], side[STOCK]) for side in (real, virtual)]
        cells = [[_shown(figure, *side) for side in sides] for figure in (*COMPARED, HITS, _RATIO)]
        rows.append([name, *map(" / ".join, cells)])
    heads = [*COMPARED.values(), "hits", "JCT mean / stock"]
    return markdown(["contender", *(f"{head}: measured / predicted" for head in heads)], rows)


def _shown(figure: str, run: Metrics | None, stock: Metrics | None) -> str:
    if run is None or (figure == _RATIO and stock is None):
        return "-"
    if figure == _RATIO and stock is not None:
        return f"{run['mean_jct_s'] / stock['mean_jct_s']:.2f}"
    return f"{run[HITS]:.0%}" if figure == HITS else digits(run[figure])
