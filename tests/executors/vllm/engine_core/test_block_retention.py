"""Retention in the engine core: which free blocks go first, and what is counted as lost."""

from __future__ import annotations

from typing import Any

import pytest
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.v1.request import Request

from agentrt.errors import ConfigError
from agentrt.executors.vllm._compat import pool
from agentrt.executors.vllm.engine_core.block_retention import ProtectedFreeQueue
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import (
    BLOCK_SIZE,
    HeadlessEngine,
    _block_hasher,
    make_scheduler,
)
from agentrt.scheduler.admission.memory import WorkingSet
from tests.executors.vllm.storms import check_free_queue
from tests.lab.engine.recording import Recorder
from tests.lab.engine.replaying import replay

pytestmark = pytest.mark.engine


def engine(
    retention: str = "cost", *, blocks: int = 31, slots: int = 4, policy: str = "fcfs"
) -> HeadlessEngine:
    scheduler = make_scheduler(
        ProgramScheduler,
        max_num_seqs=slots,
        blocks=blocks,
        settings={"policy": policy, "retention": retention, "retention_ttl": 30.0},
    )
    return HeadlessEngine(scheduler)


def ours(engine: HeadlessEngine) -> ProgramScheduler:
    assert isinstance(engine.scheduler, ProgramScheduler)
    return engine.scheduler


def queue(engine: HeadlessEngine) -> ProtectedFreeQueue:
    found = ours(engine).retention.queue
    assert found is not None
    check_free_queue(found)
    return found


def of(program: str, **more: Any) -> dict[str, Any]:
    return {"agentrt": {"program_id": program, "report": True, **more}}


def text(seed: int, blocks: int) -> list[int]:
    return [1000 * seed + n for n in range(16 * blocks)]


