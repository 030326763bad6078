"""vLLM's own OpenAI server in a process of its own, with the options of an embedded engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

from agentrt.errors import EngineStartError
from agentrt.executors.vllm.options import EngineOptions, engine_args

_HOST = "127.0.0.1"
_START_S, _STOP_S, _REQUEST_S = 300.0, 3.0, 10.0
_OURS = ("model", "scheduler_cls", "additional_config")
"""What an embedded engine is told and a stock one is not, or in another way."""


class StockServer:
    """An async context manager: outside it, the process has ended."""

    NAME = "stock"
    """What it calls its model."""

    def __init__(self, options: EngineOptions, model: str) -> None:
        self._flags = stock_flags(options, model)
        self._model = model
        self._process: asyncio.subprocess.Process | None = None
        self._port = _free_port()

    @property
    def base_url(self) -> str:
        """Where an OpenAI client finds it."""
        return f"http://{_HOST}:{self._port}/v1"

    async def start(self, quiet: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        """Start the process inside ``quiet()``, which keeps what it says, and wait for it.

        Raises `EngineStartError` if it ends, or is not up in time.
        """
        command = (
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", self._model, "--served-model-name", self.NAME),
            *("--host", _HOST, "--port", str(self._port), "--disable-uvicorn-access-log"),
            *self._flags,
        )
        # The prefix cache can be emptied only in vLLM's development mode.
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
        with quiet():
            self._process = await asyncio.create_subprocess_exec(*command, env=environment)
        async with asyncio.timeout(_START_S):
            while not await self._answers("GET", "/health"):
                if self._process.returncode is not None:
                    raise EngineStartError(
                        f"stock vLLM's server ended with exit code {self._process.returncode}"
                    )
                await asyncio.sleep(0.25)

    async def forget_prefixes(self) -> None:
        """Empty its prefix cache."""
        if not await self._answers("POST", "/reset_prefix_cache"):
            raise EngineStartError("stock vLLM's server did not empty its prefix cache")

    async def stop(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _answers(self, method: str, path: str) -> bool:
        url = f"http://{_HOST}:{self._port}{path}"
        return await asyncio.to_thread(_succeeds, urllib.request.Request(url, method=method))


def stock_flags(options: EngineOptions, model: str) -> list[str]:
    """vLLM's flags for the options that an embedded engine with ``options`` sets."""
    import torch

    args = engine_args(options, model, on_gpu=torch.cuda.is_available())
    default = type(args)(model=model)
    flags: list[str] = []
    for name in (field.name for field in fields(args)):
        value = getattr(args, name)
        if name not in _OURS and value != getattr(default, name):
            flags += _flag(name, value)
    return flags


def _flag(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", str(value)]


def _succeeds(request: urllib.request.Request) -> bool:
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
