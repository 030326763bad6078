"""``agentrt run``: the options, those of a batch (``--inputs``) included, and the job that is made
from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.options import (
    ARGUMENTS,
    FileText,
    Options,
    RunCommand,
    batch_option,
    dashboard_option,
    fleet_options,
    graph_options,
    host_memory_option,
    journal_options,
    kind_option,
    model_option,
    output,
    scheduling_options,
    seed_option,
    together,
    tool_options,
    traces_option,
)

_batch = Options("Batch")
_BATCH_FLAGS = {
    "out": "--out",
    "input_field": "--input-field",
    "id_field": "--id-field",
    "where": "--where",
    "limit": "--limit",
    "samples": "--samples",
    "retry": "--retry",
    "score_targets": "--score",
    "max_tokens_total": "--max-tokens-total",
    "max_calls": "--max-calls",
    "stop_when": "--stop-when",
    "price": "--price",
    "tokens": "--tokens",
}

inputs_options = together(
    _batch.text(
        "--inputs",
        "FILE|-",
        "Run the program on each record of this file: .jsonl, .json (a list), .csv, .tsv or "
        ".parquet, also with .gz or .zst. - reads the standard input, in any of these formats.",
        type=FileText(),
        once=True,
    ),
    _batch.file(
        "--out",
        "File for the results: one line of JSON for each run, written when the run ends. After a "
        "kill at any moment, the same command resumes the batch.",
        dir_okay=True,
    ),
    _batch.text(
        "--input-field",
        "NAME",
        "Field of a record that holds the program's input.  [default: input, if the first record "
        "has it, else the whole record]",
    ),
    _batch.text(
        "--id-field",
        "NAME",
        "Field that holds a record's id.  [default: id, if the first record has it, else the "
        "record's number]",
    ),
    _batch.several(
        "--where",
        "where",
        "FIELD=VALUE",
        "Use only records that fulfil this condition. Other operators: !=, <, <=, >, >=, and ~ for "
        "a regular expression. Repeat the option for further conditions.",
    ),
    _batch.count("--limit", "Use only the first N records; --where is applied first."),
    _batch.count("--samples", "Run each input N times.  [default: 1]"),
    _batch.text(
        "--retry",
        "failed|scores|all",
        "Repeat a part of the batch. failed: repeat the runs that failed or were stopped; all: "
        "repeat every run; scores: repeat no run, but compute the scores again for results in "
        "which a score is missing or raised an error.",
        type=click.Choice(["failed", "scores", "all"]),
    ),
    _batch.several(
        "--score",
        "score_targets",
        "FILE.py[:NAME]|cmd:COMMAND",
        "Also score results with the @score functions of this file, or with a command. The @score "
        "functions of PROGRAM.py are always used.",
    ),
    _batch.count(
        "--max-tokens-total",
        "Stop a run that begins a call after its calls have used N tokens of prompts and outputs.",
    ),
    _batch.count("--max-calls", "Stop a run that begins more than N calls."),
    _batch.text(
        "--stop-when", "SHARE", "Stop the batch once this share of its runs has ended, such as 99%."
    ),
    _batch.text(
        "--price",
        "IN,OUT",
        "Prices of a million prompt tokens and of a million output tokens. With this option, "
        "each result has a cost.",
    ),
    _batch.file(
        "--tokens",
        "Write the token ids of each result to this file, with log probabilities and a mask of "
        "the tokens that the model wrote. The file has one line of JSON for each result. If its "
        "name ends in .parquet or .arrow, a table is written at the end of the batch instead.",
        dir_okay=True,
    ),
)


def _refuse_without_inputs(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` if an option is set that is only for batches."""
    from agentrt.errors import UsageError

    for name, flag in _BATCH_FLAGS.items():
        if options[name]:
            raise UsageError(f"{flag} is for a batch: give its records with --inputs FILE")


if TYPE_CHECKING:
    from rich.console import Console

    from agentrt.cli.engine_log import EngineLog
    from agentrt.cli.engines import Fleet
    from agentrt.cli.execute import CommandOutcome, Job
    from agentrt.cli.journals import JournalPlan
    from agentrt.cli.load import LoadedTarget
    from agentrt.cli.plan import Plan
    from agentrt.program import Program

    Planned = tuple[Plan, JournalPlan | None]
    End = Callable[[CommandOutcome, Console, EngineLog], int]

