"""``agentrt run``: its options, and what it does with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.options import RunCommand, RunOption, batch_option, model_option

if TYPE_CHECKING:
    from agentrt.cli.execute import Job
    from agentrt.program import Program

_EPILOG = """\b
Examples:
  agentrt run demos/react.py
  agentrt run demos/react.py --input "Who wrote Faust?" --n 8 --max-num-seqs 2
  agentrt run mine.py:planner --input '{"goal": "tea"}' --dag plan.mmd
  agentrt run mine.py --policy fcfs --json | tail -n 1 | jq .programs
  agentrt run mine.py -- --max-model-len 2048 --dtype float32

\b
Exit codes: 0 every program gave its result; 1 a program or the engine failed;
2 bad usage; 130 Ctrl-C. The result goes to stdout, all else to stderr.
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
    "if it ends in .json; @@ stands for one @; all else is text.",
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
    help="Keep what --policy adaptive learns in this file, over runs.",
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
@model_option
@batch_option
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
    help="Print one JSON object as the last line: results, programs, engine, policy.",
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

    With several programs in the file, NAME picks one.

    What follows -- goes to vLLM as it is, as flags of 'vllm serve'.
    """
    # Here and not above, so that --help does not pay for it.
    from agentrt.cli.load import load_program

    options_of_engine = _engine_options(options, engine_flags)
    given = _check_values(options)
    program = load_program(target)
    _check_input(program, given)
    return _run(_job(program, given, options_of_engine, options), as_json=options["as_json"])


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
        settings["history"] = _history(options["history"], options["policy"])
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
    )


def _history(path: Path, policy: str) -> str:
    from agentrt.errors import UsageError
    from agentrt.executors.vllm.memory import read

    if policy != "adaptive":
        raise UsageError(f"--history is for --policy adaptive; {policy} learns nothing")
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


def _job(program: Program, given: Any, engine: Any, options: dict[str, Any]) -> Job:
    from agentrt.cli.execute import Job

    return Job(
        program=program,
        options=engine,
        input=given,
        n=options["n"],
        seed=options["seed"],
        timeout=options["timeout"],
        answers=options["answers"],
        dag=options["dag"],
    )


def _run(job: Job, *, as_json: bool) -> int:
    """Run the job on a vLLM engine, and tell how it went. Returns the exit code."""
    from agentrt.cli.conclude import conclude
    from agentrt.cli.execute import execute
    from agentrt.cli.interrupts import Interrupts
    from agentrt.cli.quiet import EngineLog
    from agentrt.cli.screen import open_screen
    from agentrt.executors.vllm.engine import VLLMEngine

    verbose = job.options.verbose
    with EngineLog(verbose=verbose) as log, open_screen(plain=verbose) as screen:

        def last_words(text: str) -> None:
            log.discard()
            screen.last_words(text)

        outcome = Interrupts(last_words).run(execute(job, VLLMEngine(job.options), screen, log))
        return conclude(job, outcome, screen.console, log, as_json=as_json)
