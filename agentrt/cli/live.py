"""The live view of running programs: a line for each program, and its nodes as a tree.

The functions here have no side effects: they turn programs, an engine's snapshot and a height into
an object that rich draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from agentrt.cli.streams import counted
from agentrt.graph import Node, NodeKind, NodeState
from agentrt.runtime.run import Run, RunState
from agentrt.scheduler.table import ProgramState, state_of

STYLES = {
    NodeState.DONE: "green",
    NodeState.FAILED: "red",
    NodeState.CANCELLED: "yellow",
    NodeState.EXPIRED: "red",
    NodeState.INTERRUPTED: "magenta",
    RunState.DONE: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "yellow",
    RunState.INTERRUPTED: "magenta",
    RunState.RUNNING: "cyan",
}
_KEPT_ENDED = 3
"""Maximum number of a program's ended nodes that are shown, in addition to its open nodes."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The engine's queue: the level of each call, and the number of calls ahead of a waiting call.

    ``named_levels`` is False for policies whose levels have no names Q1, Q2 and so on. Under these
    policies, the ``promoted`` calls use the share of the batch that is reserved for the oldest
    programs, which the view calls the lane.
    """

    levels: Mapping[str, int]
    ahead: Mapping[str, int]
    named_levels: bool = True
    promoted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> Queue:
        """Read the queue from an executor's snapshot. Fields may be missing."""
        waiting = snapshot.get("waiting") or ()
        calls = [*(snapshot.get("running") or ()), *waiting]
        return cls(
            levels={call["call_id"]: call.get("level", 0) for call in calls},
            ahead={call["call_id"]: call.get("ahead", 0) for call in waiting},
            named_levels=snapshot.get("named_levels", True),
            promoted=frozenset(call["call_id"] for call in calls if call.get("promoted")),
        )

    def describe(self, call_id: str) -> str:
        """Return words that describe the state of a call. The first level is Q1, as in the Agentix
        paper.
        """
        if call_id not in self.levels:
            return "being sent"
        level = "lane" if call_id in self.promoted else ""
        level = f"Q{self.levels[call_id] + 1}" if self.named_levels else level
        if call_id not in self.ahead:
            return f"running, {level}" if level else "running"
        before = self.ahead[call_id]
        place = "next" if before == 0 else f"behind {counted(before, 'call')}"
        return f"waiting at {level}, {place}" if level else f"waiting, {place}"


def render(
    runs: Sequence[Run], snapshot: Mapping[str, Any], now: float, height: int
) -> RenderableType:
    """Draw the programs in at most ``height`` rows; ``now`` is the time on the runs' clock, in
    seconds.
    """
    queue = Queue.of(snapshot)
    shown, hidden = _fit(runs, height)
    open_programs = sum(run.state is RunState.RUNNING for run in shown)
    spare = height - len(shown) - bool(hidden)
    trees: list[RenderableType] = []
    for run in shown:
        rows = 0
        if run.state is RunState.RUNNING:
            # Each running program gets an equal share of the rows that are left.
            rows = spare // open_programs
            open_programs -= 1
        tree = Tree(_headline(run, now), guide_style="dim")
        spare -= _add_nodes(tree, run, queue, now, rows)
        trees.append(tree)
    if hidden:
        trees.append(_hidden_line(hidden))
    return Group(*trees)


def _fit(runs: Sequence[Run], height: int) -> tuple[list[Run], list[Run]]:
    """Split the runs into the runs that get a line and the runs that do not. Running programs get
    lines first.
    """
    if len(runs) <= height:
        return list(runs), []
    ranked = sorted(runs, key=lambda run: run.state is not RunState.RUNNING)
    room = max(1, height - 1)
    return ranked[:room], ranked[room:]


def _hidden_line(hidden: Sequence[Run]) -> Text:
    states = Counter(str(run.state) for run in hidden)
    words = ", ".join(f"{count} {state}" for state, count in states.items())
    return _line(f"… and {len(hidden)} more: {words}", "dim")


