"""Calls of token ids on a transformers model: their results, their shared caches, and their
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from agentrt.contexts.attention import Attention
from agentrt.engines import TransformersExecutor
from agentrt.errors import (
    CallRejectedError,
    EngineDiedError,
    EngineError,
    ModelLoadError,
    PromptTooLongError,
)
from agentrt.executors.base import Chunk, last_reply
from agentrt.request import Call, CallReport, CallSpec, Identity, Reply
from agentrt.request.sampling import Constraint, Sampling

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PROMPT = tuple(range(100, 140))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor(folder: Path) -> AsyncIterator[TransformersExecutor]:
    executor = TransformersExecutor(str(folder), slots=3)
    await executor.start(lambda message: None)
    yield executor
    await executor.close()


@pytest.fixture(autouse=True)
def _nothing_is_cached(executor: TransformersExecutor) -> None:
    executor.prefixes.entries.clear()


def call(
    ids: tuple[int, ...] = PROMPT, *, name: str = "p/0", sampling: Any = None, **fields: Any
) -> Call:
    program = name.partition("/")[0]
    given = {"max_tokens": 8, "ignore_eos": True, **fields}
    spec = CallSpec(prompt_token_ids=ids, sampling=sampling, **given)
    return Call(Identity(name, program), spec)


async def reply(executor: TransformersExecutor, *args: Any, **fields: Any) -> Reply:
    return await last_reply(executor.generate(call(*args, **fields), stream=False))


async def chunks(executor: TransformersExecutor, one: Call) -> list[Chunk]:
    return [chunk async for chunk in executor.generate(one, stream=True)]


# -- outputs ---------------------------------------------------------------------------


async def test_greedy_tokens_are_those_of_transformers_own_generate(
    executor: TransformersExecutor, folder: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    whole = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False, min_new_tokens=12
    )
    found = await reply(executor, max_tokens=12)
    assert found.token_ids == tuple(whole[0, len(PROMPT) :].tolist())
    assert found.finish_reason == "length"
    report = found.report
    assert (report.prompt_tokens, report.output_tokens, report.steps) == (40, 12, 12)
    assert report.service_s > 0
    assert report.finished_step - report.arrived_step == 11


async def test_a_stream_is_the_whole_in_pieces(executor: TransformersExecutor) -> None:
    whole = await reply(executor)
    pieces = await chunks(executor, call())
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.token_ids] == [*whole.token_ids]
    assert [piece.reply is not None for piece in pieces] == [False] * 7 + [True]
    assert len(await chunks(executor, call(max_tokens=1))) == 1


async def test_a_call_ends_where_it_is_told_to(executor: TransformersExecutor) -> None:
    whole = await reply(executor)
    third = whole.token_ids[2]
    assert third not in whole.token_ids[:2]
    by_token = await reply(executor, sampling=Sampling(stop_token_ids=(third,)))
    assert (by_token.token_ids, by_token.finish_reason) == (whole.token_ids[:3], "stop")
    stop = whole.text[3:6]
    assert stop not in whole.text[:5]
    by_text = await reply(executor, sampling=Sampling(stop=("no such text", stop)))
    assert (by_text.text, by_text.finish_reason) == (whole.text[:3], "stop")
    assert by_text.token_ids == whole.token_ids[: len(by_text.token_ids)]
    pieces = await chunks(executor, call(sampling=Sampling(stop=(stop,))))
    assert "".join(piece.text for piece in pieces) == whole.text[:3]


async def test_seeds_repeat_what_is_sampled(executor: TransformersExecutor) -> None:
    async def drawn(seed: int, **sampling: Any) -> tuple[int, ...]:
        fields = {"temperature": 3.0, "seed": seed, "sampling": Sampling(**sampling)}
        return (await reply(executor, **fields)).token_ids

    assert await drawn(1) == await drawn(1) != await drawn(2)
    greedy = (await reply(executor)).token_ids
    assert await drawn(1, top_k=1) == await drawn(2, top_p=1e-6) == greedy
    assert await drawn(3, min_p=1.0) == greedy
    assert {*await drawn(4, allowed_token_ids=(7, 8))} == {7, 8}
    assert {*(await reply(executor, sampling=Sampling(allowed_token_ids=(9,)))).token_ids} == {9}


async def test_scores_are_what_generation_said(executor: TransformersExecutor) -> None:
    """1. Generation gives the likeliest tokens. 2. Scoring the same tokens as a prompt gives the
    same values, in one forward pass.
    """
    made = await reply(executor, sampling=Sampling(logprobs=3))
    assert [place[0][0] for place in made.token_logprobs] == [*made.token_ids]
    assert {len(place) for place in made.token_logprobs} == {3}  # the likeliest was chosen
    whole = (*PROMPT, *made.token_ids)
    scored = await reply(
        executor, whole, max_tokens=1, sampling=Sampling(score_from=len(PROMPT), score_top=3)
    )
    assert (scored.report.steps, scored.report.cached_tokens) == (1, len(PROMPT) - 1)
    for place, expected in zip(scored.prompt_logprobs, made.token_logprobs, strict=True):
        assert dict(place) == pytest.approx(dict(expected), abs=1e-3)
    far = await reply(executor, whole, max_tokens=1, sampling=Sampling(score_from=1))
    assert [place[0][0] for place in far.prompt_logprobs] == [*whole[1:]]
    executor.prefixes.entries.clear()
    long = tuple(n % 500 for n in range(600))  # in three chunks
    scored = await reply(executor, long, max_tokens=1, sampling=Sampling(score_from=250))
    assert [place[0][0] for place in scored.prompt_logprobs] == [*long[250:]]


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint("regex", "[a-c]{3}-[0-9]{4}"), "[a-c]{3}-[0-9]{4}"),
        (Constraint("choice", ["left", 'r"ight']), 'left|r"ight'),
        (Constraint("json", '{"enum": [17, 23]}'), "17|23"),
        (Constraint("grammar", 'root ::= "(" root ")" | "x"'), r"\(*x\)*"),
        (Constraint("grammar", "start: /[ab]{6}/"), "[ab]{6}"),
    ],
)
async def test_a_constraint_is_obeyed(
    executor: TransformersExecutor, constraint: Constraint, pattern: str
) -> None:
    for seed in range(3):
        done = await reply(
            executor,
            max_tokens=64,
            ignore_eos=False,
            temperature=1.0,
            seed=seed,
            sampling=Sampling(constraint=constraint),
        )
        assert done.finish_reason == "stop"
        assert re.fullmatch(pattern, done.text)
        assert done.token_ids[-1] in executor.model.stops


async def test_log_probabilities_are_of_allowed_tokens_alone(
    executor: TransformersExecutor,
) -> None:
    every = await reply(executor, sampling=Sampling(logprobs=executor.model.vocabulary))
    found = await reply(executor, sampling=Sampling(logprobs=2, allowed_token_ids=(7, 8, 9)))
    expected = sorted(
        ((n, dict(every.token_logprobs[0])[n]) for n in (7, 8, 9)), key=lambda x: -x[1]
    )
    assert [n for n, _ in found.token_logprobs[0]] == [n for n, _ in expected[:2]]
    assert dict(found.token_logprobs[0]) == pytest.approx(dict(expected[:2]), abs=1e-3)


# -- what calls share ------------------------------------------------------------------


async def test_what_prompts_have_in_common_is_computed_once(executor: TransformersExecutor) -> None:
    first = await reply(executor)
    assert first.report.cached_tokens == 0
    forked = (*PROMPT, 7, 8, 9)
    again = await reply(executor, forked)
    assert again.report.cached_tokens == len(PROMPT)
    other = await reply(executor, forked, cache_salt="acme")
    assert other.report.cached_tokens == 0
    executor.prefixes.entries.clear()
    assert (await reply(executor, forked)).token_ids == again.token_ids == other.token_ids


@pytest.mark.parametrize("attention", [Attention(8), Attention(8, sinks=2), Attention(8, chunk=4)])
async def test_a_prompt_with_an_attention_is_found_again(
    executor: TransformersExecutor, attention: Attention
) -> None:
    """1. A call has this attention. 2. Its prompt, and a prompt that continues its output, are read
    from the cache. 3. Another attention finds nothing. 4. Without a cache, the tokens are the same.
    """
    sampling = Sampling(attention=attention)
    first = await reply(executor, sampling=sampling)
    again = await reply(executor, sampling=sampling)
    longer = (*PROMPT, *first.token_ids, 5)
    on = await reply(executor, longer, sampling=sampling)
    cached = [one.report.cached_tokens for one in (first, again, on)]
    assert cached == [0, len(PROMPT) - 1, len(longer) - 2]
    other = await reply(executor, longer, sampling=Sampling(attention=Attention(9)))
    assert other.report.cached_tokens == 0
    executor.prefixes.entries.clear()
    assert (await reply(executor, longer, sampling=sampling)).token_ids == on.token_ids
    assert first.token_ids == again.token_ids != (await reply(executor)).token_ids


async def test_a_window_bounds_what_is_cached(executor: TransformersExecutor) -> None:
    """The text is longer than the model's context. Only its sinks and its window are cached."""
    sampling = Sampling(attention=Attention(60, sinks=4))
    long = tuple(n % 500 for n in range(3000))
    done = await reply(executor, long, sampling=sampling)
    assert done.report.output_tokens == 8
    cached = (await executor.snapshot())["cached"]
    assert [each["tokens"] for each in cached] == [2999, 3007]
    assert {each["positions"] for each in cached} == {63}
    with pytest.raises(
        PromptTooLongError, match=r"3000 tokens, and the model takes at most 2047 .* window"
    ):
        await reply(executor, long)


