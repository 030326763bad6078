"""What --replicas, --policy and --history make together: engines, and the set around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from agentrt.cli import engines as module
from agentrt.cli.engines import Fleet, count_gpus, engine_options, make_executor
from agentrt.cli.run import run
from agentrt.cli.serve import serve
from agentrt.engines import EngineOptions, ReplicaSet
from agentrt.executors.base import Executor
from agentrt.executors.history import read
from agentrt.scheduler import ProgramTotals, SchedulerConfig
from tests.doubles.scripted import ScriptedExecutor


class Taught(ScriptedExecutor):
    """An engine of these options, and what it was told of programs."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__()
        self.options = options
        self.known: list[Any] = []

    async def know(self, learned: Mapping[str, Any]) -> bool:
        self.known.append(learned)
        return True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Taught]:
    """The engines that were made, in that order."""
    made: list[Taught] = []

    def here(options: list[EngineOptions]) -> Callable[[int], Executor]:
        def make(index: int) -> Executor:
            made.append(Taught(options[index]))
            return made[-1]

        return make

    monkeypatch.setattr(module, "_here", here)
    return made


async def test_the_set_writes_the_history_and_its_engines_begin_with_it(
    tmp_path: Path, made: list[Taught]
) -> None:
    """1. No file: nothing is known. 2. A program ends; all engines of the next set know it, and so
    does one that starts again, though the file has been spoilt."""
    path = tmp_path / "history.json"
    options = EngineOptions(scheduler=SchedulerConfig("adaptive", history=str(path), lane=0.3))
    for round_ in range(2):
        replicas = make_executor(options, Fleet(2), lambda message: None)
        assert isinstance(replicas, ReplicaSet)
        await replicas.start(lambda message: None)
        await replicas.end_program("p", ProgramTotals("p", "t", service_s=3.0))
        if round_:
            written = path.read_text()
            path.write_text("{")
            await replicas.restart("replica-0")
            path.write_text(written)
        await replicas.close()
        assert read(path)["service"]
    [[first], [second], [third], [fourth], [fifth]] = [engine.known for engine in made]
    assert first["service"] == second["service"] == []
    assert third == fourth
    assert sum(row[4] for row in third["service"] if row[1:3] == ["", ""]) == 1.0
    assert sum(row[4] for row in fifth["service"] if row[1:3] == ["", ""]) == 2.0
    own = SchedulerConfig("adaptive", lane=0.3, history="none")
    assert [engine.options.scheduler for engine in made] == [own] * 5


TWO = "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H100 (UUID: GPU-2)'"


@pytest.mark.parametrize(
    ("says", "count"),
    [(TWO, 2), ("echo 'No devices found.'", 0), (f"{TWO}; exit 9", 0)],
)
def test_gpus_are_counted(
    says: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{says}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus() == count


def test_without_the_tool_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus() == 0


@pytest.mark.parametrize(
    ("given", "policy", "retention", "admission"),
    [
        ({}, "adaptive", "cost", "memory"),
        ({"retention": "lru"}, "adaptive", "lru", "memory"),
        ({"admission": "off"}, "adaptive", "cost", "off"),
        ({"policy": "fcfs"}, "fcfs", "lru", "off"),
        ({"policy": "atlas", "retention": "cost"}, "atlas", "cost", "off"),
        ({"engine": "transformers", "inputs": "records.jsonl"}, "fcfs", "lru", "off"),
    ],
)
def test_retention_and_admission_go_with_the_policy_where_none_is_given(
    given: dict[str, str], policy: str, retention: str, admission: str
) -> None:
    arguments = [word for name, value in given.items() for word in (f"--{name}", value)]
    context = run.make_context("run", ["program.py", *arguments])
    found = engine_options(context.params, ()).scheduler
    assert (found.policy, found.retention, found.admission) == (policy, retention, admission)


@pytest.mark.parametrize(
    ("named", "history"),
    [((), None), (("--history", "none"), "none"), (("--history", "new.json"), "{}/new.json")],
)
@pytest.mark.parametrize("command", [run, serve])
def test_what_is_learned_is_kept_unless_it_shall_not_be(
    command: click.Command,
    named: tuple[str, ...],
    history: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None leaves it to the engine, which has a file for its model and size."""
    monkeypatch.chdir(tmp_path)
    targets = ["program.py"] if command is run else []
    context = command.make_context("agentrt", [*targets, *named])
    found = engine_options(context.params, ()).scheduler
    assert found.history == (history and history.format(tmp_path))


@pytest.mark.parametrize("policy", ["fcfs", "atlas"])
def test_a_policy_that_learns_nothing_may_be_told_to_keep_nothing(policy: str) -> None:
    context = run.make_context("run", ["program.py", "--policy", policy, "--history", "none"])
    assert engine_options(context.params, ()).scheduler.history == "none"


@pytest.mark.parametrize(
    ("words", "size"),
    [((), 0.0), (("auto",), "auto"), (("0",), 0.0), (("64",), 64.0), (("0.5",), 0.5)],
)
@pytest.mark.parametrize("command", [run, serve])
def test_an_engine_takes_host_memory_only_on_request(
    command: click.Command, words: tuple[str, ...], size: object
) -> None:
    targets = ["program.py"] if command is run else []
    options = [word for value in words for word in ("--host-memory", value)]
    context = command.make_context("agentrt", [*targets, *options])
    assert engine_options(context.params, ()).host_memory == size


def test_replicas_share_what_is_free() -> None:
    words = ["program.py", "--replicas", "2", "--host-memory", "auto"]
    context = run.make_context("run", words)
    options = engine_options(context.params, ())
    each = module.each_engine(options, Fleet(replicas=2))
    assert [(one.host_memory, one.replicas) for one in each] == [("auto", 2)] * 2


@pytest.mark.parametrize("place", ["flag", "file"])
def test_engines_of_other_models_have_no_adapters_of_the_first(place: str, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    from agentrt.executors.vllm.entrypoints.flags import given_flags

    flags: tuple[str, ...] = ("--enable-lora", "--lora-modules", "sql=adapters/sql", "b=adapters/b")
    if place == "file":
        file = tmp_path / "vllm.yaml"
        file.write_text("enable-lora: true\nlora-modules: [sql=adapters/sql, b=adapters/b]\n")
        flags = ("--config", str(file))
    others = ["small", "small --lora-modules own=adapters/own", "big", "small --no-enable-lora"]
    words = [word for other in others for word in ("--replica", other)]
    context = serve.make_context("serve", ["--model", "big", *words])
    options = engine_options(context.params, flags)
    engines = module.each_engine(options, module.read_fleet(context.params))
    adapters = [given_flags(engine.flags).get("lora_modules") for engine in engines]
    names = [[adapter.name for adapter in own or ()] for own in adapters]
    assert names == [["sql", "b"], [], ["own"], ["sql", "b"], []]


def test_models_of_one_folder_name_differ_in_the_metrics() -> None:
    others = (module.Others("/runs/2/checkpoint", 2), module.Others("/runs/3/judge"))
    options = EngineOptions("/runs/1/checkpoint")
    engines = module.each_engine(options, Fleet(2, others=others))
    names = [engine.served_model_name for engine in engines]
    assert names == [None, None, *["/runs/2/checkpoint"] * 2, "judge"]
