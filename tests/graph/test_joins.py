"""What a thread's frontier holds after joins that are told apart only where threads overlap."""

from __future__ import annotations

from agentrt.graph import Frontier


def test_what_a_child_has_from_its_own_child_supersedes_what_they_began_with() -> None:
    main = Frontier([1])
    child = main.fork()
    grandchild = child.fork()
    grandchild.advance(5, (1,))
    child.join(grandchild)
    assert child.ids == (5,)
    main.join(child)
    assert main.ids == (5,)


def test_what_a_child_began_with_does_not_come_back_with_it() -> None:
    """The child was told of 7, and ended nothing itself; main has gone on from 1 to 2."""
    main = Frontier([1])
    child = main.fork()
    main.advance(2, (1,))
    child.include([7])
    assert child.ids == (1, 7)
    main.join(child)
    assert main.ids == (2, 7)


def test_somebody_elses_thread_brings_its_nodes_once() -> None:
    main, other = Frontier([1]), Frontier([5])
    main.join(other)
    assert list(main.ids) == [1, 5]
    main.advance(9, (1, 5))
    main.join(other)
    main.join(main)
    assert list(main.ids) == [9]


def test_ends_of_one_thread_that_overlap_both_stay() -> None:
    main = Frontier([1])
    child = main.fork()
    child.advance(2, (1,))
    child.advance(3, (1,))
    assert child.ids == (2, 3)
    main.join(child)
    assert main.ids == (2, 3)
