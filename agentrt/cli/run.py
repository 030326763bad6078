"""``agentrt run``: its options, and what it does with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.engines import Fleet, fleet_options, make_executor, read_fleet
from agentrt.cli.graphflags import check_no_graph_flags, graph_options, graph_terms
from agentrt.cli.options import ARGUMENTS, RunCommand, RunOption, batch_option, model_option

if TYPE_CHECKING:
    from agentrt.cli.execute import Job
    from agentrt.cli.load import Found
    from agentrt.cli.plan import Plan
    from agentrt.program import Program

_EPILOG = """\b
Examples:
  agentrt run demos/react.py
  agentrt run demos/react.py --input "Who wrote Faust?" --n 8 --max-num-seqs 2
  agentrt run mine.py:planner --input '{"goal": "tea"}' --dag plan.mmd
  agentrt run mine.py --policy fcfs --json | tail -n 1 | jq .programs
  agentrt run mine.py -- --max-model-len 2048 --dtype float32
  agentrt run graph.py --input "Plan a tea" --checkpointer sqlite:t.db --thread tea
  agentrt run graph.py --checkpointer sqlite:t.db --thread tea --interrupt-reply yes

\b
Exit codes: 0 every program gave its result; 1 a program or the engine failed;
2 bad usage; 3 a graph waits for a human's answer, and the command that gives
it was printed; 130 Ctrl-C. The result goes to stdout, all else to stderr.
"""


@click.command(cls=RunCommand, epilog=_EPILOG)
@click.argument("target", metavar="PROGRAM.py[:NAME]")
@click.option(
    "--input",
    "input_text",
    metavar="TEXT|JSON|@FILE",
    cls=RunOption,
    group="Program",
    help="The program's input. What begins with { or [ is JSON; @FILE is a file's content, JSON "
    "if it ends in .json; @@ stands for one @; all else is text: for a graph with messages, what "
    "the user says.",
)
@click.option(
    "--n",
    "n",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    cls=RunOption,
    group="Program",
    help="Run N instances at once, each with the same input.  [default: 1]",
)
@click.option(
    "--human",
    "answers",
    multiple=True,
    metavar="TEXT",
    cls=RunOption,
    group="Program",
    help="An answer, in advance, to a question that the program asks a human; repeat it for the "
    "next one. Without it the question is asked on the terminal.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    cls=RunOption,
    group="Program",
    help="Cancel a program that takes longer.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    metavar="N",
    cls=RunOption,
    group="Program",
    help="Makes sampled calls repeatable.  [default: 0]",
)
@click.option(
    "--policy",
    default="atlas",
    metavar="NAME",
    cls=RunOption,
    group="Scheduling",
    help="adaptive, atlas, atlas-scalar, plas, mlfq, round-robin, program-fcfs, srtf, two-level, "
    "fcfs, or an installed one.  [default: atlas]",
)
@click.option(
    "--quanta",
    metavar="S,S,…",
    cls=RunOption,
    group="Scheduling",
    help="Seconds of service in each queue level but the last.",
)
@click.option(
    "--beta",
    type=float,
    metavar="X",
    cls=RunOption,
    group="Scheduling",
    help="Promote a call once its program waited X times as long as it was served; inf: never.",
)
@click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    cls=RunOption,
    group="Scheduling",
    help="Keep what --policy adaptive and --retention cost learn in this file, over runs.",
)
@click.option(
    "--retention",
    type=click.Choice(["lru", "ttl", "cost"]),
    default="lru",
    metavar="NAME",
    cls=RunOption,
    group="Scheduling",
    help="Whose cached context goes first when memory is short: lru is vLLM's own order, ttl and "
    "cost keep that of programs in a tool call.  [default: lru]",
)
@graph_options
@model_option
@batch_option
@fleet_options
@click.option(
    "--dag",
    type=click.Path(path_type=Path),
    metavar="FILE",
    cls=RunOption,
    group="Output",
    help="Write the execution graph: .json for data, .mmd for a Mermaid drawing.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    cls=RunOption,
    group="Output",
    help="Print one JSON object as the last line: results, programs, interrupts, engine, policy.",
)
@click.option(
    "--verbose",
    is_flag=True,
    cls=RunOption,
    group="Output",
    help="Show vLLM's own log on stderr, and no live view.",
)
def run(target: str, engine_flags: tuple[str, ...], **options: Any) -> int:
    """Run the agent program in PROGRAM.py on an embedded vLLM engine.

    That is an agentrt @program, a LangGraph graph (compiled or not, or an
    @entrypoint), or a graph that a langgraph.json names: give that file or its
    folder. With several in it, NAME picks one.

    What follows -- goes to vLLM as it is, as flags of 'vllm serve'.
    """
    # Here and not above, so that --help does not pay for it.
    from agentrt.cli.load import load_program

    options_of_engine = _engine_options(options, engine_flags)
    given = _check_values(options)
    fleet = read_fleet(options)
    plan = _plan(load_program(target), given, options)
    return _run(_job(plan, options_of_engine, options), fleet, as_json=options["as_json"])


def _plan(found: Found, given: Any, options: dict[str, Any]) -> Plan:
    """What to start, checked as far as can be without running it."""
    from agentrt.cli.plan import ProgramPlan
    from agentrt.cli.target import GraphTarget

    if not isinstance(found, GraphTarget):
        check_no_graph_flags(options, found.name)
        _check_input(found, given)
        return ProgramPlan(found, given, options["n"])
    from agentrt.cli.again import Invocation
    from agentrt.cli.graphplan import GraphPlan

    arguments = click.get_current_context().meta[ARGUMENTS]
    return GraphPlan(found, graph_terms(options, given), Invocation(arguments))


def _engine_options(options: dict[str, Any], flags: tuple[str, ...]) -> Any:
    """Everything about the engine that can be refused without starting it."""
    from agentrt.cli.values import read_quanta
    from agentrt.errors import ModelLoadError
    from agentrt.executors.vllm.options import EngineOptions, check_model
    from agentrt.scheduler.config import SchedulerConfig
    from agentrt.scheduler.policies import policy_class

    policy_class(options["policy"])
    settings: dict[str, Any] = {"policy": options["policy"], "retention": options["retention"]}
    if options["quanta"] is not None:
        settings["quanta"] = read_quanta(options["quanta"])
    if options["beta"] is not None:
        settings["beta"] = options["beta"]
    if options["history"] is not None:
        settings["history"] = _history(options["history"], options)
    model = options["model"]
    if model is not None:
        if not model.strip():
            raise ModelLoadError("--model '': give a folder or a hub name, or leave it out")
        check_model(model)
    return EngineOptions(
        model=model,
        max_num_seqs=options["max_num_seqs"],
        scheduler=SchedulerConfig(**settings),
        flags=flags,
        verbose=options["verbose"],
        replicas=options["replicas"],
    )


def _history(path: Path, options: dict[str, Any]) -> str:
    from agentrt.errors import UsageError
    from agentrt.executors.vllm.memory import read

    policy, retention = options["policy"], options["retention"]
    if policy != "adaptive" and retention != "cost":
        raise UsageError(
            f"--history is for --policy adaptive and --retention cost; {policy} learns nothing, "
            f"and {retention} does not either"
        )
    read(path)
    return str(path.resolve())


def _check_values(options: dict[str, Any]) -> Any:
    """The input, read; other values that can be refused at once are."""
    from agentrt.cli.values import check_dag_path, read_input

    check_dag_path(options["dag"])
    return read_input(options["input_text"])


def _check_input(program: Program, given: Any) -> None:
    from agentrt.errors import UsageError

    if program.needs_input and given is None:
        raise UsageError(f"program {program.name!r} needs an input; give it with --input TEXT")
    if given is not None and not program.takes_input:
        raise UsageError(f"program {program.name!r} takes no input; leave --input out")


def _job(plan: Plan, engine: Any, options: dict[str, Any]) -> Job:
    from agentrt.cli.execute import Job

    return Job(
        plan=plan,
        options=engine,
        seed=options["seed"],
        timeout=options["timeout"],
        answers=options["answers"],
        dag=options["dag"],
    )


def _run(job: Job, fleet: Fleet, *, as_json: bool) -> int:
    """Run the job on embedded engines, and tell how it went. Returns the exit code."""
    from agentrt.cli.conclude import conclude
    from agentrt.cli.execute import execute
    from agentrt.cli.interrupts import Interrupts
    from agentrt.cli.quiet import EngineLog
    from agentrt.cli.screen import open_screen

    verbose = job.options.verbose
    with EngineLog(verbose=verbose) as log, open_screen(plain=verbose) as screen:

        def last_words(text: str) -> None:
            log.discard()
            screen.last_words(text)

        executor = make_executor(job.options, fleet, screen.progress)
        outcome = Interrupts(last_words).run(execute(job, executor, screen, log))
        return conclude(job, outcome, screen.console, log, as_json=as_json)
