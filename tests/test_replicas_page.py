"""What docs/replicas.md and docs/ray.md show works: replicas are made, commands are understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from agentrt.cli.engines import each_engine, read_fleet
from agentrt.cli.run import run
from agentrt.executors.replicas import ReplicaSet
from agentrt.executors.vllm.options import EngineOptions
from benchmarks.chaos.command import chaos
from tests.doubles.scripted import ScriptedExecutor

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "replicas.md").read_text("utf-8")
BOTH = [PAGE, *((DOCS / name).read_text("utf-8") for name in ("ray.md", "results/chaos.md"))]
SHOWN = re.compile(r"^    ((?:agentrt|python -m benchmarks) .+)$", re.MULTILINE)
COMMANDS = [line for page in BOTH for line in SHOWN.findall(page)]
KNOWN: dict[str, click.Command] = {"agentrt run": run, "python -m benchmarks chaos": chaos}


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    name = next(name for name in KNOWN if line.startswith(f"{name} "))
    context = KNOWN[name].make_context(name, shlex.split(line.removeprefix(name)))
    return name, context.params


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line: str) -> None:
    name, options = parsed(line)
    if name == "agentrt run":
        fleet = read_fleet(options)
        assert fleet.size == len(each_engine(EngineOptions(options["model"]), fleet)) > 1


def test_engines_of_two_models() -> None:
    [line] = [line for line in COMMANDS if "--replica '" in line]
    _, options = parsed(line)
    engines = each_engine(EngineOptions(options["model"], flags=("-tp", "1")), read_fleet(options))
    big, small = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"
    assert [engine.model for engine in engines] == [big, big, small, small, small]
    assert engines[0].flags == ("-tp", "1")
    assert engines[-1].flags == ("-tp", "1", "--max-model-len", "4096")
    assert {engine.replicas for engine in engines} == {5}


async def test_the_code_renews_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(options: EngineOptions) -> ScriptedExecutor:
        return ScriptedExecutor()

    monkeypatch.setattr("agentrt.executors.vllm.engine.VLLMEngine", engine)
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)  # the page's own code
    replicas: ReplicaSet = names["replicas"]
    await replicas.start(lambda message: None)
    try:
        await names["renew"]()
        assert [replica.starts for replica in replicas.replicas] == [3, 2]
    finally:
        await replicas.close()
