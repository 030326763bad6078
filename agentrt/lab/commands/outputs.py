"""Where a command's results go: checks before anything runs, and files written at the end."""

from __future__ import annotations

import os
from pathlib import Path

from agentrt.cli.values import check_output
from agentrt.errors import ConfigError
from agentrt.lab.reports.plots import SUFFIXES, check_matplotlib


def check_plot(path: Path | None) -> None:
    """Raise `ConfigError` for a drawing that could not be made, before anything runs."""
    if path is not None:
        check_output("--plot", path, SUFFIXES)
        check_matplotlib()


def write(path: Path | None, text: str) -> None:
    """Write a file, if one was asked for. Raises `ConfigError`."""
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{str(path)!r}: {(error.strerror or str(error)).lower()}") from error


def silence_vllm() -> None:
    """VLLM would log to stdout, which is the results'. The processes of a sweep inherit it.

    On a CPU torch would warn each of them that Triton is not there.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("TORCH_LOGS", "-torch._library.triton")
