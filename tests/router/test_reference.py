"""Routers and what they are told, against the rules as they are written, replica by replica.

Numbers are sums of powers of two, so that equals are equal to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.router import Dispatcher, ReplicaView, RoutedCall, RouterCall, make_router
from agentrt.router.base import LEVELS
from agentrt.router.kv_events import KVEventBatch
from agentrt.router.speed import Speed
from tests.router.test_dispatch import SIZE, blocks

STEP_S, BESIDE_S, PREFILL_S = 2.0**-7, 2.0**-12, 2.0**-14


@dataclass
class Case:
    """A call, the replicas, and what each of them has cached of its prompt."""

    call: RouterCall
    replicas: list[ReplicaView]
    cached: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    speed = Speed(STEP_S, BESIDE_S, PREFILL_S)
    replicas = [
        ReplicaView(
            f"replica-{index}",
            in_flight=draw(st.sampled_from([0, 256, 1024, 2048, 4096])),
            index=index,
            calls=draw(st.integers(0, 8)),
            waits_s=[draw(st.sampled_from([0.0, 0.125, 0.25, 1.0])) for _ in range(LEVELS)],
            speed=speed,
            pace=draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])),
        )
        for index in range(draw(st.integers(1, 4)))
    ]
    prompt = draw(st.sampled_from([256, 1024, 2048, 2049, 4096]))
    cached = [draw(st.sampled_from([0, 64, 128, 1024, 2048])) % prompt for _ in replicas]
    call = RouterCall(
        "p",
        prompt,
        level=draw(st.integers(0, LEVELS - 1)),
        output_tokens=draw(st.sampled_from([1.0, 64.0, 256.0])),
        home=draw(st.sampled_from([None, *replicas])),
        match=lambda: cached,
    )
    # Some replicas may be busy starting: the router is asked about the others.
    left = replicas[draw(st.integers(0, 1)) if len(replicas) > 1 else 0 :]
    return Case(call, left, cached)


def cost_s(call: RouterCall, replica: ReplicaView, cached: int, others: float) -> float:
    """When the call would end there, and what each call beside it would wait longer for it."""
    prefill_s = (call.prompt_tokens - cached) * PREFILL_S
    decode_s = call.output_tokens * STEP_S
    crowding_s = call.output_tokens * BESIDE_S
    own_s = prefill_s + decode_s + replica.calls * crowding_s
    harm_s = replica.calls * (prefill_s + crowding_s)
    return replica.waits_s[call.level] + replica.pace * (own_s + others * harm_s)


@settings(max_examples=150, deadline=None)
@given(cases(), st.sampled_from([None, 0.0, 1.0]), st.sampled_from([None, 0.0, 0.5, 2.0]))
def test_cost_is_the_least_of_the_sums(
    case: Case, margin: float | None, others: float | None
) -> None:
    """The first of the cheapest, unless staying at home costs little more than that."""
    options = {"margin": margin, "others": others}
    given_ = "".join(f":{name}={n}" for name, n in options.items() if n is not None)
    chosen = make_router(f"cost{given_}").choose(case.call, case.replicas)
    margin, others = 0.5 if margin is None else margin, 1.0 if others is None else others
    call = case.call
    costs = [cost_s(call, r, case.cached[r.index], others) for r in case.replicas]
    expected = case.replicas[costs.index(min(costs))]
    if call.home in case.replicas:
        worth_s = margin * case.cached[call.home.index] * PREFILL_S
        if costs[case.replicas.index(call.home)] <= min(costs) + worth_s:
            expected = call.home
    assert chosen is expected


@settings(max_examples=150, deadline=None)
@given(cases())
def test_prefix_follows_the_most_cached_unless_it_is_overloaded(case: Case) -> None:
    def least_used(replicas: list[ReplicaView]) -> ReplicaView:
        return min(replicas, key=lambda replica: (replica.in_flight, replica.index))

    idlest = least_used(case.replicas)
    most = max(case.cached[replica.index] for replica in case.replicas)
    best = least_used([r for r in case.replicas if case.cached[r.index] == most])
    overloaded = (
        best.in_flight > 2 * idlest.in_flight
        and best.in_flight > idlest.in_flight + case.call.prompt_tokens
    )
    expected = best if most > case.call.prompt_tokens - most and not overloaded else idlest
    assert make_router("prefix").choose(case.call, case.replicas) is expected


def turns(calls: int, slots: int) -> float:
    """Sakasegawa's approximation while a slot is free; after that, the calls in the queue."""
    if slots == 0:
        return 0.0
    if calls <= slots:
        return float((calls / slots) ** ((2 * (slots + 1)) ** 0.5 - 1))
    return calls - slots + 1.0


