"""Engine cores of tests: forks of one process that has imported vLLM, which takes nine seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess

from agentrt.executors.vllm.early import EarlyCore


class ForkedCore(EarlyCore):
    """An `EarlyCore` that finds its modules imported. Python's own fork server is its parent."""

    _server_has: Mapping[str, str] = {}
    """The variables with which the fork server was started."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        if not ForkedCore._server_has:
            forkserver.set_forkserver_preload(list(modules))
            ForkedCore._server_has = {**os.environ, **environment}
        super().__init__(modules, environment)
        self._environment = dict(ForkedCore._server_has)

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:  # type: ignore[override]  # noqa: N802
        return Popen(process_obj)
