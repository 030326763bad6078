"""What all policies have in common: names, settings, levels, and unknown programs."""

from __future__ import annotations

import math
from importlib.metadata import EntryPoint

import pytest

from agentrt.errors import ConfigError
from agentrt.scheduler import EngineProgram, QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import (
    ENTRY_POINT_GROUP,
    level_ends,
    make_policy,
    policy_class,
    policy_names,
)
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.policies.published import Plas
from agentrt.scheduler.queues import Priority


@pytest.mark.parametrize("name", ["round-robin", "adaptive"])
def test_an_unknown_program_may_end_or_get_lost(name: str) -> None:
    policy = make_policy(SchedulerConfig(name))
    policy.program_ended(EngineProgram("p", "t", service_s=3.0), 0.0)
    policy.program_lost(EngineProgram("q", "t"))


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies of another package: an incomplete one, a good one, one with the name of ours, one
    that does not load, and a function.
    """
    made = [
        EntryPoint("half", "agentrt.scheduler.policies:AttainedService", ENTRY_POINT_GROUP),
        EntryPoint("srpt", "agentrt.lab.oracles:Srpt", ENTRY_POINT_GROUP),
        EntryPoint("plas", "agentrt.lab.oracles:Srpt", ENTRY_POINT_GROUP),
        EntryPoint("absent", "agentrt.no_such_module:Policy", ENTRY_POINT_GROUP),
        EntryPoint("function", "agentrt.scheduler.policies:policy_names", ENTRY_POINT_GROUP),
    ]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "agentrt.policies"
        return [point for point in made if name in (None, point.name)]

    monkeypatch.setattr("agentrt.scheduler.policies.entry_points", entry_points)


@pytest.mark.usefixtures("points")
def test_policies_of_other_packages() -> None:
    assert policy_names()[-4:] == ["absent", "function", "half", "srpt"]
    assert policy_names().count("plas") == 1
    assert (policy_class("srpt").__name__, policy_class("plas").__name__) == ("Srpt", "Plas")
    with pytest.raises(ConfigError) as refused:
        policy_class("half")
    assert str(refused.value).startswith(
        "policy 'half' (agentrt.scheduler.policies:AttainedService) is not a complete subclass of "
        "agentrt.scheduler.policies.Policy;"
    )
    with pytest.raises(ConfigError, match=r"'function' .* is not a complete subclass"):
        policy_class("function")
    with pytest.raises(ConfigError) as refused:
        policy_class("absent")
    assert str(refused.value) == (
        "cannot load policy 'absent' (agentrt.no_such_module:Policy): "
        "No module named 'agentrt.no_such_module'; repair the package that offers it, or use "
        "another policy"
    )


def test_a_policy_keeps_its_settings() -> None:
    for config in map(SchedulerConfig, policy_names()):
        assert make_policy(config).config is config


@pytest.mark.parametrize("name", ["fcfs", "program-fcfs", "srtf"])
def test_without_levels_all_calls_are_in_the_first(name: str) -> None:
    call = QueuedCall(
        "c", EngineProgram("p", "t", started_at=3.0), None, None, 0.0, prompt_tokens=3
    )
    order = 0.0 if name == "fcfs" else 3.0
    assert make_policy(SchedulerConfig(name)).priority(call, 5.0) == Priority(0, order=order)


def test_after_a_quantum_a_call_is_ranked_again_by_default() -> None:
    class Clock(Policy):
        def priority(self, call: QueuedCall, now: float) -> Priority:
            return Priority(int(now))

    call = QueuedCall("c", EngineProgram("p", "t"), None, None, 0.0)
    assert Clock(SchedulerConfig()).on_quantum_expired(call, 7.0) == Priority(7)


def test_only_attained_service_ends_levels() -> None:
    for policy, ends in (("plas", (1.0, 3.0, math.inf)), ("fcfs", ()), ("adaptive", ())):
        assert level_ends(SchedulerConfig(policy, (1, 2))) == ends


def test_policies_may_define_methods_by_their_former_names() -> None:
    with pytest.warns(DeprecationWarning, match="Halved defines .*rank, .* until") as seen:

        class Halved(Plas):
            @classmethod
            def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
                return super().admission_rank(path_s, program_service_s) / 2

            def rank(self, program: EngineProgram, path_s: float | None) -> float:
                return super().rank(program, path_s) / 2

    assert {warning.filename for warning in seen} == {__file__}
    policy = Halved(SchedulerConfig("plas", (1, 2)))
    call = QueuedCall("c", EngineProgram("p", "t", service_s=5.0), None, None, 0.0)
    with pytest.warns(DeprecationWarning, match="rank of a policy is now level_service_s") as seen:
        assert policy.priority(call, 0.0).level == 1
    assert {warning.filename for warning in seen} == {__file__}
    with pytest.warns(DeprecationWarning, match="is now tenant_queue_rank"):
        assert Halved.tenant_queue_rank(1.0, 6.0) == 3.0


def test_the_methods_of_a_policy_answer_to_their_former_names() -> None:
    policy, program = make_policy(SchedulerConfig("plas")), EngineProgram("p", "t", service_s=5.0)
    assert isinstance(policy, Plas)
    with pytest.warns(DeprecationWarning, match="is now level_service_s"):
        assert policy.rank(program, 1.0) == policy.level_service_s(program, 1.0) == 5.0
    with pytest.warns(DeprecationWarning, match="is now tenant_queue_rank"):
        assert policy.admission_rank(1.0, 6.0) == policy.tenant_queue_rank(1.0, 6.0) == 6.0


def test_a_class_without_levels_may_have_a_rank_of_its_own() -> None:
    class Ranked(Policy):
        rank = 3

        def priority(self, call: QueuedCall, now: float) -> Priority:
            return Priority(self.rank)

    assert not hasattr(Ranked, "level_service_s")


@pytest.mark.parametrize(
    ("policy", "known", "unknown"),
    [
        ("atlas", 2.0, 9.0),
        ("adaptive", 2.0, 9.0),
        ("plas", 9.0, 9.0),
        ("program-fcfs", 9.0, 9.0),
        ("round-robin", 9.0, 9.0),
        ("fcfs", 0.0, 0.0),
    ],
)
def test_the_level_of_a_call_outside_the_engine(policy: str, known: float, unknown: float) -> None:
    """The program has had 9 s; the path of its call takes 2 s, or is unknown."""
    ranks = [policy_class(policy).tenant_queue_rank(path_s, 9.0) for path_s in (2.0, None)]
    assert ranks == [known, unknown]
