"""``agentrt bench barrier``: the price of LangGraph's superstep barrier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.lab.commands.bench.opened import opened
from agentrt.lab.commands.bench.values import note, numbers

if TYPE_CHECKING:
    from agentrt.lab.bench.barrier import BarrierBench


@click.command()
@click.option("--programs", default="1,4", show_default=True, metavar="N,N,…", help="At once.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, metavar="N")
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--model", metavar="MODEL", help="A folder or a Hugging Face name.")
@click.option(
    "--demos",
    type=click.Path(path_type=Path),
    default="demos",
    show_default=True,
    metavar="FOLDER",
    help="Where barrier_agentrt.py and barrier_langgraph.py are.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw both DAGs: .png, .svg or .pdf.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the medians as one JSON line.")
def barrier(**options: Any) -> None:
    """What LangGraph's superstep barrier costs one agent, on a real engine.

    The agent of demos/barrier_*.py as a LangGraph graph and as an agentrt program: the same
    calls with outputs of fixed length, by turns. Latencies in engine steps and in seconds.
    """
    from agentrt.cli.signals import Interrupts

    counts = sorted(set(numbers(options["programs"], "--programs")))
    if options["plot"] is not None:
        _check_plot(options["plot"])
    measured = Interrupts(note).run(_measure(counts, options))
    click.echo(measured.table())
    if options["as_json"]:
        click.echo(json.dumps(measured.medians()))
    if options["plot"] is not None:
        from agentrt.lab.bench.barrier_plot import draw_runs

        draw_runs(measured.last, options["plot"])


def _check_plot(path: Path) -> None:
    from agentrt.lab.reports.plots import SUFFIXES, check_matplotlib

    check_matplotlib()
    if path.suffix not in SUFFIXES:
        raise click.BadParameter(f"--plot {str(path)!r} must end in one of {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"--plot {str(path)!r}: there is no such folder")


async def _measure(counts: list[int], options: dict[str, Any]) -> BarrierBench:
    from importlib import import_module

    from agentrt.cli.load import load_program
    from agentrt.errors import ProgramLoadError
    from agentrt.executors.vllm.engine import VLLMEngine
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.integrations.langchain import ChatAgentRT
    from agentrt.lab.bench.barrier import BarrierBench
    from agentrt.lab.bench.fixed import FixedLength
    from agentrt.program import Program
    from agentrt.runtime import Runtime

    # The folder is on the import path once the program is loaded.
    path = options["demos"] / "barrier_agentrt.py"
    program = load_program(str(path))
    if not isinstance(program, Program):
        raise ProgramLoadError(f"{path}: no agentrt program in it, but a graph")
    build = import_module("barrier_langgraph").build
    engine = VLLMEngine(EngineOptions(options["model"], options["max_num_seqs"]))
    runtime = Runtime(FixedLength(engine))
    async with opened(runtime):
        graph = build(ChatAgentRT(runtime=runtime))
        measured = BarrierBench(runtime, graph, program, engine.forget_prefixes, note)
        await measured.run(counts, options["repeat"])
    return measured
