"""Results that go into a file."""

from __future__ import annotations

from pathlib import Path

from agentrt.errors import ConfigError


def write(path: Path | None, text: str) -> None:
    """Write a file, if one was asked for. Raises `ConfigError` where that cannot be."""
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{str(path)!r}: {(error.strerror or str(error)).lower()}") from error