@dataclass
class Sent:
    """A call under way, as the test counts it."""

    routed: RoutedCall
    program: str
    replica: int
    level: int
    missing: int
    tokens: int
    hashes: list[int]


class Counted:
    """A dispatcher of three replicas, and everything that it was told."""

    ends = (1.0, 2.0)
    slots = (0, 1, 4)
    ways_s = (0.0, 0.25, 0.5)

    def __init__(self) -> None:
        speed = Speed(STEP_S, BESIDE_S, PREFILL_S)
        self.fleet = Dispatcher(make_router("cost"), self.ends, speed)
        self.views = [
            self.fleet.join(f"replica-{i}", n, way_s)
            for i, (n, way_s) in enumerate(zip(self.slots, self.ways_s, strict=True))
        ]
        self.sent: list[Sent] = []
        self.stored: list[set[int]] = [set(), set(), set()]
        self.homes: dict[str, int] = {}

    def do(self, event: str, number: int, level_service_s: float, count: int) -> None:
        program, replica = f"p{number % 3}", number % 3
        hashes = blocks(f"prompt of {number % 2}", count)
        if event == "send":
            self.send(program, hashes, level_service_s, self.views[number // 2 :])
        elif event == "end" and self.sent:
            self.end(self.sent[number % len(self.sent)])
        elif event in ("store", "snapshot"):
            self.store(replica, hashes, snapshot=event == "snapshot")
        elif event == "program":
            self.fleet.program_ended(program)
            self.homes.pop(program, None)
        elif event == "lose":
            self.fleet.lost(self.views[replica])
            self.stored[replica].clear()
            self.homes = {name: home for name, home in self.homes.items() if home != replica}
        for one in [s for s in self.sent if s.program not in self.homes]:
            self.end(one)

    def send(
        self, program: str, hashes: list[int], level_service_s: float, ready: list[ReplicaView]
    ) -> None:
        size = len(hashes) * SIZE
        call = RouterCall(program, size + 3, level_service_s, "k", 40, SIZE, lambda: hashes)
        routed = self.fleet.send(call, ready)
        at = routed.replica.index
        assert call.home is (self.views[self.homes[program]] if program in self.homes else None)
        assert call.level == sum(level_service_s >= end for end in self.ends)
        # Its program's last calls under way leave their prompts where they went.
        own = [s for s in self.sent if s.program == program][-8:]
        for view in self.views:
            known = [shared(s.hashes, hashes) for s in own if s.replica == view.index]
            known.append(sum(1 for h in hashes if h in self.stored[view.index]))
            assert call.cached_on(view) == max(known) * SIZE
        missing = call.prompt_tokens - call.cached_on(routed.replica)
        self.sent.append(Sent(routed, program, at, call.level, missing, size + 43, hashes))
        self.homes[program] = at

    def end(self, one: Sent) -> None:
        self.sent.remove(one)
        for _ in range(2):  # that it is told twice does no harm
            self.fleet.ended(one.routed)

    def store(self, replica: int, hashes: list[int], *, snapshot: bool) -> None:
        """The end of what the replica has goes, and these blocks come."""
        gone = [h for h in self.stored[replica] if h not in hashes]
        batch = KVEventBatch.of(1, hashes, () if snapshot else gone, whole=snapshot)
        self.fleet.cache_changed(self.views[replica], batch)
        self.stored[replica] = set(hashes)

    def compare(self) -> None:
        assert self.fleet.programs == len(self.homes)
        for view, slots, way_s in zip(self.views, self.slots, self.ways_s, strict=True):
            here = [s for s in self.sent if s.replica == view.index]
            assert self.fleet.cached_blocks.blocks(view.index) == self.stored[view.index]
            assert (view.in_flight, view.calls) == (sum(s.tokens for s in here), len(here))
            for level in range(LEVELS):
                ahead = [s for s in here if s.level <= level]
                queue_s = turns(len(ahead), slots) * 100 * STEP_S / max(slots, 1)
                prefill_s = sum(s.missing for s in ahead) * PREFILL_S
                assert view.waits_s[level] == pytest.approx(way_s + prefill_s + queue_s)


dispatcher_events = st.tuples(
    st.sampled_from(["send"] * 4 + ["end", "store", "snapshot", "lose", "program"]),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 9.0]),
    st.integers(0, 12),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(dispatcher_events, min_size=10, max_size=40))
def test_what_routers_see_is_what_is_under_way(story: list[tuple[str, int, float, int]]) -> None:
    """Tokens and calls in flight, waits by level, and what is cached, each counted anew."""
    counted = Counted()
    for event in story:
        counted.do(*event)
        counted.compare()


def shared(one: list[int], other: list[int]) -> int:
    """How many leading blocks two prompts share."""
    return sum(1 for n in range(1, 1 + min(len(one), len(other))) if one[:n] == other[:n])
