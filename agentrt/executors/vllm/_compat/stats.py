"""vLLM's own metrics (``vllm:…``) of one engine, in a registry of their own.

vLLM keeps them in the registry of the process, where an engine's take the place of an earlier
one's. Read at an upgrade: `vllm.v1.metrics.loggers.PrometheusStatLogger`, which registers as it is
made and in `log_engine_initialized`, and `vllm.v1.metrics.prometheus.unregister_vllm_metrics`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import Lock
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

_REGISTERING = Lock()
"""Several engines may start at once, each in a thread."""
_PREFIX = "vllm:"


def stat_logger(registry: CollectorRegistry) -> type[Any]:
    """A stat logger for vLLM's ``AsyncLLM``, whose metrics are in ``registry``."""
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
    """What of vLLM's the body registers for the process goes to ``registry``."""
    with _REGISTERING:
        yield
        for collector in list(REGISTRY._collector_to_names):
            if getattr(collector, "_name", "").startswith(_PREFIX):
                REGISTRY.unregister(collector)
                registry.register(collector)
