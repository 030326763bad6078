"""The resources that an engine requests of a node: as many as let all engines fit, or one clear
error.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.executors.ray.cluster import ClusterNode, Demand, demand

GIB = 1 << 30
CPU_NODES = st.lists(
    st.builds(
        ClusterNode, cpus=st.integers(1, 64), memory=st.integers(0, 256).map(lambda n: n * GIB)
    ),
    min_size=1,
    max_size=8,
)


def room(nodes: list[ClusterNode], share: Demand) -> int:
    return sum(
        min(node.cpus // share.cpus, node.memory // share.memory if share.memory else node.cpus)
        for node in nodes
    )


@given(CPU_NODES, st.integers(1, 40), st.integers(0, 8).map(lambda n: n * GIB))
def test_all_fit_and_none_could_have_a_core_more(
    nodes: list[ClusterNode], engines: int, memory: int
) -> None:
    if room(nodes, Demand(1, 0, memory)) < engines:
        with pytest.raises(ConfigError, match="do not fit on the cluster"):
            demand(nodes, engines, 1, memory)
        return
    share = demand(nodes, engines, 1, memory)
    assert (share.gpus, share.memory) == (0, memory)
    assert room(nodes, share) >= engines
    more = Demand(share.cpus + 1, 0, memory)
    assert share.cpus == max(node.cpus for node in nodes) or room(nodes, more) < engines


def test_on_gpus_each_has_its_own() -> None:
    nodes = [ClusterNode(32, 4), ClusterNode(32, 3), ClusterNode(8)]
    assert demand(nodes, 3, 2, GIB) == Demand(1, 2)
    with pytest.raises(ConfigError, match=r"4 engines of at least 1 cores, 2 GPUs each .* for 3;"):
        demand(nodes, 4, 2, GIB)


def test_an_uneven_share_still_lets_all_fit() -> None:
    """16 cores over 3 engines are 5 each, but a node of 8 cores holds only one such engine."""
    assert demand([ClusterNode(8), ClusterNode(8)], 3, 1, 0) == Demand(4)
