"""Every program that fits ends, and nothing is preempted for a call that cannot start."""

from __future__ import annotations

import random
from concurrent.futures import Future
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import BLOCK_SIZE, HeadlessEngine, make_request, make_scheduler
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.core import Preempt
from agentrt.scheduler.policies import BUILT_IN
from agentrt.scheduler.state import MANY_CALLS
from tests.executors.vllm.every_kind import Elsewhere, Grammar, every_kind

DEFAULTS = SchedulerConfig.of_policy().to_dict()
POLICIES = sorted(BUILT_IN)
STEP_TOKENS = 256


class Watched(ProgramScheduler):
    """Notes for each preemption for a slot how many outputs of the call's last run are kept."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outputs_at_start: dict[str, int] = {}
        self.kept: list[int] = []

    def _call_started(self, request_id: str, scheduled: int, now: float) -> None:
        super()._call_started(request_id, scheduled, now)
        self.outputs_at_start[request_id] = self.requests[request_id].num_output_tokens

    def _preempt(self, decision: Preempt, now: float) -> None:
        call = decision.call
        self.kept.append(call.item.num_output_tokens - self.outputs_at_start[call.call_id])
        super()._preempt(decision, now)


def engine(
    settings: dict[str, Any], *, cls: Any = Watched, slots: int = 4, blocks: int = 2000, **more: Any
) -> HeadlessEngine:
    """Return an engine in which a step full of prompt tokens takes a tenth of a second longer."""
    scheduler = make_scheduler(
        cls,
        max_num_seqs=slots,
        blocks=blocks,
        settings=settings,
        max_num_batched_tokens=STEP_TOKENS,
        **more,
    )
    return HeadlessEngine(scheduler, step_s=lambda work: 0.02 + work.prefill_tokens / 1280)


def program(name: str, type: str = "t") -> dict[str, Any]:
    return {"agentrt": {"program_id": name, "program_type": type, "report": True}}


def prompt(seed: int, tokens: int) -> list[int]:
    return random.Random(seed).choices(range(1000, 30_000), k=tokens)


# -- a step has room for what begins -------------------------------------------------


class InVain(Watched):
    """Notes the steps in which calls were preempted for others, but no call began."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        preempted = len(self.kept)
        output = super().schedule(*args, **kwargs)
        began = output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids
        if len(self.kept) > preempted and not began:
            self.vain.append(len(self.kept))
        return output

    vain: list[int]


@pytest.mark.parametrize("blocks", [2000, 75], ids=["room", "little room"])
def test_nothing_is_preempted_while_prompts_in_parts_take_whole_steps(blocks: int) -> None:
    """A long prompt takes all tokens of four steps, and in the end most of the blocks."""
    settings = {"policy": "mlfq", "quanta": [0.1, 0.2, 0.4], "min_running_steps": 0}
    made = engine(settings, cls=InVain, slots=3, blocks=blocks)
    scheduler: Any = made.scheduler
    scheduler.vain = []
    for name in "ab":
        made.add(name, prompt(1, 40), 60, program(name))
    for _ in range(20):
        made.step()
    made.add("long", prompt(2, 4 * STEP_TOKENS - 20), 8, program("long"))
    made.step()
    for name in "cdef":
        made.add(name, prompt(3, 100), 8, program(name))
    made.run(2000)
    assert scheduler.vain == []
    assert scheduler.kept, "calls were preempted when there was room in a step"


# -- progress --------------------------------------------------------------------------


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("policy", POLICIES)
def test_programs_with_long_prompts_end_though_few_fit(policy: str, caching: bool) -> None:
    """The prefill of twelve calls takes longer than the first quantum, and there is memory for four
    and a half of them.
    """
    tokens, count = 8 * STEP_TOKENS, 12
    settings = {"policy": policy, "quanta": [0.25, 0.5, 1, 2, 4, 8]}
    blocks = int(4.5 * (tokens + 32) / BLOCK_SIZE)
    made = engine(settings, blocks=blocks, prefix_caching=caching)
    for number in range(count):
        made.add(f"c{number}", prompt(number, tokens), 20, program(f"p{number}"))
    steps = made.run(1000)
    computed = sum(sum(step.scheduled.values()) for step in steps)
    assert computed <= 4 * count * (tokens + 20)
    assert all(kept >= 1 for kept in made.scheduler.kept)


