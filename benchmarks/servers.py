"""OpenAI servers in processes of their own, to compare with: vLLM's, and `agentrt serve`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

import benchmarks.rivals  # noqa: F401  # makes their names known
from agentrt.cli.engine_log import EngineLog
from agentrt.errors import ConfigError, EngineStartError
from agentrt.executors.vllm.options import EngineOptions, engine_args
from agentrt.lab.commands.options import note
from agentrt.lab.runs.contenders import contender
from agentrt.scheduler.config import SchedulerConfig
from tests.doubles.ports import reserved_port

_HOST = "127.0.0.1"
_START_S, _REQUEST_S = 300.0, 10.0
_OURS = ("model", "served_model_name", "scheduler_cls", "additional_config")
"""What an embedded engine gets and a stock one does not, or in another way."""
_SAYS = " (OpenAI API: "
PARSER = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
"""Flags of both: agentrt would pick a tool parser by itself, and vLLM have none."""


class Server:
    """A server's process. An async context manager: outside it, the process has ended."""

    NAME = "stock"
    """What it calls its model. ``base_url`` is where an OpenAI client finds it."""
    stop_s = 3.0

    def __init__(self) -> None:
        self.process: Process | None = None
        self.base_url = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def cpu_s(self) -> float:
        """Processor time of the process so far (seconds), without that of its engine's process."""
        assert self.process is not None
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    async def stop(self) -> None:
        """End the process. Idempotent."""
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self.stop_s)
        except TimeoutError:
            process.kill()
            await process.wait()


class StockServer(Server):
    """vLLM's own OpenAI server, with the options of an embedded engine, and its ``flags``."""

    def __init__(self, options: EngineOptions, model: str, flags: Sequence[str] = ()) -> None:
        super().__init__()
        port = reserved_port(_HOST)
        self._root = f"http://{_HOST}:{port}"
        self.base_url = f"{self._root}/v1"
        self._command = (
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", model, "--served-model-name", self.NAME),
            *("--host", _HOST, "--port", str(port), "--disable-uvicorn-access-log"),
            *(*stock_flags(options, model), *flags),
        )

    async def start(
        self, collecting: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        """Start the process inside ``collecting()``, which collects its log, and wait for it.

        Raises `EngineStartError` if it ends, or is not up in time.
        """
        # As in `agentrt serve`, which bounds what it stores.
        environment = {**os.environ, "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
        with collecting():
            self.process = await asyncio.create_subprocess_exec(*self._command, env=environment)
        async with asyncio.timeout(_START_S):
            while not await self._is_up():
                if self.process.returncode is not None:
                    raise EngineStartError(
                        f"stock vLLM's server ended with exit code {self.process.returncode}"
                    )
                await asyncio.sleep(0.25)

    async def _is_up(self) -> bool:
        async with httpx.AsyncClient(verify=False, timeout=_REQUEST_S) as client:
            try:
                answer = await client.get(f"{self._root}/health")
            except httpx.TransportError:
                return False
        return answer.status_code == httpx.codes.OK


class AgentrtServer(Server):
    """`agentrt serve` on a port and a database of its own, with ``more`` of its own options;
    ``flags`` are vLLM's.
    """

    stop_s = 40.0

    def __init__(
        self,
        options: EngineOptions,
        model: str,
        flags: Sequence[str] = (),
        more: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="agentrt-bench-")
        self._command = (
            *(sys.executable, "-m", "agentrt.cli", "serve"),
            *("--model", model, "--served-model-name", self.NAME, "--max-calls", "4096"),
            *("--port", "0", "--database", f"sqlite:{self._folder.name}/bench.db"),
            *("--policy", options.scheduler.policy, *more),
            *("--", *stock_flags(options, model), *flags),
        )
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and wait until it serves. Raises `EngineStartError` if it ends."""
        self.process = await asyncio.create_subprocess_exec(*self._command, stderr=PIPE)
        said = self.process.stderr
        assert said is not None
        async with asyncio.timeout(_START_S):
            while _SAYS not in (line := (await said.readline()).decode()):
                if not line:
                    raise EngineStartError("agentrt serve ended before it served")
        self.base_url = re.split("[;)]", line.split(_SAYS)[1])[0]
        self._reader = asyncio.create_task(_drop(said))

    async def stop(self) -> None:
        await super().stop()
        if self._reader is not None:
            self._reader.cancel()
        self._folder.cleanup()

    def footprint(self) -> dict[str, float]:
        """Its own process's memory (MiB), open files and threads now."""
        assert self.process is not None
        folder = Path(f"/proc/{self.process.pid}")
        lines = (folder / "status").read_text("utf-8").splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return {
            "memory_mib": int(status["VmRSS"].split()[0]) / 1024,
            "files": len(list((folder / "fd").iterdir())),
            "threads": int(status["Threads"]),
        }


async def _drop(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass


@contextlib.asynccontextmanager
async def both_servers(
    options: EngineOptions, model: str
) -> AsyncIterator[tuple[StockServer, AgentrtServer]]:
    """vLLM's own server and agentrt's with the same engine options, started."""
    with EngineLog(verbose=False) as log:
        async with (
            AgentrtServer(options, model, PARSER) as ours,
            StockServer(options, model, PARSER) as stock,
        ):
            note("starting agentrt serve")
            await ours.start()
            note("starting vLLM's own server")
            await stock.start(log.collect)
            yield stock, ours


@contextlib.asynccontextmanager
async def stock_and_ours(
    options: EngineOptions, model: str, names: Sequence[str]
) -> AsyncIterator[tuple[StockServer, dict[str, AgentrtServer]]]:
    """vLLM's own server, and agentrt's under each of these schedulers (`contender`), started.

    Raises `ConfigError` for a name that is no scheduler of ours.
    """
    configs = {name: scheduling(name) for name in names}
    with EngineLog(verbose=False) as log:
        async with contextlib.AsyncExitStack() as stack:
            ours = {}
            for name, config in configs.items():
                note(f"starting agentrt serve: {name}")
                made = our_server(replace(options, scheduler=config), model, PARSER)
                ours[name] = await stack.enter_async_context(made)
                await made.start()
            note("starting vLLM's own server")
            stock = await stack.enter_async_context(StockServer(options, model, PARSER))
            await stock.start(log.collect)
            yield stock, ours


def our_server(options: EngineOptions, model: str, flags: Sequence[str] = ()) -> AgentrtServer:
    """`agentrt serve` with the policy, retention and admission of ``options``; not started."""
    scheduler = options.scheduler
    more = ("--retention", scheduler.retention, "--admission", scheduler.admission)
    return AgentrtServer(options, model, flags, more)


def scheduling(name: str) -> SchedulerConfig:
    """The settings of a scheduler of ours (`contender`). Raises `ConfigError` for another name."""
    config = contender(name).config
    if config is None:
        raise ConfigError(f"--policy {name!r} is no scheduler of ours")
    return config


@contextlib.asynccontextmanager
async def piped(
    *command: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Process, StreamWriter, StreamReader]]:
    """A process with its input and its output; killed at the end, if it is still there."""
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=env)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, process.stdin, process.stdout
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def stock_flags(options: EngineOptions, model: str) -> list[str]:
    """vLLM's flags for the options that an embedded engine with ``options`` sets, but for its
    metrics: both servers keep them.
    """
    import torch

    args = engine_args(replace(options, metrics=True), model, on_gpu=torch.cuda.is_available())
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
