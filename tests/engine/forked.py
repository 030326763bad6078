"""Engine cores of tests: forks of one process that has imported vLLM, which takes nine seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.process import BaseProcess

import pytest

from agentrt.executors.vllm.early import EarlyCore

_SERVER = forkserver.ForkServer()
"""Not Python's own, which tests of other folders let import what they need."""


class _Popen(popen_forkserver.Popen):
    def _launch(self, process_obj: BaseProcess) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forkserver, "connect_to_new_process", _SERVER.connect_to_new_process)
            super()._launch(process_obj)  # type: ignore[misc]  # typeshed lacks it


class ForkedCore(EarlyCore):
    """An `EarlyCore` that finds its modules imported."""

    _server_has: Mapping[str, str] = {}
    """The variables with which the process was started that is forked."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        if not ForkedCore._server_has:
            _SERVER.set_forkserver_preload(list(modules))
            ForkedCore._server_has = {**os.environ, **environment}
        super().__init__(modules, environment)
        self._environment = dict(ForkedCore._server_has)

    # What Python calls to start a process; that of its spawn context has another type.
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> _Popen:  # type: ignore[override]  # noqa: N802
        return _Popen(process_obj)
