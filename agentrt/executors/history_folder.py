"""The folder for the history files of the user's engines, with a file for each kind of engine.

A file's name is made from the engine's model and size, so that all durations in a file are
comparable. All policies use the same file. `agentrt.executors.history` reads and writes the files.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from agentrt.errors import ConfigError
from agentrt.executors.folders import readable_key, user_folder
from agentrt.executors.history import NONE, VERSION, read
from agentrt.executors.info import display_name
from agentrt.files import expanded
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import policy_class

VARIABLE = "AGENTRT_HISTORY"
"""The environment variable with the path of the history file, or "none" for no file. It is used if
no setting names a file.
"""
FOLDER_VARIABLE = "AGENTRT_DATA"
"""The environment variable with the folder for agentrt's data; by default, the platform's
folder.
"""
MOST_FILES = 64
"""Number of files that are kept when an engine chooses its file. The files that were not used for
the longest time are deleted.
"""
_FOLDER = "history"
_DRAFT_S = 3600.0
"""Age in seconds from which an unfinished file must be from a process that died."""
_LOG = logging.getLogger(__name__)
_OURS = re.compile(r"\.?[A-Za-z0-9._-]+\.v\d+\.(json(\.\d+-\d+)?|broken)")
Warn = Callable[[str], None]


def data_folder() -> Path:
    """Return the folder for agentrt's data, which may not exist yet.

    Raises `ConfigError` if the folder would be below the user's home folder, but the user has no
    home folder.
    """
    return user_folder("data", FOLDER_VARIABLE)


def engine_key(model: str, **size: object) -> str:
    """Return the key of an engine's history file: a part of the file's name.

    Engines have the same key if their model and all values of ``size`` are equal.
    """
    named = model if not model.startswith(("/", ".", "~")) else str(expanded(model).resolve())
    text = json.dumps({"model": named, **size}, sort_keys=True, default=str)
    return readable_key(display_name(named), text, "model")


def common_key(keys: Iterable[str]) -> str:
    """Return one key for several engines together; "" if none of them has a key."""
    known = sorted(set(keys) - {""})
    if len(known) <= 1:
        return "".join(known)
    return engine_key(f"{len(known)}-engines", engines=known)


def learns(config: SchedulerConfig) -> bool:
    """Return whether a scheduler with these settings learns anything that a file can keep."""
    by_policy = policy_class(config.policy).learns
    return by_policy or config.retention == "cost" or config.admission == "memory"


def history_file(named: str | None, key: str, warn: Warn = _LOG.warning) -> Path | None:
    """Return the path of the history file of an engine with this ``key``.

    It is the file that a setting has ``named``, or else the file that the variable `VARIABLE`
    names, or else a file in the folder. The result is None if histories are turned off. If no file
    is named, the result is also None if ``key`` is empty or the folder cannot be used. Raises
    `ConfigError` for a named file that is not a history file. A broken file in the folder is
    renamed. If a file is broken or the folder cannot be used, ``warn`` is called with a line of
    text.
    """
    named = named if named is not None else os.environ.get(VARIABLE) or None
    if named == NONE:
        return None
    if named is not None:
        path = expanded(named).absolute()
        read(path)
        return path
    if not key:
        return None
    try:
        return _in_folder(key, warn)
    except ConfigError as error:
        warn(
            f"the learned statistics of programs are not kept: {error}; to turn this warning off, "
            f"set {VARIABLE}={NONE}"
        )
        return None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        warn(
            "the learned statistics of programs are not kept: "
            f"{data_folder() / _FOLDER}: {reason}; "
            f"set {FOLDER_VARIABLE} to a writable folder, or {VARIABLE}={NONE} to turn this off"
        )
        return None


def _in_folder(key: str, warn: Warn) -> Path:
    folder = data_folder() / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError("the folder cannot be written")
    path = folder / f"{key}.v{VERSION}.json"
    if path.exists():
        _check(path, warn)
    _delete_old(folder, MOST_FILES)
    return path


def _check(path: Path, warn: Warn) -> None:
    """Mark a file as used now, or rename it if it is broken."""
    try:
        read(path)
        path.touch()
    except ConfigError as error:
        aside = path.with_suffix(".broken")
        path.replace(aside)
        reason = str(error).partition("; name a file")[0]
        warn(
            f"the statistics of earlier runs cannot be read: {reason}; the file is now {aside.name}"
        )


def _delete_old(folder: Path, most: int) -> None:
    """Delete the unfinished files of dead processes, and all history files except the ``most``
    that were used last.
    """
    ours: list[tuple[float, Path]] = []
    for path in folder.iterdir():
        if not _OURS.fullmatch(path.name):
            continue
        try:
            written = path.stat().st_mtime
        except FileNotFoundError:  # another process has deleted it
            continue
        if not path.name.startswith("."):
            ours.append((written, path))
        elif time.time() - written > _DRAFT_S:
            path.unlink(missing_ok=True)
    for _, path in sorted(ours, reverse=True)[most:]:
        path.unlink(missing_ok=True)
