"""This user's folders for what agentrt keeps: caches, and what was learned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from agentrt.errors import ConfigError


def user_folder(kind: Literal["cache", "data"], variable: str) -> Path:
    """Return this user's folder for agentrt's ``kind`` of files, which may not be there yet: the
    one that the environment's ``variable`` names, else the platform's.

    Raises `ConfigError` where the user has no home folder.
    """
    named = os.environ.get(variable)
    try:
        if named:
            return Path(named).expanduser().absolute()
        from platformdirs import user_cache_path, user_data_path

        folder = user_cache_path("agentrt") if kind == "cache" else user_data_path("agentrt")
    except RuntimeError as error:  # HOME is not set, and no user has this process' number
        folder = Path("~")
        if named:
            raise ConfigError(f"{variable}={named!r}: {_HOMELESS.format(variable)}") from error
    if not folder.is_absolute():
        raise ConfigError(_HOMELESS.format(variable))
    return folder


_HOMELESS = "this user has no home folder; set {} to a folder that can be written, or set HOME"
