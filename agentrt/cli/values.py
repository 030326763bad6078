"""Reading and checking the values of options."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt import files
from agentrt.cli.streams import typed
from agentrt.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from agentrt.graph import ExecutionDAG


def read_input(text: str | None) -> Any:
    """Read the value of ``--input``. Return None if the option is not set."""
    return None if text is None else read_value(text, "--input")


def read_value(text: str, flag: str) -> Any:
    """Read the value of the option ``flag``.

    ``@FILE`` stands for the file's content: JSON if its name ends in .json, else text. A value
    that begins with ``{`` or ``[`` is JSON, every other value is text. ``@@`` stands for an ``@``
    at the beginning of text. Raises `UsageError` for an unreadable file and for bad JSON.
    """
    if text.startswith("@") and not text.startswith("@@"):
        return _read_file(Path(text[1:]), flag)
    text = typed(text)
    if text.startswith("@@"):
        return text[1:]
    if text.lstrip().startswith(("{", "[")):
        return _read_json(text, flag)
    return text


def read_quanta(text: str) -> tuple[float, ...]:
    """Read the value of ``--quanta``: seconds, separated by commas. Raises `ConfigError` for
    text that is not a list of positive, finite numbers.
    """
    try:
        quanta = tuple(float(part) for part in text.split(","))
    except ValueError:
        quanta = ()
    if not quanta or not all(math.isfinite(q) and q > 0 for q in quanta):
        raise ConfigError(
            f"--quanta {text!r}: write positive seconds separated by commas, such as 0.5,1,2"
        )
    return quanta


def check_output(option: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Raise `ConfigError` for a file that cannot be written, that has none of the ``suffixes``, or
    that is a database. Call this function before anything runs.
    """
    if path is None:
        return
    where = f"{option} {str(path)!r}"
    folder = path.absolute().parent
    if suffixes and path.suffix not in suffixes:
        raise ConfigError(f"{where}: the name must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{where} is a folder; name a file")
    if not folder.is_dir():
        raise ConfigError(
            f"{where}: the folder {str(path.parent)!r} does not exist; create it first"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{where}: no permission to write there; name another file")
    if files.is_database(path):
        raise ConfigError(
            f"{where} is a database, such as a journal, and would be lost; name another file"
        )


def write_dags(dags: ExecutionDAG | Sequence[ExecutionDAG], path: Path) -> None:
    """Write execution graphs to the file of ``--dag``. Raises `ConfigError` if the file cannot be
    written or has an unknown suffix.
    """
    from agentrt.graph import write

    try:
        write(dags, path)
    except OSError as error:
        raise ConfigError(f"--dag {str(path)!r}: {error.strerror or error}") from error


def _read_file(path: Path, flag: str) -> Any:
    if not path.name:
        raise UsageError(
            f"{flag} @: name a file after the @, or write @@ for text that begins with @"
        )
    try:
        text = files.read_text(path)
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "name a file that this user can read"
        if isinstance(error, FileNotFoundError):
            advice = "to write text that begins with @, write @@"
        raise UsageError(f"{flag} @{path}: {reason.lower()}; {advice}") from error
    except ValueError as error:
        raise UsageError(f"{flag} @{path}: {error}") from error
    return _read_json(text, f"{flag} @{path}") if path.suffix == ".json" else text


def _read_json(text: str, source: str) -> Any:
    try:
        return files.parse_json(text)
    except ValueError as error:
        hint = (
            ""
            if "@" in source
            else "; if the value is text, put it into a file and write @FILE.txt"
        )
        raise UsageError(f"{source}: bad JSON: {error}{hint}") from error