_EPILOG = """\b
Examples:
  agentrt run demos/react.py
  agentrt run demos/react.py --n 8 --max-num-seqs 2 --dashboard
  agentrt run demos/react.py --input "Who wrote Faust?" --n 8 --max-num-seqs 2
  agentrt run mine.py:planner --input '{"goal": "tea"}' --dag plan.mmd
  agentrt run mine.py --policy fcfs --json | tail -n 1 | jq .programs
  agentrt run mine.py --journal mine.journal
  agentrt run mine.py -- --max-model-len 2048 --dtype float32
  agentrt run solve.py --inputs tasks.jsonl --out results.jsonl --samples 4
  agentrt run graph.py --input "Plan a tea" --checkpointer sqlite:t.db --thread tea
  agentrt run graph.py --checkpointer sqlite:t.db --thread tea --human yes

\b
Exit codes: 0 all programs returned a result; 1 a program or the engine failed,
or SIGTERM came before all programs had started; 2 bad usage;
3 a graph waits for a human, and the command that answers was printed;
130 Ctrl-C. Results go to stdout, everything else to stderr. SIGTERM lets the
running programs finish and starts no more; a second signal stops them.
"""
_program = Options("Program")
_GRAPH_FLAGS = {
    "thread": "--thread",
    "checkpointer": "--checkpointer",
}


human_options = together(
    _program.several(
        "--human",
        "answers",
        "[ID=]TEXT|JSON|@FILE",
        "Answer to a question that the program will ask a human, or that the graph will ask with "
        "interrupt(). Repeat the option for the next question. The answer is text, or JSON if the "
        "question requires JSON. For a graph, ID= chooses among several open questions, and @FILE "
        "stands for the file's content. Questions without a prepared answer are asked on the "
        "terminal, and also on the dashboard (--dashboard) and at the broker (--broker).",
        former=("--interrupt-reply",),
    ),
    _program.seconds(
        "--timeout", "Cancel each program that takes longer than this time.  [default: no limit]"
    ),
)
engine_group = together(kind_option, model_option, batch_option, host_memory_option, fleet_options)
output_group = together(
    output.file(
        "--dag",
        "Write the execution graph to this file: .json for data, .mmd for a Mermaid drawing.",
        dir_okay=True,
    ),
    output.flag(
        "--json",
        "Print one JSON object as the last line: results, programs, interrupts, outside_calls, "
        "engine, policy.",
        "as_json",
    ),
    output.file(
        "--trace",
        "Write a timeline of programs, calls, tools and the engine to this file, for "
        "https://ui.perfetto.dev.",
        dir_okay=True,
    ),
    dashboard_option,
    traces_option,
    output.flag("--verbose", "Show vLLM's own log on stderr instead of the live view."),
)


@click.command(cls=RunCommand, epilog=_EPILOG)
@click.argument("target", metavar="PROGRAM.py[:NAME]")
@_program.text(
    "--input",
    "TEXT|JSON|@FILE",
    "Input of the program. A value that begins with { or [ is JSON. @FILE stands for the file's "
    "content, which is JSON if the name ends in .json. Every other value is text; write @@ for a "
    "leading @. For a graph with messages, text is the user's message.",
    "input_text",
    once=True,
)
@_program.count("--n", "Number of instances to run, each with the same input.", default=1)
@_program.count(
    "--max-live",
    "Maximum number of instances that run at the same time.  [default: 4096; with --inputs 256]",
)
@inputs_options
@human_options
@seed_option
@tool_options
@scheduling_options
@graph_options
@Options("Journal").file(
    "--journal",
    "Record each call, tool and answer of the programs in this file. If the command is killed, run "
    "the same command again: it resumes, and does not repeat what is recorded.",
)
@journal_options
@Options("Journal").count(
    "--journal-keep",
    "Number of successful programs whose nodes stay in the journal; of older successful programs "
    "only the result stays.  [default: all]",
)
@engine_group
@output_group
def run(target: str, engine_flags: tuple[str, ...], **options: Any) -> int:
    """Run the agent program in PROGRAM.py on an embedded vLLM engine.

    The program is an agentrt @program, a LangGraph graph (compiled or not, or an
    @entrypoint), or a graph of a langgraph.json: then name that file or its folder
    instead of PROGRAM.py. If the file has several programs, NAME chooses one.

    Arguments after -- go to vLLM unchanged, as flags of 'vllm serve'.
    """
    if options["inputs"] is not None:
        from agentrt.cli.batch import run_batch

        return run_batch(target, engine_flags, options)
    _refuse_without_inputs(options)

    def planned() -> Planned:
        from agentrt.cli.journals import read_journal
        from agentrt.cli.load import LoadedGraph, load_program
        from agentrt.cli.values import read_input

        value = read_input(options["input_text"])
        loaded = load_program(target)
        plan = plan_of(loaded, value, options)
        return plan, read_journal(options, is_graph=isinstance(loaded, LoadedGraph))

    return run_planned(planned, engine_flags, options)


