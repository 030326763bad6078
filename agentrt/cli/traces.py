"""``--otlp-traces-endpoint``: the address to which a command sends its programs' traces."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from agentrt.errors import ConfigError, shown_url, url_fault
from agentrt.executors.base import Executor
from agentrt.extras import install_command
from agentrt.runtime import Runtime

FLAG = "--otlp-traces-endpoint"


def read_traces(endpoint: str | None, flags: Sequence[str]) -> str | None:
    """Return the endpoint of the command's option, by default the endpoint in the engine's
    ``flags``; None if there is neither.

    Raises `ConfigError` if the endpoint is not a URL, or if OpenTelemetry is not installed.
    """
    words = [word for flag in flags for word in flag.split("=", 1)]
    if endpoint is None and FLAG in words[:-1]:
        endpoint = words[words.index(FLAG) + 1]
    if endpoint is None:
        return None
    fault = url_fault(endpoint)
    if fault is not None or not all(urlsplit(endpoint)[:2]):
        reason = "" if fault is None else f": {fault}"
        raise ConfigError(
            f"{FLAG} {shown_url(endpoint)!r} is not a URL{reason}; write one such as "
            "http://127.0.0.1:4317"
        )
    if importlib.util.find_spec("opentelemetry.exporter") is None:
        raise ConfigError(f"{FLAG} needs OpenTelemetry; run: {install_command('otel')}")
    return endpoint


@contextmanager
def opened_runtime(executor: Executor, traces: str | None, **options: Any) -> Iterator[Runtime]:
    """Yield a new runtime with these ``options``, which the caller must open. The runtime sends
    traces to the address ``traces``, unless it is None.
    """
    if traces is None:
        yield Runtime(executor, **options)
        return
    from agentrt.integrations.opentelemetry import traced_runtime

    with traced_runtime(executor, traces, **options) as runtime:
        yield runtime
