"""The live execution DAG of a program: its nodes, edges and critical path, frontiers, and
exports.
"""

from __future__ import annotations

from agentrt.graph.dag import CriticalPath, ExecutionDAG
from agentrt.graph.drawing import to_svg
from agentrt.graph.export import to_json, to_mermaid, to_networkx, write
from agentrt.graph.frontier import Frontier, calls_before, maximal
from agentrt.graph.interrupt import Interrupt, Progress
from agentrt.graph.node import Node, NodeKind, NodeState

__all__ = [
    "CriticalPath",
    "ExecutionDAG",
    "Frontier",
    "Interrupt",
    "Node",
    "NodeKind",
    "NodeState",
    "Progress",
    "calls_before",
    "maximal",
    "to_json",
    "to_mermaid",
    "to_networkx",
    "to_svg",
    "write",
]
