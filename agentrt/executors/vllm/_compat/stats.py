"""vLLM's own metrics (``vllm:…``) of one engine, in a registry of their own.

vLLM registers them for the whole process, where the metrics of a second engine replace those of the
first. Check at an upgrade: `vllm.v1.metrics.loggers.PrometheusStatLogger`, which registers in its
constructor and in `log_engine_initialized`, and
`vllm.v1.metrics.prometheus.unregister_vllm_metrics`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import Lock
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

_REGISTERING = Lock()
"""A lock that is held while metrics are registered, since several engines may start at once, each
in a thread.
"""
_PREFIX = "vllm:"


def stat_logger(registry: CollectorRegistry) -> type[Any]:
    """Return a stat-logger class for vLLM's ``AsyncLLM`` that registers metrics in ``registry``."""
    from vllm.config import VllmConfig
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class OwnStatLogger(PrometheusStatLogger):
        def __init__(
            self, vllm_config: VllmConfig, engine_indexes: list[int] | None = None
        ) -> None:
            with _moved_to(registry):
                super().__init__(vllm_config, engine_indexes)

        def log_engine_initialized(self) -> None:
            with _moved_to(registry):
                super().log_engine_initialized()

    return OwnStatLogger


@contextlib.contextmanager
def _moved_to(registry: CollectorRegistry) -> Iterator[None]:
    """Move the vLLM metrics that the ``with`` block registers from the process's registry to
    ``registry``.
    """
    with _REGISTERING:
        yield
        for collector in list(REGISTRY._collector_to_names):
            if getattr(collector, "_name", "").startswith(_PREFIX):
                REGISTRY.unregister(collector)
                registry.register(collector)
