"""``agentrt doctor``: tries one check after the other, and says what each found and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from threading import Thread

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrt.cli.checks import CHECKS, MISSING, OK, WARNING, Asked, Check, Finding
from agentrt.cli.faults import FAILED, summary
from agentrt.cli.streams import printable
from agentrt.errors import AgentrtError, ConfigError

LIMIT_S = 20.0
"""How long a check may take."""
_EXTRAS = {"aiomqtt": "mqtt", "psycopg": "postgres"}
_COLOURS = {OK: "green", WARNING: "yellow", MISSING: "red"}


@click.command()
@click.option("--model", metavar="MODEL", help="A folder or a Hugging Face name: is it here?")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Is it free to serve at?")
@click.option("--broker", metavar="URL", help="An MQTT broker to connect to, as 'run' takes it.")
@click.option("--database", metavar="URL", help="A database to open, as 'serve' takes it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool, **asked: str | None) -> int:
    """Say what of this machine and its packages agentrt can use, and what is
    missing, with what to do. Nothing is changed, and no engine starts.

    'missing' is what 'agentrt run' needs and does not find, or what an option
    here names and cannot be used. A warning stops no run.

    Exit codes: 0 nothing is missing; 1 something is; 2 an address that cannot be.
    """
    findings = dict(examine(asked))
    healthy = all(found.state != MISSING for found in findings.values())
    if as_json:
        checks = [{"check": name, **found._asdict()} for name, found in findings.items()]
        click.echo(json.dumps({"ok": healthy, "checks": checks}))
    else:
        _show(findings)
    return 0 if healthy else FAILED


def examine(
    asked: Asked, checks: Mapping[str, Check] = CHECKS, limit_s: float = LIMIT_S
) -> Iterator[tuple[str, Finding]]:
    """What each check found. One that fails, or takes longer than ``limit_s``, is missing.

    Raises `ConfigError` for an address that cannot be.
    """
    for name, check in checks.items():
        if (found := _within(limit_s, check, asked)) is not None:
            yield name, found


def _within(limit_s: float, check: Check, asked: Asked) -> Finding | None:
    answers: list[Finding | ConfigError | None] = []
    # Nobody waits for the thread at the end: what hangs here may hang for ever.
    thread = Thread(target=lambda: answers.append(_tried(check, asked)), daemon=True)
    thread.start()
    thread.join(limit_s)
    late = Finding(MISSING, f"no answer within {limit_s:g} s", "see what holds it up")
    found = answers[0] if answers else late
    if isinstance(found, ConfigError):
        raise found
    return found


def _tried(check: Check, asked: Asked) -> Finding | ConfigError | None:
    try:
        return check(asked)
    except ConfigError as error:
        return error
    except AgentrtError as error:
        return Finding(MISSING, str(error))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(str(error.name), "engine")
        return Finding(MISSING, f"{error.name} is not installed", f"pip install 'agentrt[{extra}]'")
    except Exception as error:
        return Finding(MISSING, summary(error), "correct, install or repair what this names")


def _show(findings: Mapping[str, Finding]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 10_000  # a line for each check, for grep
    table = Table("check", "state", box=None, pad_edge=False)
    table.add_column("found → what to do", overflow="fold")
    for name, found in findings.items():
        text = Text(printable(found.found))
        if found.advice:
            text.append(f" → {printable(found.advice)}", "bold")
        table.add_row(name, Text(found.state, _COLOURS[found.state]), text)
    console.print(table)