def _headline(run: Run, now: float) -> Text:
    row = run.row
    end = now if run.ended_at is None else run.ended_at
    line = _line(run.id, "bold")
    line.append(f"  {_doing(run, now)}", STYLES[run.state])
    line.append(f"  {end - run.started_at:.1f} s")
    line.append(f"  {counted(row.finished_calls + len(row.calls), 'call')}")
    line.append(f"  {row.usage.prompt_tokens} → {row.usage.output_tokens} tokens", "dim")
    if row.usage.preemptions:
        line.append(f"  {row.usage.preemptions} preempted", "dim")
    return line


def _doing(run: Run, now: float) -> str:
    if run.state is not RunState.RUNNING:
        return str(run.state)
    state = state_of(run.row, now, float("inf"))
    # A program without an open call, tool or question executes its own code.
    idle = state is ProgramState.RUNNING and not run.row.calls
    return "between calls" if idle else str(state)


def _add_nodes(tree: Tree, run: Run, queue: Queue, now: float, rows: int) -> int:
    """Add the program's nodes to ``tree``, grouped by scope. Return the number of rows used."""
    chosen, used = _choose(run, rows)
    branches: dict[tuple[str, ...], Tree] = {(): tree}
    for node in sorted(chosen, key=lambda node: node.id):
        scope = _scope(run, node)
        for depth in range(1, len(scope) + 1):
            part = scope[:depth]
            if part not in branches:
                branches[part] = branches[part[:-1]].add(_line(part[-1], "blue"))
        branches[scope].add(_node_line(run, node, queue, now))
    return used


def _choose(run: Run, rows: int) -> tuple[list[Node], int]:
    """Return the nodes that fit into ``rows``, and the number of rows that these nodes and the
    headings of their scopes need.
    """
    chosen: list[Node] = []
    headers: set[tuple[str, ...]] = set()
    used = 0
    for node in _candidates(run):
        scope = _scope(run, node)
        new = {scope[:depth] for depth in range(1, len(scope) + 1)} - headers
        if used + len(new) + 1 > rows:
            break
        headers |= new
        used += len(new) + 1
        chosen.append(node)
    return chosen, used


def _candidates(run: Run) -> Iterator[Node]:
    """Yield the open nodes, oldest first, then the last few ended nodes, newest first."""
    yield from sorted(run.dag.running() + run.dag.waiting(), key=lambda node: node.id)
    ended = 0
    for node in reversed(run.dag.nodes()):
        if node.state.ended:
            yield node
            ended += 1
            if ended == _KEPT_ENDED:
                return


def _scope(run: Run, node: Node) -> tuple[str, ...]:
    """Return the names of the scopes around a node, without the scope of the program itself."""
    parts = tuple(part for part in node.scope.split("/") if part)
    return parts[1:] if parts[:1] == (run.type,) else parts


def _node_line(run: Run, node: Node, queue: Queue, now: float) -> Text:
    line = _line(" ".join(node.name.split()))
    line.append(f"  {_node_state(run, node, queue, now)}", STYLES.get(node.state, "cyan"))
    return line


_OUTSIDE = {
    NodeKind.TOOL: "tool",
    NodeKind.HUMAN: "waits for a human",
    NodeKind.EVENT: "waits for an event",
}


def _node_state(run: Run, node: Node, queue: Queue, now: float) -> str:
    if node.ended_at is not None:
        seconds = f"{node.ended_at - node.created_at:.1f} s"
        return f"{node.state}: {node.error}" if node.error else f"{node.state} in {seconds}"
    seconds = f"{now - node.created_at:.1f} s"
    if node.kind is NodeKind.CALL:
        return f"{queue.describe(f'{run.id}/{node.id}')}, {seconds}"
    if node.state is NodeState.WAITING:
        return f"waiting {node.wait}, {seconds}"
    parts = (_OUTSIDE[node.kind], str(node.interrupt or ""), seconds)
    return ", ".join(part for part in parts if part)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
