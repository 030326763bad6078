"""The options of ``agentrt run --inputs``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from agentrt.cli.options import Options, together

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
        once=True,
    ),
    _batch.file(
        "--out",
        "Write one line of JSON for each result as it ends. After a kill at any moment, the same "
        "command resumes the batch.",
        dir_okay=True,
    ),
    _batch.text(
        "--input-field",
        "NAME",
        "Field of a record that holds the program's input.  [default: input, if the record has it, "
        "else the whole record]",
    ),
    _batch.text(
        "--id-field",
        "NAME",
        "Field that holds a record's id.  [default: id, if the record has it, else its number]",
    ),
    _batch.several(
        "--where",
        "where",
        "FIELD=VALUE",
        "Use only records that fulfil this condition. Other operators: !=, <, <=, >, >=, and ~ for "
        "a regular expression. Repeat the option for further conditions.",
    ),
    _batch.count("--limit", "Use only the first N records."),
    _batch.count("--samples", "Run each input N times.  [default: 1]"),
    _batch.text(
        "--retry",
        "failed|scores|all",
        "Make results again: failed: those that failed; all: every result; scores: keep the "
        "results, and compute the scores again where a score is missing or raised an error.",
        type=click.Choice(["failed", "scores", "all"]),
    ),
    _batch.several(
        "--score",
        "score_targets",
        "FILE.py[:NAME]|cmd:COMMAND",
        "Also score results with the @score functions of this file, or with a command. The @score "
        "functions of PROGRAM.py are always used.",
    ),
    _batch.count("--max-tokens-total", "Stop an item whose calls have used N tokens."),
    _batch.count("--max-calls", "Stop an item that would make more than N calls."),
    _batch.text(
        "--stop-when", "SHARE", "Stop the batch once this share of it has ended, such as 99%."
    ),
    _batch.text(
        "--price",
        "IN,OUT",
        "Prices of a million prompt tokens and of a million output tokens. With them, results have "
        "a cost.",
    ),
    _batch.file(
        "--tokens",
        "Write each result's token ids, with log probabilities and a mask of the tokens that the "
        "model wrote: one line of JSON for each result, or at the end a .parquet or .arrow file.",
        dir_okay=True,
    ),
)


def refuse_without_inputs(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` if an option is set that only a batch has."""
    from agentrt.errors import UsageError

    for name, flag in _NAMES.items():
        if options[name]:
            raise UsageError(f"{flag} is for a batch: give its records with --inputs FILE")