@pytest.mark.parametrize("admission", ["off", "cap", "memory"])
@pytest.mark.parametrize("retention", ["lru", "ttl", "cost"])
@pytest.mark.parametrize("policy", ["atlas", "plas", "mlfq", "adaptive", "round-robin"])
def test_what_a_call_loses_to_preemptions_is_bounded(
    policy: str, retention: str, admission: str
) -> None:
    """In random programs, a call keeps at least one token of each run that a preemption for a slot
    ends, and all calls end.
    """
    draw = random.Random(f"{policy} {retention} {admission}")
    settings = {
        "policy": policy,
        "retention": retention,
        "admission": admission,
        "admission_cap": 3,
        "quanta": [0.1, 0.2, 0.4, 0.8],
        "min_running_steps": 0,
    }
    made = engine(settings, slots=3, blocks=160)
    scheduler: Any = made.scheduler
    for number in range(30):
        tokens, outputs = draw.randint(16, 1900), draw.randint(1, 40)
        made.add(f"c{number}", prompt(number, tokens), outputs, program(f"p{number}"))
        for _ in range(draw.randint(0, 12)):
            made.step()
    made.run(20_000)
    assert all(kept >= 1 for kept in scheduler.kept)
    assert scheduler.kept or policy in ("adaptive", "plas", "round-robin") or admission != "off"


def test_a_resumed_call_is_served_for_three_times_its_prefill() -> None:
    """Without a prefix cache, a resumed call is served for its prefill and three times as long
    before its next preemption.
    """
    made = engine(
        {"policy": "mlfq", "quanta": [0.05, 0.05, 0.05], "min_running_steps": 0},
        slots=1,
        prefix_caching=False,
    )
    scheduler: Any = made.scheduler
    made.add("long", prompt(0, 1024), 2000, program("long"))
    call = scheduler.core.calls["long"]
    runs: list[tuple[float, float]] = []
    for number in range(40):
        made.add(f"s{number}", prompt(number, 16), 2, program(f"s{number}"))
        before = call.preemptions
        for _ in range(24):
            made.step()
            if call.preemptions > before:
                runs.append((call.began_served_s, call.served_s))
                before = call.preemptions
    assert len(runs) > 2
    prefill_s = 1024 / 1280
    assert all(end - start >= 4 * prefill_s for start, end in runs[1:])


def test_a_stalled_step_does_not_make_a_type_long() -> None:
    """A step of a minute hits a call of the short type. Short calls still precede long calls."""
    made = engine(DEFAULTS, slots=1)
    usual = made.step_s
    for number, (kind, outputs) in enumerate([("short", 4), ("long", 60)] * 3):
        made.add(f"h{number}", prompt(number, 200), outputs, program(f"h{number}", kind))
        made.run()
        made.scheduler.control("ends", [f"h{number}"])
    made.step_s = lambda work: 60.0 + usual(work)
    made.add("stalled", prompt(9, 200), 4, program("stalled", "short"))
    made.step()
    made.step_s = usual
    made.run()
    made.scheduler.control("ends", ["stalled"])
    made.add("first", prompt(10, 200), 60, program("first", "long"))
    made.step()
    for name, outputs in (("long", 60), ("short", 4)):
        made.add(name, prompt(11, 200), outputs, program(name, name))
    calls = made.scheduler.core.calls
    assert calls["short"].level < calls["long"].level


# -- calls that cannot start -----------------------------------------------------------


def taught(settings: dict[str, Any], **more: Any) -> HeadlessEngine:
    """Return an engine with two long calls in its two slots; type u is known to be short."""
    made = engine(settings, slots=2, **more)
    for number in range(12):
        kind, outputs = ("t", 400) if number % 2 else ("u", 2)
        made.add(f"h{number}", prompt(number, 30), outputs, program(f"h{number}", kind))
    made.run()
    for number in range(12):
        made.scheduler.control("ends", [f"h{number}"])
    for number in range(2):
        made.add(f"old{number}", prompt(100 + number, 300), 3000, program(f"old{number}"))
    for _ in range(100):
        made.step()
    made.scheduler.kept.clear()
    return made


def short(made: HeadlessEngine, name: str, **more: Any) -> Any:
    return make_request(
        name,
        prompt(500, 20),
        BLOCK_SIZE,
        max_tokens=4,
        ignore_eos=True,
        extra_args=program(name, "u"),
        **more,
    )