def run_planned(
    planned: Callable[[], Planned], engine_flags: tuple[str, ...], options: dict[str, Any]
) -> int:
    """Check a command's options, then call ``planned`` and run its plan. Return the exit code."""
    # Imported here, so that --help stays fast.
    from agentrt.cli.engines import check_kind, engine_options, read_fleet
    from agentrt.cli.execute import Job
    from agentrt.cli.report import conclude
    from agentrt.cli.tools import read_tools
    from agentrt.cli.traces import read_traces
    from agentrt.cli.values import check_output

    check_kind(options["kind"], click.get_current_context(), engine_flags)
    engine = engine_options(options, engine_flags)
    check_output("--dag", options["dag"], (".json", ".mmd"))
    check_output("--trace", options["trace"])
    tools, fleet = read_tools(options), read_fleet(options)
    traces = read_traces(options["traces"], engine_flags)
    plan, journal = planned()
    job = Job(
        plan,
        engine,
        seed=options["seed"],
        timeout=options["timeout"],
        max_live=options["max_live"] or 4096,
        dag=options["dag"],
        timeline=options["trace"],
        dashboard=options["dashboard"],
        tools=tools,
        traces=traces,
        journal=journal,
    )
    return run_job(job, fleet, partial(conclude, job, as_json=options["as_json"]))


def plan_of(target: LoadedTarget, value: Any, options: dict[str, Any]) -> Plan:
    """Return the plan for a loaded target.

    Raises `UsageError` for options that do not fit the target.
    """
    from agentrt.cli.load import LoadedGraph
    from agentrt.cli.plan import Plan, Start

    if not isinstance(target, LoadedGraph):
        _refuse_graph_options(target, options)
        accepted = accept_input(target, value)
        return Plan(repeat(Start(target, accepted), options["n"]), options["answers"])
    from agentrt.cli.graph_plan import GraphPlan, Invocation, graph_terms
    from agentrt.errors import UsageError

    if options["journal"] is not None:
        raise UsageError(
            f"--journal is for agentrt programs, and {target.name!r} is a LangGraph graph; use "
            "--checkpointer and --thread instead"
        )

    arguments = click.get_current_context().meta[ARGUMENTS]
    return GraphPlan(target, graph_terms(options, value), Invocation(arguments))


def _refuse_graph_options(program: Program, options: dict[str, Any]) -> None:
    """Raise `UsageError` for options that are for graphs only."""
    from agentrt.errors import UsageError

    for key, flag in _GRAPH_FLAGS.items():
        if options[key] is not None:
            raise UsageError(
                f"{flag} is for LangGraph graphs, and {program.name!r} is an agentrt program; "
                "leave it out"
            )


def accept_input(program: Program, value: Any) -> Any:
    """Return the input of a program, converted to the type that the program expects.

    Raises `UsageError` if the input is missing or has a wrong type, or if the program takes none.
    """
    from agentrt.errors import UsageError

    if program.needs_input and value is None:
        raise UsageError(f"program {program.name!r} needs an input; add --input TEXT")
    if value is not None and not program.takes_input:
        raise UsageError(f"program {program.name!r} takes no input; leave --input out")
    return program.accept_input(value)


def run_job(job: Job, fleet: Fleet, end: End) -> int:
    """Run the job on embedded engines, and report its outcome with ``end``. Return the exit
    code.
    """
    from signal import SIGTERM

    from agentrt.cli.engine_log import opened_output
    from agentrt.cli.engines import NOTES, make_executor
    from agentrt.cli.execute import execute
    from agentrt.cli.faults import StoppedError
    from agentrt.cli.report import tell_way_on
    from agentrt.cli.signals import Drain, Interrupts

    with opened_output(verbose=job.options.verbose) as (log, screen, last_words):
        executor, drain = make_executor(job.options, fleet, screen.progress), Drain(SIGTERM)
        if note := NOTES.get(fleet.kind):
            screen.announce(note)
        work = execute(job, executor, screen, log, drain)
        try:
            outcome = Interrupts(last_words, drain).run(work)
        except StoppedError:
            tell_way_on(job)
            raise
        return end(outcome, screen.console, log)