# -- beside each other, and broken off ----------------------------------------------------


async def test_calls_take_turns(executor: TransformersExecutor) -> None:
    """Three calls run, step by step; a fourth waits for a place. Each call gets the same tokens as
    alone.
    """
    prompts = [tuple(range(start, start + 20)) for start in (1, 50, 90, 130)]
    alone = [(await reply(executor, ids)).token_ids for ids in prompts]
    executor.prefixes.entries.clear()
    calls = [call(ids, name=f"p{n}/0") for n, ids in enumerate(prompts)]
    # Streams: a whole call may take several steps before the next one has arrived.
    every = [last_reply(executor.generate(one, stream=True)) for one in calls]
    done = await asyncio.gather(*every)
    assert [one.token_ids for one in done] == alone
    ends = [one.report.finished_step for one in done]
    assert ends[2] - ends[0] <= 2  # none of the first three waited for another's end
    assert done[3].report.arrived_step > min(ends)


async def test_a_whole_call_beside_another_gives_way_after_each_step(
    executor: TransformersExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is alone takes its steps without a pause, here for any time. A short call that
    arrives while another call runs ends before a long call that came earlier and is not streamed.
    """
    monkeypatch.setattr("agentrt.executors.transformers.executor._ALONE_S", 1e9)
    other = executor.generate(call(name="q/0", max_tokens=200), stream=True)
    async with contextlib.aclosing(other):
        await anext(other)
        long = asyncio.ensure_future(reply(executor, name="p/0", max_tokens=200))
        while not any(one["call_id"] == "p/0" for one in (await executor.snapshot())["running"]):
            await asyncio.sleep(0.005)
        short = await reply(executor, name="r/0", max_tokens=2)
        assert short.report.finished_step < (await long).report.finished_step


async def test_a_call_that_is_broken_off_holds_nothing(executor: TransformersExecutor) -> None:
    """1. A stream is closed in the middle. 2. A call is cancelled. 3. The computed prompt is in the
    cache.
    """
    running = executor.generate(call(max_tokens=1000), stream=True)
    async with contextlib.aclosing(running):
        await anext(running)
        assert (await executor.snapshot())["running"][0]["call_id"] == "p/0"
    assert (await executor.aborted("p/0")).output_tokens >= 1
    task = asyncio.ensure_future(reply(executor, name="q/0", max_tokens=1000))
    while not (await executor.snapshot())["running"]:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    snapshot = await executor.snapshot()
    assert snapshot["running"] == snapshot["waiting"] == []
    assert (await reply(executor)).report.cached_tokens == len(PROMPT) - 1


async def test_a_call_that_is_cancelled_in_its_last_step_has_a_report(
    executor: TransformersExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_turn, ended, may_return = executor._take_turn, threading.Event(), threading.Event()

    def take_and_wait(*args: Any, **kwargs: Any) -> Any:
        step = take_turn(*args, **kwargs)
        ended.set()
        may_return.wait()
        return step

    monkeypatch.setattr(executor, "_take_turn", take_and_wait)
    # On a busy machine, the steps of a turn could take longer, and the turn would end in between.
    monkeypatch.setattr("agentrt.executors.transformers.executor._ALONE_S", 1e9)
    task = asyncio.ensure_future(reply(executor, max_tokens=3))
    await asyncio.to_thread(ended.wait)
    task.cancel()
    may_return.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await executor.aborted("p/0")).output_tokens == 3


async def test_no_report_is_kept_of_a_call_that_fails(
    executor: TransformersExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(type(executor.model), "extend", fail)
    with pytest.raises(EngineError, match="transformers failed: out of memory"):
        await reply(executor)
    assert await executor.aborted("p/0") == CallReport()


@pytest.mark.parametrize("failing", [1, 3])
async def test_the_text_of_a_call_that_failed_is_not_reused(
    executor: TransformersExecutor, failing: int
) -> None:
    """A forward pass fails between two layers, when only the first layer has cached its keys. The
    first pass computes the prompt, and the third computes the second token of the output.
    """
    expected = (await reply(executor)).token_ids
    executor.prefixes.entries.clear()
    passes = 0

    def fail_once(*args: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == failing:
            raise RuntimeError("out of memory")

    layer = executor.model._model.get_decoder().layers[1]
    hook = layer.register_forward_pre_hook(fail_once)
    try:
        with pytest.raises(EngineError, match="transformers failed: out of memory"):
            await reply(executor)
    finally:
        hook.remove()
    cached = (await executor.snapshot())["cached"]
    assert (await reply(executor)).token_ids == expected
    assert cached == []


# -- mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ids": ()}, "needs a prompt of at least one token id"),
        ({"ids": (5, 999_999)}, "unknown token id 999999"),
        (
            {"sampling": Sampling(constraint=Constraint("regex", "a("))},
            "the regex constraint of the output is not valid",
        ),
        ({"sampling": Sampling(allowed_token_ids=(7, -1))}, "unknown token id -1"),
        ({"sampling": Sampling(allowed_token_ids=())}, "allowed= is empty"),
        ({"sampling": Sampling(attention=64)}, "takes an Attention of agentrt.contexts, not 64"),  # type: ignore[arg-type]
        ({"max_tokens": 0}, "max_tokens is 0, .* at least 1"),
        ({"temperature": -1.0}, "temperature is -1; .* temperature at least 0"),
        ({"temperature": 1.0, "sampling": Sampling(top_p=1e-9 - 1)}, "top_p is -1; it must be"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p is 0; it must be above 0 and at most 1"),
        ({"sampling": Sampling(top_p=1.5)}, "top_p is 1.5; it must be above 0 and at most 1"),
        ({"sampling": Sampling(top_k=-2)}, "top_k is -2; it must be at least 1, or 0"),
        ({"sampling": Sampling(min_p=2.0)}, "min_p is 2; it must be from 0 to 1"),
        ({"sampling": Sampling(logprobs=-1)}, "logprobs is -1; it must be at least 0"),
        ({"sampling": Sampling(stop=("a", ""))}, "stop has an empty string; leave it out"),
        ({"sampling": Sampling(stop_token_ids=(5, -4))}, "stop_token_ids has .* token id -4"),
        ({"temperature": float("nan")}, "temperature is nan; .* temperature at least 0 and finite"),
        ({"seed": 2**80}, "call p/0: "),
        ({"sampling": Sampling(logits={"watermark": 1})}, r"no logits processors \(logits=\)"),
    ],
)
async def test_what_it_does_not_have_is_refused(
    executor: TransformersExecutor, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(CallRejectedError, match=said):
        await reply(executor, **fields)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
async def test_a_damaged_model_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    """A file that ends too early, as after an interrupted download."""
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    os.truncate(damaged / name, 500)
    executor = TransformersExecutor(str(damaged))
    with pytest.raises(ModelLoadError, match=r"cannot load model .*damaged.*--model takes a"):
        await executor.start(lambda message: None)
    await executor.close()


async def test_a_model_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    executor = TransformersExecutor(str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"cannot load model .*--model takes a folder"):
        await executor.start(lambda message: None)
    await executor.close()
    with pytest.raises(EngineDiedError, match="not running"):
        await reply(executor)