def call(
    e: HeadlessEngine, name: str, prompt: list[int], extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Let a call run to its end, and return its report."""
    e.add(name, prompt, 1, of(name.split("/", maxsplit=1)[0]) if extra is None else extra)
    reports = {k: v for step in e.run() for k, v in step.reports.items()}
    return dict(reports[name])


def test_a_program_in_a_tool_keeps_its_prefix_while_others_pass() -> None:
    """Of 30 blocks, a has 10. Then 4 other programs with 9 blocks each come and end."""
    lost = {}
    for retention in ("lru", "cost"):
        e = engine(retention)
        call(e, "a/1", text(1, 10))
        ours(e).control("boundary", [("a", "tool", "build")])
        for n in range(4):
            call(e, f"other{n}/1", text(10 + n, 9))
            ours(e).control("ends", [f"other{n}"])
        report = call(e, "a/2", [*text(1, 10), *text(2, 1)])
        assert report["returned_tokens"] == 160
        lost[retention] = report["lost_tokens"]
    assert lost == {"lru": 160, "cost": 0}


def test_an_unknown_notification_is_refused_by_name() -> None:
    e = engine()
    call(e, "a/1", text(1, 2))
    with pytest.raises(ConfigError, match="unknown notification 'paused' of program a"):
        ours(e).control("boundary", [("a", "paused", "")])


def test_protected_blocks_give_way_when_nothing_else_fits() -> None:
    e = engine()
    call(e, "a/1", text(1, 10))
    assert queue(e).unprotected == 20
    report = call(e, "b/1", text(2, 29))
    assert report["prompt_tokens"] == 29 * 16
    assert queue(e).yielded == 9
    report = call(e, "a/2", [*text(1, 10), 5])
    assert report["lost_tokens"] == 144


def test_an_end_releases_at_once_and_a_session_stays() -> None:
    e = engine()
    call(e, "a/1", text(1, 4))
    call(e, "b/1", text(2, 4), of("b", session="s"))
    assert queue(e).unprotected == 30 - 8
    ours(e).control("ends", ["a"])
    ours(e).control("ends", ["b"])
    assert queue(e).unprotected == 30 - 4
    report = call(e, "c/1", [*text(2, 4), 5], of("c", session="s"))
    assert (report["returned_tokens"], report["lost_tokens"]) == (64, 0)


def test_a_prompt_by_another_adapter_is_another_prefix() -> None:
    """A program's context identifies its blocks by all that they hash: tokens, adapter and
    images.
    """
    e, reports = engine(), []
    for number, adapter in enumerate(["poet", "coder", "poet"]):
        request = Request(
            f"a/{number}",
            text(1, 4),
            SamplingParams(max_tokens=1, ignore_eos=True, extra_args=of("a")),
            None,
            lora_request=LoRARequest(adapter, 1 + number % 2, f"/{adapter}"),
            block_hasher=_block_hasher(BLOCK_SIZE),
        )
        e.submit(request)
        reports += [report for step in e.run() for report in step.reports.values()]
        queue(e)
    assert [report["returned_tokens"] for report in reports] == [0, 0, 48]
    assert [report["cached_tokens"] for report in reports] == [0, 0, 48]


def test_requests_without_a_program_are_not_protected() -> None:
    e = engine()
    e.add("plain", text(1, 5), 2)
    e.run()
    assert queue(e).unprotected == 30
    assert not [*queue(e).order.in_order(0.0)]


@pytest.mark.parametrize(("common", "claimed"), [(0, 2 * 10 + 2), (8, 2 * 10 - 8 + 2)])
def test_what_branches_have_in_common_is_claimed_once(common: int, claimed: int) -> None:
    """Each branch has 10 blocks, and one more for its output, of which nothing is known yet."""
    settings = {"policy": "fcfs", "retention": "cost", "admission": "memory"}
    made = make_scheduler(ProgramScheduler, max_num_seqs=4, blocks=101, settings=settings)
    e = HeadlessEngine(made)
    for n in (1, 2):
        e.add(f"p/{n}", [*text(9, common), *text(n, 10 - common)], 40, of("p"))
    e.step()
    admission = ours(e).core.admission
    assert isinstance(admission, WorkingSet)
    assert admission.claimed == claimed


def test_a_branch_that_ended_goes_before_what_others_used_since() -> None:
    """Of 30 blocks, p's two branches have 8 each, and b has 8. p continues one, and c needs 7."""
    e = engine()
    for n in (1, 2):
        e.add(f"p/{n}", text(n, 8), 1, of("p"))
    e.run()
    e.now += 200.0
    call(e, "b/1", text(3, 8))
    e.add("p/3", [*text(2, 8), *text(4, 1)], 40, of("p"))
    e.add("c/1", text(5, 7), 1, of("c"))
    assert {k: v["lost_tokens"] for step in e.run() for k, v in step.reports.items()} == {
        "p/3": 0,
        "c/1": 0,
    }
    assert call(e, "b/2", [*text(3, 8), 5])["lost_tokens"] == 0
    assert call(e, "p/4", [*text(1, 8), 5])["lost_tokens"] > 0


def test_a_shared_prefix_counts_once_and_outlives_its_first_user() -> None:
    e = engine()
    system = text(9, 3)
    call(e, "a/1", [*system, *text(1, 2)])
    call(e, "b/1", [*system, *text(2, 2)])
    assert queue(e).unprotected == 30 - 3 - 2 - 2
    ours(e).control("ends", ["a"])
    ours(e).control("ends", ["b"])
    assert queue(e).unprotected == 30 - 3
    for n in range(3):
        call(e, f"c{n}/1", text(20 + n, 9))
        ours(e).control("ends", [f"c{n}"])
    assert call(e, "d/1", [*system, 5])["cached_tokens"] == 48


def test_a_block_that_was_handed_out_again_has_a_new_owner() -> None:
    e = engine(blocks=11)
    call(e, "a/1", text(1, 9))
    call(e, "b/1", text(2, 9))
    assert all(not owner.shared for owner in queue(e).order.in_order(e.now))


def test_resets_protect_nothing_and_lose_nothing() -> None:
    e = engine()
    call(e, "a/1", text(1, 5))
    assert ours(e).reset_prefix_cache()
    assert queue(e).unprotected == 30
    report = call(e, "a/2", text(1, 5))
    assert (report["cached_tokens"], report["returned_tokens"], report["lost_tokens"]) == (0, 0, 0)


class KeepsItsCache:
    """A connector that cannot empty its cache."""

    def reset_cache(self) -> bool:
        return False


def test_a_reset_counts_although_the_connector_keeps_its_cache() -> None:
    e = engine()
    call(e, "a/1", text(1, 5))
    scheduler: Any = ours(e)
    scheduler.connector = KeepsItsCache()
    assert not scheduler.reset_prefix_cache(reset_connector=True)
    scheduler.connector = None
    assert queue(e).unprotected == 30
    report = call(e, "a/2", text(1, 5))
    assert (report["cached_tokens"], report["returned_tokens"], report["lost_tokens"]) == (0, 0, 0)


def test_ttl_protects_for_its_time() -> None:
    e = engine("ttl")
    call(e, "a/1", text(1, 10))
    e.now += 31.0
    call(e, "b/1", text(2, 2))
    assert queue(e).unprotected == 28
    assert call(e, "a/2", [*text(1, 10), 5])["lost_tokens"] == 0


def test_settings_change_while_the_engine_lives() -> None:
    e = engine()
    call(e, "a/1", text(1, 5))
    ours(e).control("configure", {"policy": "fcfs", "retention": "lru"})
    blocks = ours(e).kv_cache_manager.block_pool.free_block_queue
    assert type(blocks) is pool.FreeKVCacheBlockQueue
    assert len(blocks.get_all_free_blocks()) == blocks.num_free_blocks == 30
    ours(e).control("configure", {"policy": "fcfs", "retention": "ttl"})
    call(e, "a/2", text(1, 5))
    assert queue(e).unprotected == 25
    with pytest.raises(ConfigError, match="retention"):
        ours(e).control("configure", {"retention": "no"})


def test_the_free_blocks_are_walked_in_the_order_of_eviction() -> None:
    e = engine(blocks=11)
    call(e, "a/1", text(1, 3))
    order = queue(e).get_all_free_blocks()
    assert list(queue(e).iter_blocks_after(None)) == order
    assert list(queue(e).iter_blocks_after(order[4])) == order[5:]
    assert [queue(e).popleft() for _ in range(10)] == order
    with pytest.raises(ValueError, match="No free blocks"):
        queue(e).popleft()


def test_a_recorded_run_with_retention_is_replayed() -> None:
    events: list[Any] = []
    e = engine()
    recorder = Recorder(ours(e), lambda event: events.append(dict(event)))
    recorder.attach()
    for turn in range(3):
        for name in ("a", "b", "c"):
            call(e, f"{name}/{turn}", text(ord(name), 8 + turn))
            ours(e).control("boundary", [(name, "tool", "grep")])
    recorder.detach()
    result = replay(events)
    assert result.difference is None
    assert result.calls == 9


def test_what_a_program_drops_goes_before_what_it_holds() -> None:
    """Two calls have four blocks in common. First the one call is dropped, and then the other."""
    e = engine()
    trunk = text(1, 4)
    call(e, "a/1", [*trunk, *text(2, 6)], of("a", call_id="a/1"))
    call(e, "a/2", [*trunk, *text(3, 5)], of("a", call_id="a/2"))
    assert queue(e).protected == 4 + 6 + 5
    ours(e).control("boundary", [("a", "dropped", "a/1", 70)])
    assert queue(e).protected == 4 + 5
    call(e, "b/1", text(4, 20))
    report = call(e, "a/3", [*trunk, *text(3, 5), 7], of("a", call_id="a/3"))
    assert report["lost_tokens"] == 0
    ours(e).control("boundary", [("a", "dropped", "a/3", 0), ("a", "dropped", "unknown", 0)])
    assert ours(e).control("snapshot", None)["protected_blocks"] == 20  # those of b


def test_what_another_program_uses_is_not_dropped() -> None:
    e = engine()
    for name in ("a", "b"):
        call(e, f"{name}/1", text(1, 4), of(name, call_id=f"{name}/1"))
    ours(e).control("boundary", [("a", "dropped", "a/1", 0)])
    assert queue(e).protected == 4
