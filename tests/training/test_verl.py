"""Programs as agent loops of verl, by verl's own worker (`verl_worker.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VERL = ROOT / ".clients" / "verl"
PAD, END, USER, ASSISTANT, LOOK, UP, SKY, SEA, BLUE, GREEN, WRONG = range(11)

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    if not VERL.exists():
        pytest.fail(".clients/verl is missing: run .ci/setup-clients")
    paths = os.pathsep.join([str(ROOT), str(VERL)])
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "tests/training/verl_worker.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "WANDB_MODE": "disabled"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    value: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return value


def test_tokens_are_those_of_verls_servers(outcome: dict[str, Any]) -> None:
    """Two turns with a tool are one sequence: each token once, and tools' tokens not masked in."""
    tensors = outcome["tensors"]
    prompt = [USER, SKY, END, ASSISTANT]
    turns = [LOOK, UP, SKY, END, USER, BLUE, END, ASSISTANT, BLUE, END]
    assert tensors["prompts"][0] == [PAD] * 4 + prompt
    assert tensors["responses"][0] == [*turns, PAD, PAD]
    assert tensors["response_mask"][0] == [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0]
    logprobs = [-0.125, -0.25, -0.375, -0.5, 0, 0, 0, 0, -0.125, -0.25, 0, 0]
    assert tensors["rollout_log_probs"][0] == logprobs
    assert tensors["responses"][1][5] == GREEN
    assert tensors["attention_mask"][0] == [0] * 4 + [1] * 14 + [0] * 2


def test_rewards_and_fields_are_where_verl_reads_them(outcome: dict[str, Any]) -> None:
    fields = outcome["fields"]
    assert outcome["tensors"]["rm_scores"][0] == [0.0] * 9 + [0.75, 0.0, 0.0]
    assert fields["turn_scores"] == [[0.25, 0.5], [0.25, 0.5], []]
    assert fields["min_global_steps"] == fields["max_global_steps"] == [7, 7, 7]
    assert fields["agentrt_result"] == ["blue", "green", None]
    assert fields["__num_turns__"] == [4, 4, 3]
    assert [metric["num_preempted"] for metric in outcome["metrics"]] == [2, 2, 1]


def test_the_chat_models_of_a_graph_call_verls_servers(outcome: dict[str, Any]) -> None:
    assert outcome["graph"] == {"ids": [LOOK, UP, SKY, END], "temperature": 0.7}


def test_a_program_that_fails_keeps_its_group(outcome: dict[str, Any]) -> None:
    """What it wrote has the reward 0. Where the user wants the error, verl gets it."""
    assert outcome["tensors"]["responses"][2][:4] == [LOOK, UP, WRONG, END]
    assert sum(outcome["tensors"]["rm_scores"][2]) == 0.0
    assert "KeyError" in outcome["fields"]["agentrt_error"][2]
    assert outcome["fields"]["agentrt_error"][:2] == ["", ""]
    assert "KeyError" in outcome["errors"]["strict"]
    assert "the data set has no field 'question'" in outcome["errors"]["no field"]


def test_the_trainers_sampling_holds_and_a_run_stays_on_one_server(
    outcome: dict[str, Any],
) -> None:
    requests = outcome["requests"]
    assert {(each["temperature"], each["top_p"], each["max_tokens"]) for each in requests} == {
        (0.7, 0.9, 4)
    }
    assert sorted(
        sum(each["id"] == name for each in requests) for name in {each["id"] for each in requests}
    ) == [1, 2, 2]


def test_log_probabilities_that_verls_servers_do_not_give_are_refused(
    outcome: dict[str, Any],
) -> None:
    """A score of a text was 0, as if the text were certain."""
    says = "verl's servers give only the log probabilities of the tokens that they write"
    assert [text.partition(";")[0] for text in outcome["refused"]] == [says] * 3


def test_several_sequences_are_a_list_or_the_longest(outcome: dict[str, Any]) -> None:
    assert outcome["forked"]["responses"] == [[UP, END] + [PAD] * 10]
    assert not outcome["forked"]["has_rewards"]
    assert outcome["several"] == [
        {"response_ids": [UP, END], "response_logprobs": None, "reward_score": None},
        {"response_ids": [LOOK, END], "response_logprobs": None, "reward_score": None},
    ]
