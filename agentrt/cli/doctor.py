"""``agentrt doctor``: run each check, and print its result and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Thread

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrt.cli.checks import CHECKS, MISSING, OK, WARNING, Check, CheckResult, DoctorOptions
from agentrt.cli.faults import FAILED, summary
from agentrt.cli.streams import printable, show_json
from agentrt.errors import AgentrtError, ConfigError
from agentrt.extras import install_command

LIMIT_S = 20.0
"""Time limit of a check, in seconds."""
_EXTRAS = {"aiomqtt": "mqtt", "psycopg": "postgres"}
_COLOURS = {OK: "green", WARNING: "yellow", MISSING: "red"}


@click.command()
@click.option(
    "--model",
    metavar="MODEL",
    help="Check whether this model, a folder or a Hugging Face name, is on this machine.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="Check whether this port is free."
)
@click.option(
    "--broker",
    metavar="URL",
    help="Check the connection to this MQTT broker; written as for 'run --broker'.",
)
@click.option(
    "--database",
    metavar="URL",
    help="Check whether this database can be used; written as for 'serve --database'.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool, **options: str | None) -> int:
    """Check whether this machine has what agentrt needs, and say what to do about
    anything that is missing. Changes nothing and starts no engine.

    The state 'missing' means that 'agentrt run' needs something that is not there, or
    that something named by an option cannot be used. After a warning, programs still
    run.

    Exit codes: 0 nothing is missing; 1 something is missing; 2 a usage error, such as an
    invalid address.
    """
    results = dict(examine(options))
    healthy = all(result.state != MISSING for result in results.values())
    if as_json:
        checks = [{"check": name, **result.to_dict()} for name, result in results.items()]
        show_json({"ok": healthy, "checks": checks})
    else:
        _show(results)
    return 0 if healthy else FAILED


def examine(
    options: DoctorOptions, checks: Mapping[str, Check] = CHECKS, limit_s: float = LIMIT_S
) -> Iterator[tuple[str, CheckResult]]:
    """Run each check, and yield its name and result.

    A check that raises an error, or takes longer than ``limit_s`` seconds, gets the state
    `MISSING`. Raises `ConfigError` for an invalid address. A check that the options do not request
    is left out.
    """
    for name, check in checks.items():
        if (result := _within(limit_s, check, options)) is not None:
            yield name, result


def _within(limit_s: float, check: Check, options: DoctorOptions) -> CheckResult | None:
    answers: list[CheckResult | ConfigError | None] = []
    # A daemon thread, because a check may hang for ever.
    thread = Thread(target=lambda: answers.append(_attempt(check, options)), daemon=True)
    thread.start()
    thread.join(limit_s)
    late = CheckResult(
        MISSING,
        f"no answer within {limit_s:g} s",
        "find out why this part of the machine does not respond",
    )
    result = answers[0] if answers else late
    if isinstance(result, ConfigError):
        raise result
    return result


def _attempt(check: Check, options: DoctorOptions) -> CheckResult | ConfigError | None:
    try:
        return check(options)
    except ConfigError as error:
        return error
    except AgentrtError as error:
        return CheckResult(MISSING, str(error))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(str(error.name), "engine")
        return CheckResult(MISSING, f"{error.name} is not installed", install_command(extra))
    except Exception as error:
        return CheckResult(
            MISSING, summary(error), "correct, install or repair what the message names"
        )


def _show(results: Mapping[str, CheckResult]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 10_000  # keeps each check on one line, for grep
    table = Table("check", "state", box=None, pad_edge=False)
    table.add_column("result → what to do", overflow="fold")
    for name, result in results.items():
        text = Text(printable(result.observation))
        if result.advice:
            text.append(f" → {printable(result.advice)}", "bold")
        table.add_row(name, Text(result.state, _COLOURS[result.state]), text)
    console.print(table)
