"""What docs/replicas.md shows works: replicas are made, commands are understood."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from agentrt.cli.engines import each_engine, read_fleet
from agentrt.cli.run import run
from agentrt.engines import EngineOptions, ReplicaSet
from tests.doubles.scripted import ScriptedExecutor
from tests.pages import blocks, text_of

COMMANDS = re.findall(r"^    agentrt run (.+)$", text_of("replicas.md"), re.MULTILINE)


def parsed(line: str) -> dict[str, Any]:
    return run.make_context("run", shlex.split(line)).params


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line: str) -> None:
    options = parsed(line)
    fleet = read_fleet(options)
    assert fleet.size == len(each_engine(EngineOptions(options["model"]), fleet)) > 1


def test_engines_of_two_models() -> None:
    [line] = [line for line in COMMANDS if "--replica '" in line]
    options = parsed(line)
    engines = each_engine(EngineOptions(options["model"], flags=("-tp", "1")), read_fleet(options))
    big, small = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"
    assert [engine.model for engine in engines] == [big, big, small, small, small]
    assert engines[0].flags == ("-tp", "1")
    assert engines[-1].flags == ("-tp", "1", "--max-model-len", "4096")
    assert {engine.replicas for engine in engines} == {5}


async def test_the_code_renews_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(options: EngineOptions) -> ScriptedExecutor:
        return ScriptedExecutor()

    monkeypatch.setattr("agentrt.engines.VLLMEngine", engine)
    [code] = blocks("replicas.md")
    names: dict[str, Any] = {}
    exec(code, names)  # the page's own code
    replicas: ReplicaSet = names["replicas"]
    await replicas.start(lambda message: None)
    try:
        await names["renew"]()
        assert [replica.starts for replica in replicas.replicas] == [3, 2]
    finally:
        await replicas.close()
