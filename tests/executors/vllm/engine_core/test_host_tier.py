"""Which blocks leave host memory first: vLLM's manager of host memory with our policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from agentrt.engines import EngineOptions
from agentrt.executors.vllm.engine_core.host_tier import ProgramCachePolicy
from agentrt.executors.vllm.options import engine_args
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.retention import EvictionOrder, Place, make_retention
from agentrt.scheduler.state import CachedBlocks, EngineProgram, QueuedCall
from agentrt.scheduler.table import ProcessTable

pytestmark = pytest.mark.engine


def keys(*names: object) -> list[OffloadKey]:
    return [make_offload_key(f"{name}".encode(), 0) for name in names]


class Watched(ProgramCachePolicy):
    """The policy, with a check of whose chunks it evicts."""

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        owners = {key: self._owner[key] for key in self._evictable - protected}
        found = super().evict(n, protected)
        lost = {owners.pop(key) for key, _ in found or ()}
        kept = set(owners.values()) - lost
        if lost - {None}:
            assert None not in owners.values()
        assert all(self._rank(one) <= self._rank(other) for one in lost for other in kept)
        return found

    def _rank(self, owner: CachedBlocks | None) -> tuple[Place, ...]:
        if owner is None or self._order is None:
            return ()
        place = self._order.retention.place(owner)
        return (
            ((0.0,), place) if place is not None else ((1.0,), self._order._weight(owner, self.now))
        )


class HostMemory:
    """vLLM's manager of host memory for ``chunks`` chunks with our policy, and owners whose order
    the retention decides.
    """

    def __init__(
        self,
        chunks: int,
        *,
        is_bound: bool = True,
        policy: type[ProgramCachePolicy] = ProgramCachePolicy,
    ) -> None:
        self.manager = CPUOffloadingManager(chunks, policy.__name__, policy.__module__)
        made = self.manager._policy
        assert isinstance(made, ProgramCachePolicy)
        self.policy, learned = made, Learned()
        retention = make_retention(SchedulerConfig(retention="cost"), learned)
        assert retention is not None
        self.owners = BlockOwners(learned)
        self.owners.changed = self.policy.changed
        self.table = ProcessTable(EngineProgram)
        if is_bound:
            self.policy.bind(self.owners, EvictionOrder(retention, self.owners.sharers))

    def row(self, program: str) -> EngineProgram:
        found = self.table.get(program)
        if found is None:
            found = self.table.start_program(program, "agent", 0.0)
            found.resident = True
        return found

    def call(self, program: str, names: Iterable[object], now: float) -> list[OffloadKey]:
        """Compute and store these blocks in a call. Return what was evicted for them."""
        self.policy.now, row = now, self.row(program)
        request = ReqContext(f"{program}@{now}")
        self.policy.call_arrived(request.req_id, self.owners.own(row))
        call = QueuedCall(request.req_id, row, None, None, now)
        row.queued[call.call_id] = call
        self.owners.call_arrived(call, now)
        self.manager.on_new_request(request)
        gone = self.store(request, names)
        del row.queued[call.call_id]
        self.owners.call_finished(call, now)
        self.manager.on_request_finished(request)
        return gone

    def store(self, request: ReqContext, names: Iterable[object]) -> list[OffloadKey]:
        prepared = self.manager.prepare_store(keys(*names), request)
        assert prepared is not None
        self.manager.complete_store(prepared.keys_to_store, request)
        return prepared.evicted_keys

    def told(self, what: str, program: str, now: float) -> None:
        """Tell that a program waits for a ``tool`` or a ``human``, or that it ``ends``."""
        self.policy.now, row = now, self.row(program)
        if what == "ends":
            self.table.end_program(program)
            self.owners.program_ended(row, now)
        else:
            self.table.interrupt_started(row, now, what)
            self.owners.interrupt_started(row, what, "grep", now)


def blocks(name: str, count: int = 4) -> list[str]:
    return [f"{name}{n}" for n in range(count)]


def test_the_ended_go_first_then_who_asks_a_human_then_who_is_in_a_tool_for_long() -> None:
    host = HostMemory(16)
    for now, name in enumerate("abcd"):
        assert host.call(name, blocks(name), now) == []
    host.told("tool", "a", 4.0)
    host.told("human", "b", 4.0)
    host.told("tool", "c", 5.0)
    host.told("ends", "d", 5.0)
    assert host.call("e", blocks("e"), 6.0) == keys("d3", "d2", "d1", "d0")
    gone = keys("b3", "b2", "b1", "b0", "a3", "a2")
    assert host.call("f", blocks("f", 6), 7.0) == gone, "of a prompt the end goes first"


def test_what_two_programs_use_is_shared_and_stays() -> None:
    host = HostMemory(8)
    system = blocks("system", 2)
    host.call("a", [*system, "a0"], 0.0)
    host.call("b", [*system, "b0"], 1.0)
    host.told("ends", "a", 2.0)
    host.told("human", "b", 2.0)
    gone = host.call("c", blocks("c", 6), 3.0)
    assert set(gone) == set(keys("a0", "b0"))


def test_what_a_program_drops_goes_first() -> None:
    host = HostMemory(8)
    host.call("a", blocks("a"), 0.0)
    host.call("b", blocks("b"), 1.0)
    owner = host.row("b").cached
    assert owner is not None
    host.policy.give_up(keys("b2", "b3", "a0"), owner)  # a0 is not b's
    assert set(host.call("c", blocks("c", 2), 2.0)) == set(keys("b2", "b3"))


def test_what_is_read_or_asked_for_stays_and_a_store_without_room_changes_nothing() -> None:
    host = HostMemory(4)
    host.call("a", blocks("a"), 0.0)
    host.told("ends", "a", 1.0)
    reading, storing = ReqContext("reading"), ReqContext("storing")
    host.manager.prepare_load(keys("a3", "a2"), reading)
    assert host.manager.prepare_store(keys("x", "y", "z"), storing) is None
    assert host.manager.prepare_store(keys("a1", "x", "y"), storing) is None
    assert host.store(storing, ["a1", "x"]) == keys("a0")
    host.manager.complete_load(keys("a3", "a2"), reading)
    assert host.store(storing, ["y", "z"]) == keys("a3", "a2")


def test_an_emptied_cache_holds_nothing() -> None:
    host = HostMemory(8)
    host.call("a", blocks("a"), 0.0)
    host.policy.clear()
    assert host.policy.get(keys("a0")[0]) is None
    assert host.policy.evict(1, set()) is None
    host.policy.bind(None, None)
    assert host.policy.evict(0, set()) == []


@pytest.mark.parametrize("stores_again", [False, True])
def test_nothing_is_kept_of_a_call_during_which_the_memory_was_cleared(stores_again: bool) -> None:
    """vLLM reports its end only if it has stored again."""
    host = HostMemory(8)
    owner, request = host.owners.own(host.row("a")), ReqContext("a1")
    host.policy.call_arrived(request.req_id, owner)
    host.manager.on_new_request(request)
    host.store(request, blocks("a"))
    host.manager.reset_cache()
    if stores_again:
        host.store(request, blocks("b"))
        assert host.policy._owner[keys("b0")[0]] is owner
    host.policy.call_ended(request.req_id)
    host.manager.on_request_finished(request)
    assert not host.policy._calls
    assert not host.policy._cleared


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 11), min_size=1, max_size=5, unique=True)),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_without_owners_it_is_vllms_lru(steps: list[tuple[int, list[int]]]) -> None:
    ours = HostMemory(8, is_bound=False).manager
    theirs = CPUOffloadingManager(8, "lru")
    assert isinstance(theirs._policy, LRUCachePolicy)
    for number, (kind, names) in enumerate(steps):
        answers: list[Any] = []
        for manager in (ours, theirs):
            request = ReqContext(f"{number}")
            manager.on_new_request(request)
            wanted = keys(*names)
            if kind == 0:
                wanted = [key for key in wanted if manager._policy.get(key)]
                manager.prepare_load(wanted, request)
                manager.complete_load(wanted, request)
                answers.append(wanted)
            else:
                prepared = manager.prepare_store(wanted, request)
                answers.append(None if prepared is None else prepared.evicted_keys)
                if prepared is not None:
                    done = kind < 3
                    manager.complete_store(prepared.keys_to_store, request, success=done)
            manager.on_request_finished(request)
        assert answers[0] == answers[1]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "call", "tool", "human", "ends"]),
        st.sampled_from("abcd"),
        st.integers(1, 5),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_nothing_goes_before_what_ranks_lower(events: list[tuple[str, str, int]]) -> None:
    """Whatever happens, a program that keeps all its chunks never ranks below one that loses some,
    and each chunk is on exactly one list.
    """
    host = HostMemory(9, policy=Watched)
    policy = host.policy
    for now, (what, program, size) in enumerate(events, 1):
        if what == "call":
            host.call(program, ["system", *blocks(program, size)], now)
        elif program in host.table:
            host.told(what, program, now)
        listed = [key for own in policy._lists.values() for key in own]
        assert sorted(listed) == sorted(policy._chunks)
        assert policy._order is not None
        owned = {one for one in policy._lists if one is not None}
        assert owned == set(policy._order.in_order(now))
        if what == "call":
            assert not policy._calls
            assert not policy._coming


def extra(*flags: str, retention: str = "cost") -> dict[str, object]:
    options = EngineOptions(
        "m", flags=flags, scheduler=SchedulerConfig(policy="atlas", retention=retention)
    )
    transfer = engine_args(options, "m", on_gpu=False).kv_transfer_config
    return {} if transfer is None else transfer.kv_connector_extra_config


def test_vllm_is_told_of_the_policy_where_it_offloads_and_retention_is_ours() -> None:
    size = ("--kv-offloading-size", "2")
    ours = extra(*size)
    assert ours["eviction_policy"] == "ProgramCachePolicy"
    assert ours["offload_prompt_only"] is False
    assert extra(*size, retention="lru") == {}
    assert extra() == {}
    assert extra(*size, "--kv-offloading-backend", "lmcache") == {}
    named = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", '
    own = named + '"kv_connector_extra_config": {"cpu_bytes_to_use": 1, "eviction_policy": "arc"}}'
    assert extra("--kv-transfer-config", own)["eviction_policy"] == "arc"
