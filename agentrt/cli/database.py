"""Where `agentrt serve` stores threads, runs and answers if ``--database`` is not given."""

from __future__ import annotations

from pathlib import Path

from agentrt.errors import ConfigError
from agentrt.executors.folders import readable_key
from agentrt.executors.history_folder import data_folder

FILE = "agentrt.db"
_FOLDER = "serve"


def default_database(working_folder: Path | None = None) -> str:
    """Return the address of the database of servers that are started in the working folder.

    It is a file in the folder for data, in a folder of its own for each working folder, so that
    servers of different projects do not share threads. Two cases keep the file in the working
    folder: a server of an earlier version has left its database there, or the folder for data
    cannot be made.
    """
    here = (working_folder or Path.cwd()).resolve()
    if not (here / FILE).exists():
        try:
            folder = data_folder() / _FOLDER / readable_key(here.name, str(here), "root")
            folder.mkdir(parents=True, exist_ok=True)
        except (ConfigError, OSError):
            pass
        else:
            return f"sqlite:{folder / FILE}"
    return f"sqlite:{here / FILE}"
