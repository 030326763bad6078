"""What is known of a program that was begun before."""

from __future__ import annotations

from agentrt.journal import past
from agentrt.journal.past import Past, PastNode
from agentrt.journal.schema import EndRow, StartRow


def test_what_is_further_in_a_task() -> None:
    """A task's own nodes and tasks from here on, with all that is inside of them."""
    places = ["0#1", "0#2", "0#2#0", "0#2.1", "0#10", "0.1#0", "0.2#0", "0.2.5#1", "0!mark", "01#9"]
    known = Past(
        {
            place: PastNode(StartRow("p", place, 1, "call", "llm", "", "", "", "", 0.0), 0.0)
            for place in places
        }
    )
    assert known.is_behind("0", 10, 9)
    assert not known.is_behind("0", 11, 3)
    gone = [row.node for row in known.forget_after("0", 2, 2)]
    assert gone == ["0#2", "0#2#0", "0#2.1", "0#10", "0.2#0", "0.2.5#1"]
    assert known.take("0#2") is None
    assert known.take("0#1") is not None


def test_a_node_is_as_its_last_attempt_left_it() -> None:
    def start(attempt: int, at: float) -> StartRow:
        return StartRow("p", "0#0", attempt, "call", "llm", "", "", "", "", at)

    end = EndRow("p", "0#0", 1, "done", 1, "1", "", "", 5.0).marked()
    found = past.nodes_of("j", [start(2, 7.0), start(1, 3.0)], [end])["0#0"]
    assert (found.state, found.first, found.start.attempt) == ("open", 3.0, 2)
    assert past.nodes_of("j", [start(1, 3.0)], [end])["0#0"].state == "done"