def blocked_by_grammar(made: HeadlessEngine, name: str) -> Any:
    request = short(made, name, structured_outputs=StructuredOutputsParams(json={"type": "object"}))
    request.structured_output_request.grammar = Future()
    return request


def blocked_by_adapter(made: HeadlessEngine, name: str) -> Any:
    for running in made.scheduler.running:
        running.lora_request = LoRARequest("a", 1, "/a")
    made.scheduler.lora_config = SimpleNamespace(max_loras=1)
    request = short(made, name)
    request.lora_request = LoRARequest("b", 2, "/b")
    return request


@pytest.mark.parametrize(
    ("settings", "blocked", "caching"),
    [
        (settings, blocked, bool(policy % 2) is bool(reason))  # every two of these values meet
        for policy, settings in enumerate([*({"policy": name} for name in POLICIES), DEFAULTS])
        for reason, blocked in enumerate([blocked_by_grammar, blocked_by_adapter])
    ],
)
def test_no_running_call_is_preempted_for_one_that_cannot_start(
    settings: dict[str, Any], blocked: Any, caching: bool
) -> None:
    made = taught(settings, prefix_caching=caching)
    running = {request.request_id for request in made.scheduler.running}
    for number in range(2):
        made.submit(blocked(made, f"new{number}"))
    for _ in range(200):
        made.step()
    assert not made.scheduler.kept
    assert {request.request_id for request in made.scheduler.running} == running


@pytest.mark.parametrize("settings", [{"policy": "fcfs"}, {"policy": "atlas"}, DEFAULTS])
def test_no_adapter_joins_those_of_running_calls_that_a_step_leaves_out(
    settings: dict[str, Any],
) -> None:
    """A call's prompt needs more blocks than are free, and no block can be freed while a step is in
    flight. So the step leaves the call out, and has room for a small call with another adapter.
    """
    made = engine(settings, blocks=70)
    scheduler: Any = made.scheduler
    scheduler.lora_config = SimpleNamespace(max_loras=1)
    tokens = prompt(1, 60 * BLOCK_SIZE)
    made.submit(make_request("large", tokens, BLOCK_SIZE, lora=LoRARequest("a", 1, "/a")))
    made.step()
    made.submit(short(made, "small", lora=LoRARequest("b", 2, "/b")))
    blocks = scheduler.kv_cache_manager.block_pool
    held = blocks.get_new_blocks(blocks.get_num_free_blocks() - 2)
    scheduler._request_blocks_can_be_freed = lambda request: False
    assert made.step().scheduled == {}
    assert [request.request_id for request in scheduler.running] == ["large"]
    blocks.free_blocks(held)
    del scheduler._request_blocks_can_be_freed
    made.run(100)
    assert made.requests == {}


@pytest.mark.parametrize("policy", ["atlas", "plas", "mlfq"])
def test_no_running_call_is_preempted_if_a_larger_call_would_block_its_slot(policy: str) -> None:
    """A preempted call's adapter leaves a place for that of the large call, which is first in the
    queue, and for which there is no memory: then nobody could use the slot.
    """
    made = taught({"policy": policy}, blocks=150)
    for number, request in enumerate(made.scheduler.running):
        request.lora_request = LoRARequest(f"a{number}", 1 + number, "/a")
    made.scheduler.lora_config = SimpleNamespace(max_loras=2)
    running = {request.request_id for request in made.scheduler.running}
    large = make_request(
        "large",
        prompt(600, 130 * BLOCK_SIZE),
        BLOCK_SIZE,
        max_tokens=4,
        ignore_eos=True,
        extra_args=program("large", "u"),
    )
    large.lora_request = LoRARequest("b", 3, "/b")
    made.submit(large)
    made.submit(short(made, "small"))
    for _ in range(30):
        made.step()
    assert not made.scheduler.kept
    assert {request.request_id for request in made.scheduler.running} == running


@pytest.mark.parametrize("settings", [{"policy": "atlas"}, DEFAULTS], ids=["atlas", "default"])
def test_a_call_whose_grammar_is_ready_preempts_as_any_other(settings: dict[str, Any]) -> None:
    made = taught(settings)
    request = blocked_by_grammar(made, "new")
    made.submit(request)
    for _ in range(20):
        made.step()
    assert not made.scheduler.kept
    request.structured_output_request._grammar.set_result(Grammar(False))
    ended = [name for _ in range(20) for name in made.step().finished]
    assert ended == ["new"]
    assert len(made.scheduler.kept) == 1


