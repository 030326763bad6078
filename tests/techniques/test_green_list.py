"""The watermark's logits processors: each model runner's favours what the detector counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from watermark import GREEN, is_green, secret_of, z_score

pytestmark = pytest.mark.engine
VOCABULARY = 500


def given(key: int, delta: float) -> Any:
    return SimpleNamespace(extra_args={"GreenList": {"key": key, "delta": delta}})


def test_both_model_runners_raise_the_same_logits() -> None:
    """Three calls in slots of their own, one without a watermark; slot 2 had one before."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    import green_list
    import green_list_v2

    states = SimpleNamespace(max_num_reqs=4, device="cpu")
    second = green_list_v2.GreenList(None, states)
    assert second.add_request(2, given(9, 1.0))
    plain = SimpleNamespace(extra_args={})
    calls = {3: (given(1, 2.0), 41), 0: (given(2, 5.0), 42), 2: (plain, 43)}
    for slot, (params, _) in calls.items():
        assert second.add_request(slot, params) == bool(params.extra_args)
    context = SimpleNamespace(
        expanded_idx_mapping=torch.tensor([*calls], dtype=torch.int32),
        input_ids=torch.tensor([previous for _, previous in calls.values()], dtype=torch.int32),
    )
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    raised = second.apply(logits.clone(), context)
    first = green_list.GreenList(None, "cpu", is_pin_memory=False)
    assert not first.is_argmax_invariant()
    for row, (params, previous) in enumerate(calls.values()):
        favour = first.new_req_logits_processor(params)
        if favour is None:
            assert torch.equal(raised[row], logits[row])
            continue
        # After the prompt's last token, and after the output's last one.
        assert torch.equal(raised[row], favour([7, previous], [], logits[row].clone()))
        assert torch.equal(raised[row], favour([7], [8, previous], logits[row].clone()))
        values = params.extra_args["GreenList"]
        for token in range(VOCABULARY):
            gained = values["delta"] if is_green(previous, token, secret_of(values["key"])) else 0.0
            assert raised[row, token] == logits[row, token] + gained


def test_green_is_half_of_the_tokens_and_another_half_after_each() -> None:
    secret = secret_of(5)
    halves = [
        {token for token in range(4000) if is_green(previous, token, secret)}
        for previous in (100, 101, 40_000)
    ]
    for half in halves:
        assert len(half) / 4000 == pytest.approx(GREEN, abs=0.03)
    assert len(halves[0] & halves[1]) / 4000 == pytest.approx(GREEN**2, abs=0.05)
    assert len(halves[1] & halves[2]) / 4000 == pytest.approx(GREEN**2, abs=0.05)


def test_a_pair_that_comes_again_is_counted_once() -> None:
    secret = secret_of(5)
    green = next(token for token in range(2, 100) if is_green(1, token, secret))
    assert z_score([1, green], key=5) == pytest.approx(1.0)
    back = is_green(green, 1, secret)
    assert z_score([1, green] * 50, key=5) == pytest.approx(2**0.5 if back else 0.0)
