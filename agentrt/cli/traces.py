"""``--otlp-traces-endpoint``: where the traces of a command's programs go."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from agentrt.errors import ConfigError
from agentrt.executors.base import Executor
from agentrt.runtime import Runtime

FLAG = "--otlp-traces-endpoint"


def read_traces(given: str | None, flags: Sequence[str]) -> str | None:
    """Where traces go, as the command's option or the engine's ``flags`` say; None for nowhere.

    Raises `ConfigError` for what is no URL, and where OpenTelemetry is not installed.
    """
    words = [word for flag in flags for word in flag.split("=", 1)]
    if given is None and FLAG in words[:-1]:
        given = words[words.index(FLAG) + 1]
    if given is None:
        return None
    parts = urlsplit(given)
    if not (parts.scheme and parts.netloc):
        raise ConfigError(f"{FLAG} {given!r}: give a URL, such as http://127.0.0.1:4317")
    if importlib.util.find_spec("opentelemetry.exporter") is None:
        raise ConfigError(f"{FLAG} needs OpenTelemetry; install agentrt[otel]")
    return given


@contextmanager
def opened_runtime(executor: Executor, traces: str | None, **options: Any) -> Iterator[Runtime]:
    """A runtime with these ``options``, which traces its programs if ``traces`` is an endpoint."""
    if traces is None:
        yield Runtime(executor, **options)
        return
    from agentrt.integrations.opentelemetry import traced_runtime

    with traced_runtime(executor, traces, **options) as runtime:
        yield runtime
