"""Every way into agentrt starts with the same policy, retention and admission."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrt import Runtime, SchedulerConfig
from agentrt.cli.app import call
from agentrt.cli.serve import serve
from agentrt.cli.serving import read_job
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.executors.vllm.options import engine_args
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.integrations.langchain.shared import close_all
from agentrt.lab.commands import progress
from agentrt.lab.engine.headless import make_scheduler
from agentrt.lab.runs.contenders import contender
from agentrt.lab.runs.grid import RunSpec
from agentrt.scheduler.policies import policy_names
from benchmarks.__main__ import call as call_benchmark
from tests.doubles.scripted import ScriptedExecutor

DEFAULTS = ("adaptive", "cost", "memory")
OTHERS = [name for name in policy_names() if name not in ("adaptive", "longest-remaining")]
PROGRAM = """
from agentrt import program

@program
async def ask(ctx):
    return str(await ctx.llm("A question"))
"""


def named(config: Any) -> tuple[str, str, str]:
    return config.policy, config.retention, config.admission


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[SchedulerConfig]:
    """The settings of each embedded engine that is made, which says something at once."""
    made: list[SchedulerConfig] = []

    def make(options: EngineOptions | None = None) -> ScriptedExecutor:
        made.append((options or EngineOptions()).scheduler)
        return ScriptedExecutor(lambda call: "So be it.")

    monkeypatch.setattr("agentrt.engines.VLLMEngine", make)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return made


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "asking.py"
    path.write_text(PROGRAM)
    return str(path)


# -- in Python -------------------------------------------------------------------------


def test_settings_without_arguments_are_the_defaults() -> None:
    for config in (
        SchedulerConfig(),
        SchedulerConfig.of_policy(),
        SchedulerConfig.from_dict({}),
        EngineOptions().scheduler,
        VLLMEngine().options.scheduler,
        Runtime(VLLMEngine()).executor.options.scheduler,  # type: ignore[attr-defined]
    ):
        assert config == SchedulerConfig()
        assert named(config) == DEFAULTS


@pytest.mark.parametrize("policy", OTHERS)
def test_another_policy_brings_vllms_own_retention_and_admission(policy: str) -> None:
    plain = (policy, "lru", "off")
    for config in (
        SchedulerConfig(policy),
        SchedulerConfig.of_policy(policy),
        SchedulerConfig.from_dict({"policy": policy}),
        dataclasses.replace(SchedulerConfig(), policy=policy),
        dataclasses.replace(pickle.loads(pickle.dumps(SchedulerConfig())), policy=policy),
    ):
        assert named(config) == plain
        assert named(dataclasses.replace(config, policy="adaptive")) == DEFAULTS
        assert named(SchedulerConfig.from_dict(config.to_dict())) == plain


@pytest.mark.parametrize("policy", ["adaptive", "fcfs"])
def test_what_is_named_stays_whatever_the_policy(policy: str) -> None:
    """None, as JSON has it, names nothing."""
    own = SchedulerConfig.from_dict({"policy": policy, "retention": "ttl", "admission": None})
    assert (own.retention, own.admission) == ("ttl", "memory" if policy == "adaptive" else "off")
    kept = dataclasses.replace(own, policy="plas", admission="cap")
    assert named(dataclasses.replace(kept, policy="adaptive")) == ("adaptive", "ttl", "cap")


def test_settings_travel_as_plain_strings() -> None:
    values = SchedulerConfig().to_dict()
    assert [type(values[name]) for name in ("policy", "retention", "admission")] == [str] * 3


# -- chat models -----------------------------------------------------------------------


def test_a_chat_model_in_plain_python(started: list[SchedulerConfig]) -> None:
    close_all()
    assert ChatAgentRT().invoke("What now?").text == "So be it."
    close_all()
    assert [named(config) for config in started] == [DEFAULTS]


async def test_a_chat_model_in_a_notebook(started: list[SchedulerConfig]) -> None:
    """There an event loop runs already."""
    close_all()
    assert (await ChatAgentRT().ainvoke("What now?")).text == "So be it."
    close_all()
    assert [named(config) for config in started] == [DEFAULTS]


# -- commands --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), DEFAULTS),
        (("--retention", "lru"), ("adaptive", "lru", "memory")),
        (("--admission", "off"), ("adaptive", "cost", "off")),
        (("--policy", "fcfs"), ("fcfs", "lru", "off")),
        (("--policy", "atlas", "--retention", "cost"), ("atlas", "cost", "off")),
    ],
)
def test_run_and_serve(
    options: tuple[str, ...],
    expected: tuple[str, str, str],
    started: list[SchedulerConfig],
    program: str,
) -> None:
    assert call(["run", program, *options]) == 0
    assert [named(config) for config in started] == [expected]
    for more in ((), ("--submit",)):
        asked = serve.make_context("serve", [*more, *options]).params
        flags = asked.pop("engine_flags")
        assert named(read_job(asked.pop("targets"), flags, asked).engine.scheduler) == expected


@pytest.mark.parametrize("command", ["run", "sweep", "routing"])
@pytest.mark.parametrize("options", [(), ("--policy", "default")])
def test_simulate(command: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` and `sweep` compare several policies, the defaults among them."""
    specs: list[RunSpec] = []

    def do_all(these: list[RunSpec], jobs: int | None, do: Any) -> tuple[dict[Any, Any], None]:
        specs.extend(these)
        return {}, None

    monkeypatch.setattr(progress, "do_all", do_all)
    workload = ["--workload", "mixed"]
    assert call_benchmark(["simulate", command, *workload, *options]) == 0
    compared_configs = {spec.contender.name: spec.contender.config for spec in specs}
    assert named(compared_configs["default"]) == DEFAULTS


def test_options_of_simulate_are_those_of_the_default_too() -> None:
    own = contender("default", SchedulerConfig(lane=0.3)).config
    assert own == SchedulerConfig(lane=0.3)


# -- the plug-in -----------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, DEFAULTS), ({"policy": "atlas"}, ("atlas", "lru", "off"))],
)
def test_the_bare_plug_in(settings: dict[str, Any], expected: tuple[str, str, str]) -> None:
    pytest.importorskip("vllm")
    from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler

    scheduler = make_scheduler(ProgramScheduler, max_num_seqs=2, blocks=40, settings=settings)
    assert isinstance(scheduler, ProgramScheduler)
    assert named(scheduler.config) == expected
    policy, admission = scheduler.core.policy.name, scheduler.core.admission
    assert (policy, "off" if admission is None else admission.name) == (expected[0], expected[2])


@pytest.mark.engine
def test_an_embedded_engine_tells_its_scheduler_so() -> None:
    pytest.importorskip("vllm")
    args = engine_args(EngineOptions(), "a/model", on_gpu=False)
    assert isinstance(args.additional_config, dict)
    told = dict(args.additional_config["agentrt"])
    assert told.pop("embedded")
    assert named(SchedulerConfig.from_dict(told)) == DEFAULTS
