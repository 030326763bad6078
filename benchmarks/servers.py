"""OpenAI servers in processes of their own, for comparisons: vLLM's own server, and `agentrt
serve`.
"""

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
from agentrt.engines import EngineOptions
from agentrt.errors import ConfigError, EngineStartError
from agentrt.executors.vllm.default_model import default_model
from agentrt.executors.vllm.options import engine_args, prepare_environment
from agentrt.lab.commands.options import note
from agentrt.lab.runs.contenders import STOCK, check_parts, contender
from agentrt.scheduler.config import SchedulerConfig
from tests.doubles.ports import reserved_port

_HOST = "127.0.0.1"
_START_S, _REQUEST_S = 300.0, 10.0
_OURS = ("model", "served_model_name", "scheduler_cls", "additional_config")
"""Arguments of an embedded engine that `stock_flags` leaves out. `StockServer` and `AgentrtServer`
pass the model and its name themselves. The scheduler and its settings are agentrt's own.
"""
_SAYS = " (OpenAI API: "
PARSER = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
"""Flags that the servers of all contenders get by default (`started`). Without them, agentrt would
choose a tool parser by itself, and vLLM would have no tool parser.
"""


class Server:
    """The process of a server. An async context manager: the process ends with the ``with`` block.

    ``base_url`` is the address for an OpenAI client.
    """

    NAME = "stock"
    """The name of the served model."""
    stop_s = 3.0
    """Seconds that the process has to end after SIGTERM, before it is killed."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self.base_url = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @property
    def root(self) -> str:
        """The address without ``/v1``."""
        return self.base_url.removesuffix("/v1")

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far, without the CPU seconds of its engine's
        process.
        """
        assert self.process is not None
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    async def stop(self) -> None:
        """Stop the process. Idempotent."""
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
    """vLLM's own OpenAI server, with the options of an embedded engine and further ``flags``."""

    def __init__(self, options: EngineOptions, model: str, flags: Sequence[str] = ()) -> None:
        super().__init__()
        port = reserved_port(_HOST)
        self.base_url = f"http://{_HOST}:{port}/v1"
        self._command = (
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", model, "--served-model-name", self.NAME),
            *("--host", _HOST, "--port", str(port), "--disable-uvicorn-access-log"),
            *(*stock_flags(options, model), *flags),
        )

    async def start(
        self, collecting: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        """Start the process inside ``collecting()``, which collects its log, and wait until it
        serves.

        Raises `EngineStartError` if the process ends before it serves, and `TimeoutError` if the
        start takes too long.
        """
        # `agentrt serve` stores responses, too.
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
                answer = await client.get(f"{self.root}/health")
            except httpx.TransportError:
                return False
        return answer.status_code == httpx.codes.OK


class AgentrtServer(Server):
    """`agentrt serve` with a port and a database of its own. ``flags`` are passed to vLLM, and
    ``own`` are further arguments of `agentrt serve`.
    """

    stop_s = 40.0

    def __init__(
        self,
        options: EngineOptions,
        model: str,
        flags: Sequence[str] = (),
        own: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="agentrt-bench-")
        self._command = (
            *(sys.executable, "-m", "agentrt.cli", "serve"),
            *("--model", model, "--served-model-name", self.NAME, "--max-calls", "4096"),
            *("--port", "0", "--database", f"sqlite:{self._folder.name}/bench.db"),
            *("--policy", options.scheduler.policy, *own),
            *("--", *stock_flags(options, model), *flags),
        )
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process, and wait until it serves. Raises `EngineStartError` if the process
        ends before it serves, and `TimeoutError` if the start takes too long.
        """
        self.process = await asyncio.create_subprocess_exec(*self._command, stderr=PIPE)
        log = self.process.stderr
        assert log is not None
        async with asyncio.timeout(_START_S):
            while _SAYS not in (line := (await log.readline()).decode()):
                if not line:
                    raise EngineStartError("agentrt serve ended before it served")
        self.base_url = re.split("[;)]", line.split(_SAYS)[1])[0]
        self._reader = asyncio.create_task(_drop(log))

    async def stop(self) -> None:
        await super().stop()
        if self._reader is not None:
            self._reader.cancel()
        self._folder.cleanup()

    def footprint(self) -> dict[str, float]:
        """Return the memory (MiB), the open files and the threads of the server's own process."""
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


def engine_and_model(
    options: Mapping[str, Any], slots: int | None = None, policy: str | None = None
) -> tuple[EngineOptions, str]:
    """Return the engine's options, and the model of ``--model`` (by default `default_model`).

    ``slots`` is the number of batch slots, by default the value of ``--max-num-seqs``. ``policy``
    is the policy of agentrt's scheduler, by default agentrt's default.
    """
    slots = options.get("max_num_seqs") if slots is None else slots
    scheduler = SchedulerConfig() if policy is None else SchedulerConfig(policy=policy)
    engine = EngineOptions(options["model"], slots, scheduler)
    prepare_environment(engine)
    return engine, options["model"] or default_model(note)


@contextlib.asynccontextmanager
async def started(
    name: str, options: EngineOptions, model: str, flags: Sequence[str] = PARSER
) -> AsyncIterator[Server]:
    """Start the server of a contender: vLLM's own server for stock, and otherwise `agentrt serve`
    with the contender's policy, retention and admission.

    Raises `ConfigError` if the name is neither stock nor a policy of agentrt's scheduler.
    """
    if name == STOCK:
        note("starting vLLM's own server")
        with EngineLog(verbose=False) as log:
            async with StockServer(options, model, flags) as stock:
                await stock.start(log.collect)
                yield stock
        return
    note(f"starting agentrt serve: {name}")
    config = scheduling(name)
    own = ("--retention", config.retention, "--admission", config.admission)
    engine = replace(options, scheduler=config)
    async with AgentrtServer(engine, model, flags, own) as ours:
        await ours.start()
        yield ours


@contextlib.asynccontextmanager
async def all_started(
    names: Sequence[str], options: EngineOptions, model: str
) -> AsyncIterator[dict[str, Any]]:
    """Start the servers of contenders (`started`) with the same engine options. The server of stock
    starts last.
    """
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for name in sorted(names, key=lambda name: name == STOCK):
            servers[name] = await stack.enter_async_context(started(name, options, model))
        yield {name: servers[name] for name in names}


def scheduling(name: str) -> SchedulerConfig:
    """Return the settings of a contender that is just a policy of agentrt's scheduler
    (`contender`). Raises `ConfigError` for any other contender.
    """
    policy = contender(name)
    if (config := policy.config) is None:
        raise ConfigError(
            f"--policy {name!r} does not name a policy of agentrt's scheduler; name a policy "
            "such as default or atlas"
        )
    check_parts([policy])
    return config


@contextlib.asynccontextmanager
async def piped(
    *command: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Process, StreamWriter, StreamReader]]:
    """Start a process, and yield the process, its input and its output. The process is killed at
    the end of the ``with`` block.
    """
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
    """Return the flags that give vLLM's server the settings of an embedded engine with ``options``,
    except for the metrics, which both servers keep.
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