@pytest.mark.parametrize("policy", ["atlas", "plas", "mlfq", "adaptive"])
def test_no_call_is_preempted_again_and_again_for_one_whose_cache_is_elsewhere(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connector never knows what it has: the call is asked about once, and then passed over."""
    made = every_kind(
        Watched,
        random.Random(3),
        connector="recompute",
        drafts=0,
        settings={"policy": policy, "min_running_steps": 0, "quanta": [0.1, 0.2]},
    )
    scheduler: Any = made.scheduler

    def never(self: Any, request: Any, computed: int) -> tuple[int | None, bool]:
        return (None, False) if request.request_id.startswith("wait") else (0, False)

    monkeypatch.setattr(Elsewhere, "get_num_new_matched_tokens", never)
    made.step_s = lambda work: 0.1
    slots = scheduler.max_num_running_reqs
    for number in range(slots):
        made.add(f"plain-{number}", prompt(number, 20), 60, program(f"old{number}"))
    for _ in range(20):
        made.step()
    scheduler.kept.clear()
    for number in range(2):
        made.add(f"wait-{number}", prompt(90 + number, 20), 2, program(f"new{number}"))
    for _ in range(30):
        made.step()
    assert len(scheduler.kept) <= 2


@pytest.mark.parametrize("settings", [*({"policy": name} for name in POLICIES), DEFAULTS])
def test_a_call_whose_load_failed_holds_up_no_call_that_has_loaded(
    settings: dict[str, Any],
) -> None:
    """Two loads and a call whose cache is handed on fill the cache. The load of the first call in
    vLLM's queue fails, and its whole prompt needs a block more than the load had: it fits only
    after the call behind it.
    """
    made = every_kind(
        ProgramScheduler,
        random.Random(3),
        connector="recompute",
        drafts=0,
        settings=settings,
        blocks=9 + 3 + 1 + 1,
    )
    first, other = "wait-first", "wait-other"
    due: set[str] = set()

    def arrive(connector: Any) -> KVConnectorOutput:
        came = connector.coming & due
        connector.coming -= came
        lost = came & {first} if other in came else set()  # only once
        return KVConnectorOutput(finished_recving=came, failed_recving=lost)

    made._transfers = arrive  # type: ignore[method-assign]
    made.add(first, prompt(1, 3 * BLOCK_SIZE + 13), 2, program("first"))
    made.add(other, prompt(2, 9 * BLOCK_SIZE + 6), 2, program("other"))
    for _ in range(4):
        made.step()
    made.add("send-on", prompt(3, 8), 2, program("sends"))
    ended = [name for _ in range(9) for name in made.step().finished]
    assert ended == ["send-on"]
    due.update((first, other))
    ended = [name for _ in range(60) for name in made.step().finished]
    assert sorted(ended) == [first, other]


@pytest.mark.parametrize(
    "settings",
    [
        DEFAULTS,
        {"policy": "fcfs", "admission": "cap", "admission_cap": 2},
        {"policy": "adaptive"},
    ],
    ids=["default", "cap", "off"],
)
def test_programs_whose_grammars_are_compiled_keep_nobody_out(settings: dict[str, Any]) -> None:
    made = engine(settings, slots=8, blocks=100)
    for number in range(4):
        request = blocked_by_grammar(made, f"g{number}")
        request.prompt_token_ids = prompt(number, 500)
        made.submit(request)
        made.step()
    made.add("plain", prompt(9, 500), 4, program("plain"))
    assert "plain" in [name for _ in range(10) for name in made.step().finished]


def test_members_whose_grammars_are_compiled_leave_room_for_others() -> None:
    """The contexts of four members fill the cache. A call runs, and seven slots are free."""
    made = engine(DEFAULTS, slots=8, blocks=150)
    made.add("long", prompt(9, 30), 3000, program("long"))
    for number in range(4):
        made.add(f"first{number}", prompt(number, 500), 4, program(f"g{number}"))
    while len(made.requests) > 1:
        made.step()
    for number in range(4):
        request = make_request(
            f"second{number}",
            prompt(number, 500) + prompt(10 + number, 40),
            BLOCK_SIZE,
            max_tokens=4,
            ignore_eos=True,
            extra_args=program(f"g{number}"),
            structured_outputs=StructuredOutputsParams(json={"type": "object"}),
        )
        request.structured_output_request.grammar = Future()
        made.submit(request)
    made.add("plain", prompt(99, 500), 4, program("plain", "u"))
    assert "plain" in [name for _ in range(200) for name in made.step().finished]
    for number in range(4):
        grammar = made.requests[f"second{number}"].structured_output_request._grammar
        grammar.set_result(Grammar(False))
    ended = [name for _ in range(100) for name in made.step().finished]
    assert sorted(ended) == [f"second{number}" for number in range(4)]


def test_contexts_that_were_in_an_emptied_cache_take_no_room() -> None:
    """Four programs fit with their contexts. Their next calls compute these again, once."""
    made = engine(DEFAULTS, slots=8, blocks=150)
    for number in range(4):
        made.add(f"first{number}", prompt(number, 500), 4, program(f"p{number}"))
    made.run(200)
    made.scheduler.reset_prefix_cache()
    for number in range(4):
        made.add(f"second{number}", prompt(number, 500), 100, program(f"p{number}"))
    for _ in range(12):
        made.step()
    assert len(made.scheduler.running) == 4


def adapter(number: int) -> LoRARequest:
    return LoRARequest(f"adapter{number}", number, f"/{number}")


def with_adapter(
    made: HeadlessEngine, name: str, number: int, tokens: list[int], out: int, places: int = 1
) -> Any:
    """Submit a call with a LoRA adapter to an engine with ``places`` for adapters."""
    made.scheduler.lora_config = SimpleNamespace(max_loras=places)
    request = make_request(
        name, tokens, BLOCK_SIZE, max_tokens=out, ignore_eos=True, extra_args=program(name)
    )
    request.lora_request = adapter(number)
    made.submit(request)
    return request


@pytest.mark.parametrize(
    "settings",
    [DEFAULTS, {"policy": "fcfs", "admission": "memory"}, {"policy": "adaptive"}],
    ids=["default", "fcfs", "off"],
)
def test_programs_whose_adapters_do_not_fit_keep_nobody_out(settings: dict[str, Any]) -> None:
    """Their prompts would fill the cache. All of them end once the adapter fits."""
    made = engine(settings, slots=8, blocks=150)
    with_adapter(made, "long", 1, prompt(9, 30), 500)
    made.step()
    for number in range(4):
        with_adapter(made, f"other{number}", 2, prompt(number, 500), 4)
        made.step()
    for number in range(4):
        made.add(f"plain{number}", prompt(10 + number, 500), 4, program(f"plain{number}", "u"))
    ended = [name for _ in range(200) for name in made.step().finished]
    assert sorted(ended) == [f"plain{number}" for number in range(4)]
    ended = [name for _ in range(1000) for name in made.step().finished]
    assert sorted(ended) == ["long", *(f"other{number}" for number in range(4))]


@pytest.mark.parametrize("settings", [DEFAULTS, {"policy": "adaptive"}, {"policy": "atlas"}])
def test_a_stream_of_calls_does_not_keep_an_adapter_out(settings: dict[str, Any]) -> None:
    """At any time four calls with another adapter are there, as under stock, which never ends."""
    made = engine(settings, slots=8)
    for number in range(4):
        with_adapter(made, f"a{number}", 1, prompt(number, 30), 20 + 3 * number)
    made.step()
    with_adapter(made, "kept out", 2, prompt(9, 30), 4)
    after = 0
    for number in range(4, 400):
        while len(made.requests) == 5:
            if "kept out" in made.step().finished:
                return
        after += 1
        with_adapter(made, f"a{number}", 1, prompt(number, 30), 20)
    raise AssertionError(f"the call waited while {after} others ran")


@pytest.mark.parametrize("settings", [DEFAULTS, {"policy": "atlas", "beta": 0.5}])
def test_two_calls_whose_adapters_do_not_fit_both_get_their_turn(settings: dict[str, Any]) -> None:
    """Streams of calls with two adapters leave no place. When the second stream ends, the first of
    the two calls gets its place, and then a stream of calls with the same adapter follows.
    """
    made = engine(settings, slots=32)
    numbers, ended = count(), set[str]()

    def step(*streams: str) -> None:
        for stream in streams:
            while sum(name.startswith(stream) for name in made.requests) < 10:
                number = next(numbers)
                name, loaded, out = f"{stream}{number}", "abc".index(stream) + 1, 10 + number % 13
                with_adapter(made, name, loaded, prompt(number, 30), out, 2)
        ended.update(made.step().finished)

    step("a", "b")
    step("a", "b")
    with_adapter(made, "first", 3, prompt(10_001, 30), 40, 2)
    step("a", "b")
    with_adapter(made, "second", 4, prompt(10_002, 30), 4, 2)
    first = made.scheduler.core.calls["first"]
    for _ in range(400):
        step(*("a" if first.queued else "ac"))
        if "second" in ended:
            return
    raise AssertionError(f"the second call waited while {len(ended)} others ran")


def test_a_call_that_has_loaded_starts_before_one_that_starves_if_nothing_runs() -> None:
    """The starving call may wait for its blocks, or be behind a call that does."""
    made = engine({"policy": "adaptive"}, slots=8)
    with_adapter(made, "a", 1, prompt(1, 30), 2000)
    made.step()
    with_adapter(made, "kept out", 2, prompt(2, 30), 4)
    queue, places = made.scheduler.core.queue, made.scheduler._adapters
    for _ in range(200):
        if queue.starving is not None:
            break
        made.step()
    loaded = with_adapter(made, "loaded", 1, prompt(3, 30), 4)
    made.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert not places.fit(loaded)
    assert made.scheduler.kv_cache_manager.allocate_slots(loaded, BLOCK_SIZE) is not None
    assert places.fit(loaded)


def starving(made: HeadlessEngine, name: str) -> None:
    """Step until the call starves for its adapter."""
    for _ in range(400):
        call = made.scheduler.core.queue.starving
        if call is not None:
            assert call.call_id == name
            return
        made.step()
    raise AssertionError(f"{name} never starved")


@pytest.mark.parametrize("settings", [DEFAULTS, {"policy": "adaptive"}, {"policy": "plas"}])
def test_a_pause_that_waits_ends_although_a_call_starves_for_its_adapter(
    settings: dict[str, Any],
) -> None:
    """The starving call may not run then, so that it closes no adapter for a preempted call."""
    made = engine({"beta": 0.5, **settings}, slots=8)
    with_adapter(made, "a", 1, prompt(1, 30), 300)
    made.step()
    with_adapter(made, "kept out", 2, prompt(2, 30), 4)
    starving(made, "kept out")
    made.scheduler.reset_prefix_cache(reset_running_requests=True)
    made.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert [name for _ in range(400) for name in made.step().finished] == ["a"]
    made.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert [name for _ in range(40) for name in made.step().finished] == ["kept out"]


def test_no_call_is_preempted_for_one_whose_adapter_it_holds_open() -> None:
    """The adapter is open only because the running call used it before another call starved."""
    made = engine({"policy": "adaptive", "min_running_steps": 0}, slots=8)
    with_adapter(made, "a", 1, prompt(1, 30), 2000)
    made.step()
    with_adapter(made, "kept out", 2, prompt(2, 30), 4)
    starving(made, "kept out")
    core, view = made.scheduler.core, made.scheduler._view
    for name, number in (("same", 1), ("starves", 2)):
        request = with_adapter(made, name, number, prompt(3, 30), 4)
        assert made.scheduler._adapters.fit(request) is (name == "same")
        assert not view.can_start(core.calls[name])
    made.add("plain", prompt(4, 30), 4, program("plain"))
    assert view.can_start(core.calls["plain"])


def test_calls_with_an_adapter_that_was_there_before_go_on() -> None:
    """One of its calls is long. To keep others out would not let the waiting adapter in sooner."""
    made = engine(DEFAULTS, slots=8)
    with_adapter(made, "long", 1, prompt(9, 30), 2000)
    made.step()
    with_adapter(made, "kept out", 2, prompt(8, 30), 4)
    for number in range(50):
        with_adapter(made, f"a{number}", 1, prompt(number, 30), 4)
        assert f"a{number}" in [name for _ in range(12) for name in made.step().finished]
    assert "kept out" in made.requests


def steps_of_short_calls(settings: dict[str, Any]) -> int:
    """Return the steps for 400 programs of one short call that never say that they end. Sixteen are
    there at any time, and ten contexts fit into the cache.
    """
    made, calls, steps = engine(settings, slots=8, blocks=80), 0, 0
    while calls < 400:
        while len(made.requests) < 16:
            made.add(f"c{calls}", prompt(calls, 120), 1, program(f"c{calls}"))
            calls += 1
        made.step()
        steps += 1
    return steps


def test_contexts_that_are_no_longer_held_do_not_leave_room_in_a_step_unused() -> None:
    alone = steps_of_short_calls({**DEFAULTS, "admission": "off"})
    assert steps_of_short_calls(DEFAULTS) < 1.3 * alone


# -- programs that never end -------------------------------------------------------------


class Proxy:
    """A program that has a number of calls at any time, as if it gave all its clients one id."""

    def __init__(self, made: HeadlessEngine, name: str, calls: int, tokens: int) -> None:
        self._made, self._name, self._tokens = made, name, tokens
        self._names: set[str] = set()
        for _ in range(calls):
            self._call()

    def _call(self) -> None:
        name = f"{self._name}.{len(self._names)}"
        self._names.add(name)
        tokens = prompt(len(self._names), self._tokens)
        self._made.add(name, tokens, 30, program(self._name))

    def goes_on(self, ended: str) -> bool:
        """Make another call if one of this program's has ended. Return whether it has."""
        if ended in self._names:
            self._call()
        return ended in self._names


def test_a_program_with_more_calls_than_fit_does_not_keep_others_out_for_ever() -> None:
    made = engine(DEFAULTS, slots=8, blocks=500)
    proxy = Proxy(made, "proxy", 20, 1500)
    for _ in range(100):
        made.step()
    made.add("other0", prompt(1, 330), 4, program("other0", "u"))
    others = before = 0
    for number in range(4000):
        for name in made.step().finished:
            if proxy.goes_on(name):
                before += others == 0
            else:
                others += 1
                other = f"other{others}"
                made.add(other, prompt(number, 330), 4, program(other, "u"))
        if others == 20:
            break
    assert others == 20
    assert before < 2 * MANY_CALLS


@pytest.mark.parametrize("settings", [DEFAULTS, {"policy": "adaptive"}])
def test_two_programs_that_never_end_share_the_engine(settings: dict[str, Any]) -> None:
    """The first was there before, so that it has fewer calls that have not begun."""
    made = engine(settings, slots=8)
    proxies = [Proxy(made, "a", 16, 300)]
    made.step()
    proxies.append(Proxy(made, "b", 16, 300))
    ended = [0, 0]
    for _ in range(6000):
        for name in made.step().finished:
            for number, proxy in enumerate(proxies):
                ended[number] += proxy.goes_on(name)
    assert min(ended) > 0.3 * sum(ended)


def test_a_promoted_call_that_cannot_start_leaves_its_promotion_to_others() -> None:
    """Its adapter does not fit. The lane has only one place, which the next oldest call gets."""
    made = engine({"policy": "adaptive", "lane": 0.3}, slots=2)
    scheduler: Any = made.scheduler
    scheduler.lora_config = SimpleNamespace(max_loras=1)
    for number in range(2):
        made.add(f"old{number}", prompt(number, 30), 3000, program(f"old{number}"))
        made.requests[f"old{number}"].lora_request = LoRARequest("a", 1, "/a")
    made.step()
    stuck = short(made, "stuck")
    stuck.lora_request = LoRARequest("b", 2, "/b")
    made.submit(stuck)
    made.abort("old1")
    for _ in range(5):
        made.step()
    made.add("later", prompt(7, 30), 50, program("later"))
    for _ in range(400):
        made.step()
    assert not scheduler.core.calls["stuck"].promoted
    assert "later" not in made.requests


# -- paused ----------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
@pytest.mark.parametrize("settings", [*({"policy": name} for name in POLICIES), DEFAULTS])
def test_nothing_is_preempted_promoted_or_admitted_while_the_engine_is_paused(
    settings: dict[str, Any], paused: PauseState
) -> None:
    made = taught(settings)
    scheduler = made.scheduler
    running = [request.request_id for request in scheduler.running]
    for number in range(3):
        made.add(f"new{number}", prompt(number, 20), 4, program(f"new{number}", "u"))
    scheduler.set_pause_state(paused)
    before = [call.promotions for call in scheduler.core.calls.values()]
    for _ in range(50):
        made.step()
        made.now += 0.5
    assert [request.request_id for request in scheduler.running] == running
    assert not scheduler.kept
    assert [call.promotions for call in scheduler.core.calls.values()] == before
    scheduler.set_pause_state(PauseState.UNPAUSED)
    assert len(made.run(20_000)) > 0
