"""``agentrt bench`` in real time: engines one after the other, and how long is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agentrt.cli.faults import StoppedError
from agentrt.cli.signals import Interrupts
from agentrt.lab.commands.bench.asked import Asked, Measured
from agentrt.lab.commands.options import note
from agentrt.lab.reports.policies import about_workload, vllm_version

if TYPE_CHECKING:
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.lab.bench.policies import RealBench

_SLOTS_ON_CPU = 4


def measure(asked: Asked) -> Measured:
    """All runs on this machine. A signal keeps what is done."""
    base = _engine_options(asked)
    from agentrt.lab.bench.policies import RealBench
    from agentrt.lab.bench.results import hardware
    from agentrt.lab.engine.engines import started

    progress = _Progress()
    bench = RealBench(
        base,
        asked.source,
        asked.pressures,
        asked.programs,
        asked.everyone,
        asked.seeds,
        started,
        progress.tell,
    )
    progress.runs = bench.runs
    stop = None
    try:
        Interrupts(note).run(bench.run())
    except StoppedError as error:
        stop = StoppedError(error.code - 128, f"{error}: {len(bench.results)} runs were done")
    if not bench.results:  # no engine came up in time, and there is nothing to tell
        return {}, "", [], stop
    machine = hardware()
    return _about(asked, bench, machine), _head(asked, bench, machine), bench.results, stop


def _engine_options(asked: Asked) -> EngineOptions:
    """Checked before anything is loaded, as far as that can be."""
    from agentrt.executors.vllm.options import EngineOptions, check_model, prepare_environment
    from agentrt.lab.engine.shapes import FLAGS, shape_folder

    model, shape = asked.options["model"], asked.options["model_shape"]
    flags = tuple(asked.flags)
    if shape is not None:
        model, flags = shape_folder(shape), (*FLAGS, *flags)
    elif model is not None:
        check_model(model)
    prepare_environment(EngineOptions())
    import torch

    slots = asked.options["max_num_seqs"]
    if slots is None and not torch.cuda.is_available() and "--max-num-seqs" not in flags:
        slots = _SLOTS_ON_CPU
    return EngineOptions(model, slots, flags=flags)


class _Progress:
    """A line on stderr for what runs now, with the time left as the runs so far tell it."""

    def __init__(self) -> None:
        self.runs = 0
        self._began = time.monotonic()

    def tell(self, done: int, what: str) -> None:
        left = ""
        if done:
            each = (time.monotonic() - self._began) / done
            left = f" (about {each * (self.runs - done):.0f} s left)"
        note(f"{done} of {self.runs} runs: {what}{left}")


def _named(asked: Asked) -> str:
    options = asked.options
    shape = options["model_shape"]
    if shape is not None:
        return f"a model of the shape {shape} with made-up weights"
    return options["model"] or "the embedded default model"


def _about(asked: Asked, bench: RealBench, machine: str) -> dict[str, Any]:
    return {
        "time": "real",
        "vllm": vllm_version(),
        "hardware": machine,
        "engine": {"model": _named(asked), "flags": list(asked.flags), **bench.sizes},
        "capacity_per_s": bench.per_s,
    }


_REAL = """**Real time**: engines of vLLM {} on {}, one after the other;
what else ran on the machine is in the figures."""
_SIZES = """Engine: {}, {max_num_seqs} batch slots, {kv_blocks} KV blocks of {block_size} tokens,
{max_num_batched_tokens} tokens a step at most, calls of up to {max_model_len}{}."""


def _head(asked: Asked, bench: RealBench, machine: str) -> str:
    flags = f", {' '.join(asked.flags)}" if asked.flags else ""
    lines = [
        _REAL.format(vllm_version(), machine),
        _SIZES.format(_named(asked), flags, **bench.sizes),
        about_workload(bench.source, asked.programs, asked.seeds),
    ]
    if bench.per_s is not None:
        lines.append(f"All at once, stock did {bench.per_s:.3g} programs/s: 1x of --rate.")
    return "\n".join(lines)
