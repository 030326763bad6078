"""The options of ``agentrt run --inputs``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from agentrt.cli.options import FileText, Options, together

_batch = Options("Batch")
_NAMES = {
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


def refuse_without_inputs(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` if an option is set that is only for batches."""
    from agentrt.errors import UsageError

    for name, flag in _NAMES.items():
        if options[name]:
            raise UsageError(f"{flag} is for a batch: give its records with --inputs FILE")
