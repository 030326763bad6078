"""The user's folders for agentrt's files: the cache folder and the data folder."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Literal

from agentrt.errors import ConfigError


def user_folder(kind: Literal["cache", "data"], variable: str) -> Path:
    """Return the user's folder for agentrt's cache or data files. It may not exist yet.

    It is the folder that the environment variable called ``variable`` names, or else the platform's
    folder. Raises `ConfigError` if the folder would be below the user's home folder, but the user
    has no home folder.
    """
    named = os.environ.get(variable)
    try:
        if named:
            return Path(named).expanduser().absolute()
        from platformdirs import user_cache_path, user_data_path

        folder = user_cache_path("agentrt") if kind == "cache" else user_data_path("agentrt")
    except RuntimeError as error:  # HOME is not set, and there is no entry for the user id
        folder = Path("~")
        if named:
            raise ConfigError(f"{variable}={named!r}: {_HOMELESS.format(variable)}") from error
    if not folder.is_absolute():
        raise ConfigError(_HOMELESS.format(variable))
    return folder


_NAME_CHARACTERS = 48


def readable_key(name: str, text: str, nameless: str) -> str:
    """Return the name of a file or a folder that stands for ``text``.

    The returned name consists of the beginning of ``name``, with "-" in place of characters that
    are not safe in file names, and of a digest of ``text``. If nothing of ``name`` is left,
    ``nameless`` is used instead.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or nameless
    return f"{readable[:_NAME_CHARACTERS]}-{digest}"


_HOMELESS = "this user has no home folder; set {} to a writable folder, or set HOME"
