"""What a dispatcher tells routers, and what `cost` and `prefix` make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrt.request import CallReport
from agentrt.router import Dispatcher, ReplicaView, RoutedCall, RouterCall, make_router
from agentrt.router.base import LEVELS
from agentrt.router.kv_events import KVEventBatch
from agentrt.router.speed import Speed

SIZE = 16
TYPICAL = CallReport(service_s=1.0, steps=100, prompt_tokens=500, output_tokens=100)


def blocks(name: str, count: int) -> list[int]:
    return [hash((name, place)) & (2**64 - 1) for place in range(count)]


def call_of(program: str, hashes: list[int], level_service_s: float = 0.0) -> RouterCall:
    return RouterCall(
        program,
        len(hashes) * SIZE + 5,
        level_service_s=level_service_s,
        kind="t/call",
        block_size=SIZE,
        blocks=lambda: hashes,
    )


class Fleet:
    """Three replicas of four slots behind a router."""

    def __init__(self, router: str, level_ends: tuple[float, ...] = ()) -> None:
        self.dispatcher = Dispatcher(make_router(router), level_ends)
        self.views = [self.dispatcher.join(f"replica-{i}", 4) for i in range(3)]

    def tell(self, replica: int, stored: list[int], removed: list[int] | None = None) -> None:
        self.dispatcher.cache_changed(
            self.views[replica], KVEventBatch.of(1, stored, removed or ())
        )

    def send(self, program: str, hashes: list[int], level_service_s: float = 0.0) -> RoutedCall:
        return self.dispatcher.send(call_of(program, hashes, level_service_s), self.views)

    def where(self, program: str, hashes: list[int]) -> int:
        """Where a call would go; it is over at once."""
        routed = self.send(program, hashes)
        self.dispatcher.ended(routed)
        self.dispatcher.program_ended(program)
        return routed.replica.index

    def fill(self, replica: int, calls: int, level_service_s: float = 0.0) -> list[RoutedCall]:
        """Short calls of others, sent to one replica."""
        only = [self.views[replica]]
        return [
            self.dispatcher.send(
                call_of(f"busy-{replica}-{n}", blocks(f"b{replica}/{n}", 1), level_service_s), only
            )
            for n in range(calls)
        ]


@pytest.mark.parametrize("name", ["cost", "prefix"])
def test_a_call_goes_where_its_prefix_is(name: str) -> None:
    """1. Told by events, not remembered. 2. Where more of it is. 3. Gone with it."""
    fleet, prompt = Fleet(name), blocks("a", 64)
    fleet.tell(2, prompt[:60])
    assert fleet.where("p", prompt) == 2
    fleet.tell(1, prompt)
    assert fleet.where("p", prompt) == 1
    fleet.tell(1, [], prompt[8:])
    assert fleet.where("p", prompt) == 2
    fleet.dispatcher.lost(fleet.views[2])
    assert fleet.where("p", prompt) == (1 if name == "cost" else 0)


@pytest.mark.parametrize("name", ["cost", "prefix"])
def test_a_prefix_is_not_followed_to_one_with_too_much_to_do(name: str) -> None:
    fleet, prompt = Fleet(name), blocks("a", 64)
    fleet.tell(2, prompt)
    fleet.fill(2, 80)
    assert fleet.where("p", prompt) != 2


def test_prefix_balances_what_is_not_held() -> None:
    """The lesser half that is held counts for nothing; more tokens in flight count."""
    fleet, prompt = Fleet("prefix"), blocks("a", 64)
    fleet.tell(2, prompt[:30])
    fleet.fill(0, 1)
    assert fleet.where("p", prompt) == 1


def test_cost_weighs_a_wait_against_a_prefill() -> None:
    """A replica whose slots are taken is worth waiting for if it saves more than the wait."""
    fleet, short, long = Fleet("cost"), blocks("s", 4), blocks("l", 6000)
    fleet.tell(2, [*short, *long])
    fleet.fill(2, 6)
    assert fleet.where("p", short) != 2
    assert fleet.where("q", long) == 2


def test_cost_counts_the_way_and_the_pace() -> None:
    """A far replica, or a slow one, is left alone."""
    fleet = Fleet("cost")
    fleet.views[0] = fleet.dispatcher.join("far", 4, transfer_s=0.5)
    for _ in range(40):
        for view, service_s in zip(fleet.views[1:], (1.0, 3.0), strict=True):
            (routed,) = [fleet.dispatcher.send(call_of("x", []), [view])]
            fleet.dispatcher.ended(routed, replace(TYPICAL, service_s=service_s))
    assert fleet.views[2].pace > 1.15
    assert fleet.where("p", blocks("b", 4)) == 1
    fleet.fill(1, 20)
    assert fleet.where("p", blocks("b", 4)) == 3


def test_a_guess_stands_until_the_call_ends() -> None:
    """1. Of a call under way its program's next call expects what it will store. 2. Other
    programs do not. 3. When it ends without a word of it from the engine, nothing is held.
    """
    fleet, prompt = Fleet("cost"), blocks("a", 100)
    routed = fleet.send("p", prompt)
    again = call_of("p", [*prompt, *blocks("more", 4)])
    second = fleet.dispatcher.send(again, fleet.views)
    assert again.cached_on(routed.replica) == 100 * SIZE
    assert fleet.dispatcher.cached_blocks.blocks(routed.replica.index) == set()
    other = call_of("q", prompt)
    third = fleet.dispatcher.send(other, fleet.views)
    assert other.cached_on(routed.replica) == 0
    for one in (routed, second, third):
        fleet.dispatcher.ended(one)
    last = call_of("p", prompt)
    fleet.dispatcher.send(last, fleet.views)
    assert last.cached == [0, 0, 0]


def test_the_last_call_on_each_replica_is_a_guess_however_many_calls_followed() -> None:
    """The branches of a map share a prompt; those that followed the first call on a replica may
    all have gone elsewhere.
    """
    fleet, prompt = Fleet("cost"), blocks("a", 100)
    first, *others = fleet.views
    kept = fleet.dispatcher.send(call_of("p", prompt), [first])
    for number in range(20):
        fleet.dispatcher.send(call_of("p", prompt), [others[number % 2]])
    branch = call_of("p", [*prompt, *blocks("branch", 4)])
    fleet.dispatcher.send(branch, others)
    assert [branch.cached_on(view) for view in fleet.views] == [100 * SIZE] * 3
    fleet.dispatcher.ended(kept)
    after = call_of("p", prompt)
    fleet.dispatcher.send(after, others)
    assert after.cached_on(first) == 0


def test_a_call_leaves_its_home_for_a_replica_that_has_cached_as_much() -> None:
    """The margin is a share of what staying saves, and staying saves nothing here."""
    fleet, prompt = Fleet("cost"), blocks("a", 100)
    for replica in (0, 1):
        fleet.tell(replica, prompt)
    home = fleet.send("p", prompt)
    assert fleet.send("p", prompt).replica.index == 1 - home.replica.index


def test_where_nobody_tells_a_program_s_last_replica_is_the_guess() -> None:
    fleet = Fleet("cost")
    first = RouterCall("p", 4000)
    home = fleet.dispatcher.send(first, fleet.views).replica
    second = RouterCall("p", 4200)
    assert fleet.dispatcher.send(second, fleet.views).replica is home
    assert second.cached_on(home) == 4000 + int(first.output_tokens)
    one = RouterCall("p", 1)
    fleet.dispatcher.send(one, fleet.views)
    assert one.cached == [0, 0, 0], "its only token is computed"
    fleet.dispatcher.program_ended("p")
    third = RouterCall("p", 4400)
    fleet.dispatcher.send(third, fleet.views)
    assert third.cached == [0, 0, 0]


def test_a_call_holds_no_more_than_all_but_its_last_token() -> None:
    fleet, prompt = Fleet("cost"), blocks("a", 10)
    fleet.tell(0, prompt)
    call = RouterCall("p", 160, block_size=SIZE, blocks=lambda: prompt)
    fleet.dispatcher.send(call, fleet.views)
    assert call.cached_on(fleet.views[0]) == 159


def test_outputs_are_learned_by_kind() -> None:
    fleet = Fleet("cost")
    fleet.dispatcher.ended(fleet.send("p", []), TYPICAL)
    call = call_of("q", [])
    fleet.dispatcher.send(call, fleet.views)
    assert call.output_tokens == 100
    limited = replace(call_of("q", []), output_limit=7)
    fleet.dispatcher.send(limited, fleet.views)
    assert limited.output_tokens == 7
    fleet.dispatcher.ended(fleet.send("p", []), replace(TYPICAL, output_tokens=200))
    call = call_of("q", [])
    fleet.dispatcher.send(call, fleet.views)
    assert call.output_tokens == 105, "a twentieth of the way to the new one"


def test_outputs_of_kinds_that_were_not_seen_for_long_are_forgotten() -> None:
    fleet = Fleet("least-used")

    def expected(kind: str) -> float:
        call = replace(call_of("q", []), kind=kind)
        fleet.dispatcher.ended(fleet.dispatcher.send(call, fleet.views))
        return call.output_tokens

    for number in range(4097):
        if number == 4096:
            routed = fleet.dispatcher.send(replace(call_of("p", []), kind="0"), fleet.views)
            fleet.dispatcher.ended(routed, TYPICAL)
        routed = fleet.dispatcher.send(replace(call_of("p", []), kind=str(number)), fleet.views)
        fleet.dispatcher.ended(routed, TYPICAL)
    assert [expected(kind) for kind in ("0", "1", "2", "4096")] == [100, 128, 100, 100]


def test_a_call_that_ended_without_a_step_teaches_nothing() -> None:
    fleet = Fleet("cost")
    for report in (None, CallReport(service_s=1.0), CallReport(steps=9, output_tokens=128)):
        fleet.dispatcher.ended(fleet.send("p", []), report)
        assert (fleet.dispatcher.speed.service_s, fleet.views[0].pace) == (0.6, 1.0)


def test_the_router_hears_of_a_lost_replica_and_of_ended_programs() -> None:
    """A long call goes home; its home is forgotten with either."""
    fleet, prompt = Fleet("agentix"), blocks("a", 200)
    at = [fleet.send("p", prompt).replica.index for _ in range(3)]
    assert at == [0, 0, 0]
    fleet.dispatcher.lost(fleet.views[0])
    assert fleet.dispatcher.programs == 0
    assert fleet.send("p", prompt).replica.index == 1
    fleet.dispatcher.lost(fleet.views[2])
    assert fleet.send("p", prompt).replica.index == 1, "that is another's"
    fleet.dispatcher.program_ended("p")
    assert fleet.send("p", prompt).replica.index == 2


class Heard(Speed):
    """Notes how many calls those that ended are said to have had beside them."""

    def __init__(self, *seconds: float) -> None:
        super().__init__(*seconds)
        self.beside: list[float] = []

    def learn(self, report: CallReport, beside: float) -> None:
        self.beside.append(beside)


def test_a_call_had_as_many_beside_it_as_at_its_start_and_at_its_end_on_average() -> None:
    speed = Heard()
    dispatcher = Dispatcher(make_router("least-used"), speed=speed)
    view = dispatcher.join("a")
    dispatcher.join("b")  # nothing is learned of a replica that is compared with no other
    assert view.speed is speed
    calls = [dispatcher.send(call_of("p", []), [view]) for _ in range(5)]
    assert view.calls == 5
    for routed in calls:
        dispatcher.ended(routed, TYPICAL)
        dispatcher.ended(routed, TYPICAL)
    assert speed.beside == [(0 + 4) / 2, (1 + 3) / 2, (2 + 2) / 2, (3 + 1) / 2, (4 + 0) / 2]
    assert (view.calls, view.in_flight) == (0, 0)


def test_a_replicas_pace_is_what_its_calls_took_over_what_was_expected() -> None:
    """Half a second each, of the 0.25 s that 100 steps are taken to last."""
    dispatcher = Dispatcher(make_router("least-used"), speed=Heard(0.0025, 0.0, 0.0))
    view = dispatcher.join("a")
    dispatcher.join("b")
    for report in (replace(TYPICAL, service_s=0.5), replace(TYPICAL, service_s=0.0)):
        for _ in range(40):
            dispatcher.ended(dispatcher.send(call_of("p", []), [view]), report)
        assert view.pace == pytest.approx(2.0)


def test_levels_beyond_the_last_are_told_apart_no_more() -> None:
    dispatcher = Dispatcher(make_router("least-used"), range(1, 30))
    view = dispatcher.join("a")
    sent = [dispatcher.send(call_of("p", [], s), [view]).call.level for s in (0, 6.5, 7, 25)]
    assert sent == [0, 6, LEVELS - 1, LEVELS - 1]


def test_the_former_name_of_a_calls_service_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="is now level_service_s"):
        call = RouterCall("p", 4, attained_s=2.5)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="RouterCall.attained_s is now level_service_s"):
        assert call.attained_s == call.level_service_s == 2.5  # type: ignore[attr-defined]


def test_turns_grow_with_the_calls_ahead() -> None:
    dispatcher = Dispatcher(make_router("least-used"))
    view = dispatcher.join("a", slots=8, transfer_s=0.25)
    dispatcher.join("b")
    turns, turn_s = [], dispatcher.speed.service_s / 8
    for number in range(20):
        turns.append((view.waits_s[0] - 0.25) / turn_s)
        dispatcher.send(RouterCall(f"p-{number}", 0), [view])
    assert turns == sorted(turns)
    assert turns[4] < 0.2
    assert (turns[0], turns[8], turns[16]) == pytest.approx((0.0, 1.0, 9.0))


def test_a_view_of_its_own_needs_no_dispatcher() -> None:
    """A router that is asked alone knows of nothing held."""
    views = [ReplicaView("a"), ReplicaView("b", index=1, calls=3)]
    for name in ("cost", "prefix"):
        assert make_router(name).choose(RouterCall("p", 100), views) is views[0]
    assert RouterCall("p", 100).cached_on(views[1]) == 0
