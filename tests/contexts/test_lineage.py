"""Which calls' tokens go with a context that is dropped: those that no other context has."""

from __future__ import annotations

from agentrt.contexts.context import Lineage


def test_a_fork_gives_up_what_is_its_own() -> None:
    trunk = Lineage()
    one, other = trunk.fork(100), trunk.fork(100)
    one.called("p", 1)
    other.called("p", 2)
    assert one.drop() == [("p/1", 100)]
    assert other.drop() == [("p/2", 100)]
    assert trunk.drop() == [("p/1", 0)]  # the last one takes the trunk along


def test_what_forks_of_forks_have_stays() -> None:
    trunk = Lineage()
    trunk.called("p", 0)
    child = trunk.fork(50)
    child.called("p", 1)
    grandchild = child.fork(80)
    grandchild.called("p", 2)
    assert child.drop() == []
    assert trunk.drop() == []
    assert grandchild.drop() == [("p/2", 80), ("p/1", 50), ("p/0", 0)]


def test_a_saved_context_gives_up_what_was_added_since() -> None:
    context = Lineage()
    context.called("p", 0)
    context.kept(60)
    context.called("p", 1)
    assert context.drop() == [("p/1", 60)]


def test_who_was_cut_off_gives_up_nothing_of_what_it_shared() -> None:
    trunk = Lineage()
    trunk.called("p", 0)
    child = trunk.fork(50)
    child.truncated(20)
    child.called("p", 1)
    assert child.drop() == [("p/1", 50)]
    assert trunk.drop() == []
