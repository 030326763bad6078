"""The place where `agentrt serve` stores threads, runs and answers by default."""

from __future__ import annotations

from pathlib import Path

from agentrt.errors import ConfigError
from agentrt.executors.folders import readable_key
from agentrt.executors.history_folder import data_folder

FILE = "agentrt.db"
_FOLDER = "serve"


def default_database(working_folder: Path | None = None) -> str:
    """Return the address of the database for servers that are started in ``working_folder``, by
    default the current folder.

    The database is a file below the user's folder for data. There each working folder has a folder
    of its own, so that servers of different projects do not share threads. The database is in the
    working folder itself if a server of an earlier version has left a database there, or if the
    folder for data cannot be made.
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
