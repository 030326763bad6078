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
        "The field that is the program's input.  [default: input, if it is there, else the whole "
        "record]",
    ),
    _batch.text(
        "--id-field",
        "NAME",
        "The field that is a record's id.  [default: id, if it is there, else its number]",
    ),
    _batch.several(
        "--where",
        "where",
        "FIELD=VALUE",
        "Only records of which this holds; also !=, <, <=, >, >=, and ~ with a regular expression. "
        "Repeat it for more conditions.",
    ),
    _batch.count("--limit", "Only the first N records."),
    _batch.count("--samples", "Run each input N times.  [default: 1]"),
    _batch.text(
        "--retry",
        "failed|scores|all",
        "Make those results again that failed, or all; scores: score those again of which a score "
        "raised or is new.",
        type=click.Choice(["failed", "scores", "all"]),
    ),
    _batch.several(
        "--score",
        "score_targets",
        "FILE.py[:NAME]|cmd:COMMAND",
        "Score results with the @score functions of this file, too, or with a command. Those of "
        "PROGRAM.py always count.",
    ),
    _batch.count("--max-tokens-total", "Stop an item whose calls have used N tokens."),
    _batch.count("--max-calls", "Stop an item that would make more than N calls."),
    _batch.text(
        "--stop-when", "SHARE", "Stop the rest once this share of all has ended, such as 99%."
    ),
    _batch.text(
        "--price",
        "IN,OUT",
        "The price of a million tokens, of prompts and of outputs: results have their cost.",
    ),
    _batch.file(
        "--tokens",
        "Write the token ids, log probabilities and a mask of what the model wrote: one line of "
        "JSON for each result, or at the end a .parquet or .arrow file.",
        dir_okay=True,
    ),
)


def refuse_without_inputs(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for options that only a batch has."""
    from agentrt.errors import UsageError

    for name, flag in _NAMES.items():
        if options[name]:
            raise UsageError(f"{flag} is for a batch: give its records with --inputs FILE")
