"""Where `agentrt serve` stores threads, runs and answers if ``--database`` is not given."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from agentrt.errors import ConfigError
from agentrt.executors.history_folder import data_folder

FILE = "agentrt.db"
_FOLDER = "serve"
_NAME_CHARACTERS = 48


def default_database(working_folder: Path | None = None) -> str:
    """Return the address of the database of servers that are started in the working folder.

    It is a file in the folder for data, in a folder of its own for each working folder, so that
    servers of different projects do not share threads. Two cases keep the file in the working
    folder: a server of an earlier version has left its database there, or the folder for data
    cannot be made.
    """
    here = (working_folder or Path.cwd()).resolve()
    if not (here / FILE).exists():
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", here.name).strip(".-") or "root"
        digest = hashlib.sha256(str(here).encode()).hexdigest()[:12]
        try:
            folder = data_folder() / _FOLDER / f"{readable[:_NAME_CHARACTERS]}-{digest}"
            folder.mkdir(parents=True, exist_ok=True)
        except (ConfigError, OSError):
            pass
        else:
            return f"sqlite:{folder / FILE}"
    return f"sqlite:{here / FILE}"
