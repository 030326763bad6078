"""Each router's rule, and what all of them owe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.router import (
    ROUTERS,
    ReplicaView,
    Router,
    RouterCall,
    make_router,
    router_names,
)
from agentrt.router.policies import Agentix, CostRouter

SHORT, LONG = RouterCall("p", 2048), RouterCall("p", 2049)


def views(*loads: int) -> list[ReplicaView]:
    return [ReplicaView(f"replica-{i}", load) for i, load in enumerate(loads)]


def test_round_robin_takes_turns_whatever_the_load() -> None:
    router, replicas = make_router("round-robin"), views(9, 0, 0)
    names = [router.choose(SHORT, replicas).name for _ in range(4)]
    assert names == ["replica-0", "replica-1", "replica-2", "replica-0"]


def test_round_robin_takes_turns_among_the_replicas_of_each_model() -> None:
    """Two replicas serve one model, and the third another. Calls alternate between the models."""
    router, replicas = make_router("round-robin"), views(0, 0, 0)
    names = []
    for _ in range(4):
        names.append(router.choose(SHORT, replicas[:2]).name)
        assert router.choose(SHORT, replicas[2:]) is replicas[2]
    assert names == ["replica-0", "replica-1", "replica-0", "replica-1"]


def test_least_used_is_by_tokens_in_flight_and_then_the_first() -> None:
    router = make_router("least-used")
    assert router.choose(LONG, views(5, 2, 2)).name == "replica-1"


def test_agentix_keeps_long_calls_at_home_and_balances_short_ones() -> None:
    """1. The first long call makes the least used replica its program's home.
    2. It stays so under load; short calls, and other programs, go elsewhere.
    3. The home is forgotten with the program, and with the replica.
    """
    router = Agentix()
    assert router.choose(LONG, views(1, 0)).name == "replica-1"
    busy = views(1, 50)
    assert router.choose(LONG, busy).name == "replica-1"
    assert router.choose(SHORT, busy).name == "replica-0"
    assert router.choose(RouterCall("other", 9000), busy).name == "replica-0"
    router.replica_lost("replica-1")
    assert router.choose(LONG, busy).name == "replica-0"
    router.program_ended("p")
    assert router.choose(LONG, views(1, 0)).name == "replica-1"


def test_agentix_has_a_home_for_each_model_of_a_program() -> None:
    """The program calls a model on two replicas and a model on the third in turn. The busier of the
    two stays its home, until it is lost.
    """
    router = Agentix()
    big, small = RouterCall("p", 9000, model="big"), RouterCall("p", 9000, model="small")
    first, second, third = views(0, 1, 0)
    for load in (0, 50):
        first.in_flight = load
        assert router.choose(big, [first, second]) is first
        assert router.choose(small, [third]) is third
    router.replica_lost(first.name)
    assert router.choose(big, [first, second]) is second
    assert router.choose(small, [third]) is third


def test_a_home_that_cannot_take_the_call_is_replaced() -> None:
    router = Agentix()
    first, second = views(0, 1)
    assert router.choose(LONG, [first, second]) is first
    assert router.choose(LONG, [second]) is second
    assert router.choose(LONG, [first, second]) is second


@pytest.mark.parametrize(
    ("name", "prompt", "loads", "chosen"),
    [
        ("prefix", 100, (1000, 2000), 1),
        ("prefix", 100, (1000, 2001), 0),
        ("prefix:imbalance=3", 100, (1000, 3000), 1),
        ("prefix", 4000, (1000, 5000), 1),
        ("prefix", 4000, (1000, 5001), 0),
    ],
)
def test_prefix_leaves_what_is_cached_where_too_much_is_in_flight(
    name: str, prompt: int, loads: tuple[int, int], chosen: int
) -> None:
    """More than so many times the least used replica's tokens, and more than the prompt above."""
    call = RouterCall("p", prompt, match=lambda: [0, prompt - 10])
    replicas = [ReplicaView(f"replica-{i}", load, index=i) for i, load in enumerate(loads)]
    assert make_router(name).choose(call, replicas) is replicas[chosen]


@pytest.mark.parametrize("name", ROUTERS)
@given(
    calls=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5000)), max_size=30),
    loads=st.lists(st.integers(0, 100), min_size=1, max_size=5),
)
def test_every_router_answers_with_one_of_the_replicas(
    name: str, calls: list[tuple[int, int]], loads: list[int]
) -> None:
    router, replicas = make_router(name), views(*loads)
    for number, (program, tokens) in enumerate(calls):
        chosen = router.choose(RouterCall(f"p{program}", tokens), replicas)
        assert any(chosen is replica for replica in replicas)
        chosen.in_flight += tokens
        if number % 7 == 6:
            router.replica_lost(chosen.name)
            router.program_ended(f"p{program}")


class Point:
    """An entry point of another package."""

    def __init__(self, name: str, found: object) -> None:
        self.name, self.value, self._found = name, f"package:{name}", found

    def load(self) -> object:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


class Ours(Agentix):
    """A router of another package."""


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        Point("theirs", Ours),
        Point("agentix", Ours),
        Point("broken", ImportError("no such module")),
        Point("half", Router),
        Point("other", int),
        Point("value", 7),
    ]

    def entry_points(group: str, name: str | None = None) -> list[Point]:
        assert group == "agentrt.routers"
        return [point for point in made if name in (None, point.name)]

    monkeypatch.setattr("agentrt.router.entry_points", entry_points)


@pytest.mark.usefixtures("points")
def test_routers_of_other_packages() -> None:
    """Named after ours, which keep their names; what is no whole router is refused."""
    ours = ["agentix", "cost", "least-used", "prefix", "round-robin"]
    assert router_names() == [*ours, "broken", "half", "other", "theirs", "value"]
    assert type(make_router("agentix")) is Agentix
    router = make_router("theirs:threshold=9")
    assert isinstance(router, Ours)
    assert router._threshold == 9.0
    with pytest.raises(ConfigError) as refused:
        make_router("broken")
    assert str(refused.value) == (
        "cannot load router 'broken' (package:broken): no such module; repair the package that "
        "offers it, or use another router"
    )
    for name in ("half", "other", "value"):
        with pytest.raises(ConfigError) as refused:
            make_router(name)
        assert str(refused.value).startswith(
            f"router '{name}' (package:{name}) is not a complete subclass of agentrt.router.Router"
        )


NO_OPTION = (
    "is not an option with a number; write NAME:option=number, such as agentix:threshold=4096"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agentix:many", f"router agentix: 'many' {NO_OPTION}"),
        ("agentix:threshold=x", f"router agentix: 'threshold=x' {NO_OPTION}"),
        ("agentix:threshold=1=2", f"router agentix: 'threshold=1=2' {NO_OPTION}"),
        ("prefix:margin=1", "router 'prefix' does not support the options 'margin=1': "),
        ("x", "unknown router 'x'; available: agentix, cost, least-used, prefix, round-robin"),
    ],
)
def test_what_is_no_router_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_router(text)
    assert str(refused.value).startswith(message)


def test_options_may_have_spaces_and_empty_ones_are_left_out() -> None:
    router = make_router("cost: margin = 0.25::others=2:")
    assert isinstance(router, CostRouter)
    assert (router._margin, router._others) == (0.25, 2.0)
