"""The simulated engine's size: what it can do per second, and what it says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrt.errors import ConfigError
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.runs import machine as module
from agentrt.lab.runs.contenders import contender
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.shape import CallShape, ProgramShape, cached_tokens
from benchmarks.steps import SlotMachine

CHAT = ProgramShape(
    "chat",
    "chat",
    (CallShape(10, 100), CallShape(20, 160, after=(0,), extends=0)),
    system_tokens=40,
)


def test_of_a_prompt_is_cached_what_an_earlier_call_left_there() -> None:
    assert [cached_tokens(CHAT, call) for call in CHAT.calls] == [40, 110]
    alone = ProgramShape("p", "p", (CallShape(1),), system_tokens=40)
    assert cached_tokens(alone, alone.calls[0]) == 0


def test_alike_steps_are_filled_by_outputs_alone() -> None:
    assert SlotMachine(4, step_s=0.5).capacity_per_s([CHAT]) == pytest.approx(4 / 0.5 / 30)


def test_virtual_steps_are_filled_by_prompts_too(tmp_path: Path) -> None:
    times = StepTimeModel(base_s=4.0, per_prefill_token_s=1.0, per_decode_s=2.0)
    (tmp_path / "times.json").write_text(times.as_text())
    machine = Machine(4, step_model=tmp_path / "times.json")
    outputs = 30 * (4.0 / 4 + 2.0)
    prompts = 60 + 50
    context = (10 * (100 + 5) + 20 * (160 + 10)) * times.per_context_token_s
    assert 1 / machine.capacity_per_s([CHAT, CHAT]) == pytest.approx(outputs + prompts + context)
    assert machine.token_s() == 4.0 + 4 * 2.0


def test_a_call_may_fill_the_whole_cache() -> None:
    options = Machine(4, kv_blocks=11, max_num_batched_tokens=64).virtual_options()
    assert (options.max_num_seqs, options.max_model_len) == (4, 160)
    assert (options.kv_blocks, options.max_num_batched_tokens) == (11, 64)


def test_it_tells_what_counts_of_its_kind() -> None:
    assert SlotMachine(4, step_s=0.5).to_dict() == {"batch": 4, "depth": "steps", "step_s": 0.5}
    told = Machine().to_dict()
    assert (told["kv_blocks"], told["step_time"]["model"]) == (8192, "made up")
    assert "step_s" not in told


def test_stock_behind_a_router_that_reads_its_blocks_is_refused() -> None:
    stock, ours = contender("stock"), contender("default")
    with pytest.raises(ConfigError, match=r"'stock' is vLLM's own .*--router agentix or least"):
        Machine(replicas=2, router="cost").check([ours, stock])
    Machine(replicas=2, router="cost").check([ours])
    Machine(replicas=2, router="agentix").check([ours, stock])
    Machine(router="cost").check([ours, stock])


def test_without_vllm_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"vLLM is not installed; .*pip install .*\[engine\]"):
        Machine()
