"""Exporting an execution DAG as JSON, as a networkx graph, or as a Mermaid drawing.

The JSON object has these fields; times are in seconds:

- ``version``: 1
- ``program``: an object with ``id``, ``type``, ``state`` and ``closed_at``
- ``nodes``: a list of objects with all fields of `Node`; ``report`` (without ``spans``) and
  ``interrupt`` are objects or null
- ``edges``: a list of objects with ``from`` and ``to``, the ids of a parent and of its child
- ``critical_path``: an object with ``seconds`` and ``nodes``, the ids of the nodes on the path
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.errors import ConfigError
from agentrt.graph.dag import ExecutionDAG
from agentrt.graph.node import Node, NodeKind

if TYPE_CHECKING:
    import networkx

_SHAPES = {
    NodeKind.CALL: ("[", "]"),
    NodeKind.TOOL: ("([", "])"),
    NodeKind.HUMAN: ("{{", "}}"),
    NodeKind.EVENT: ("[/", "/]"),
}
_PLAIN = frozenset(" .,:/_-+*()=%@!?'")
_CRITICAL = "classDef critical stroke:#d33,stroke-width:3px"


def to_json(dag: ExecutionDAG) -> dict[str, Any]:
    """Return the DAG as JSON values, in the form that the module's docstring describes."""
    path = dag.critical_path()
    return {
        "version": 1,
        "program": {
            "id": dag.program_id,
            "type": dag.program_type,
            "state": dag.state.value,
            "closed_at": dag.closed_at,
        },
        "nodes": [_node_json(node) for node in dag.nodes()],
        "edges": [{"from": parent, "to": child} for parent, child in _edges(dag)],
        "critical_path": {"seconds": path.seconds, "nodes": list(path.nodes)},
    }


def to_networkx(dag: ExecutionDAG) -> networkx.DiGraph[int]:
    """Return the DAG as a networkx graph. Nodes have their ids as keys, and the fields of a node in
    `to_json` as attributes.
    """
    # networkx is imported here, because importing it is slow and few programs need it.
    import networkx

    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.graph.update(program_id=dag.program_id, program_type=dag.program_type)
    for node in dag.nodes():
        graph.add_node(node.id, **{k: v for k, v in _node_json(node).items() if k != "id"})
    graph.add_edges_from(_edges(dag))
    return graph


def to_mermaid(dag: ExecutionDAG) -> str:
    """Return the DAG as a Mermaid flowchart. Calls are boxes, tools are rounded boxes, questions
    to humans are hexagons, and events are parallelograms.
    """
    return "\n".join(["flowchart TD", *_body(dag, "n", "    "), f"    {_CRITICAL}", ""])


def write(dags: ExecutionDAG | Sequence[ExecutionDAG], path: str | os.PathLike[str]) -> None:
    """Write one or several DAGs to the file ``path``. The suffix decides the format: ``.json`` for
    data, or ``.mmd`` for a Mermaid drawing.

    Several DAGs become a JSON array, or subgraphs of one drawing. Raises `ConfigError` for any
    other suffix, and `OSError` if the file cannot be written.
    """
    target = Path(path)
    single = dags if isinstance(dags, ExecutionDAG) else None
    several = [] if isinstance(dags, ExecutionDAG) else dags
    if target.suffix == ".json":
        values = to_json(single) if single is not None else [to_json(dag) for dag in several]
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    elif target.suffix == ".mmd":
        text = to_mermaid(single) if single is not None else _subgraphs(several)
    else:
        raise ConfigError(
            f"cannot write a graph to {target.name!r}: "
            "name a file that ends in .json (data) or .mmd (a Mermaid drawing)"
        )
    target.write_text(text, encoding="utf-8")


def _node_json(node: Node) -> dict[str, Any]:
    interrupt = node.interrupt
    # Leave the arguments out of asdict, which would copy them, and which fails for values such as
    # locks and open files.
    fields = asdict(replace(node, interrupt=None))
    if interrupt is not None:
        arguments = interrupt.arguments
        fields["interrupt"] = asdict(replace(interrupt, arguments=None))
        fields["interrupt"]["arguments"] = None if arguments is None else _plain(arguments)
    if node.report is not None:
        # A span has no start time, so spans are useful only with the times in a journal.
        del fields["report"]["spans"]
        fields["report"]["versions"] = [[*pair] for pair in node.report.versions]
    fields["kind"] = node.kind.value
    fields["state"] = node.state.value
    fields["parents"] = list(node.parents)
    return fields


def _plain(arguments: Mapping[str, Any]) -> Any:
    """Convert arguments into JSON values. The arguments of a local function may be any objects, so
    values that JSON does not support become text.
    """
    try:
        return json.loads(json.dumps(dict(arguments), default=repr, skipkeys=True))
    except (ValueError, RecursionError):  # a value that contains itself
        return repr(arguments)


def _edges(dag: ExecutionDAG) -> Iterator[tuple[int, int]]:
    for node in dag.nodes():
        for parent in node.parents:
            yield parent, node.id


def _subgraphs(dags: Sequence[ExecutionDAG]) -> str:
    lines = ["flowchart TD"]
    for index, dag in enumerate(dags):
        title = _escape(f"{dag.program_type} {dag.program_id}")
        lines.append(f'    subgraph p{index}["{title}"]')
        lines.extend(_body(dag, f"p{index}n", "        "))
        lines.append("    end")
    return "\n".join([*lines, f"    {_CRITICAL}", ""])


def _body(dag: ExecutionDAG, prefix: str, indent: str) -> Iterator[str]:
    for node in dag.nodes():
        left, right = _SHAPES[node.kind]
        yield f'{indent}{prefix}{node.id}{left}"{_label(node)}"{right}'
    for parent, child in _edges(dag):
        yield f"{indent}{prefix}{parent} --> {prefix}{child}"
    critical = dag.critical_path().nodes
    if critical:
        names = ",".join(f"{prefix}{node_id}" for node_id in critical)
        yield f"{indent}class {names} critical"


def caption(node: Node) -> list[str]:
    """Return the lines of a node's label: the name of the node, its scope (if any), and a last
    line. For an open node, the last line is its state. For an ended node, the last line is its
    duration in seconds, followed by its state if it has an error. The duration of a call is its
    service, and the duration of an interrupt is the wall time from its emission to its end.
    """
    if node.ended_at is None:
        last = node.state.value
    else:
        call = node.kind is NodeKind.CALL
        seconds = node.service_s if call else node.ended_at - node.created_at
        last = f"{seconds:.3g} s" if node.error is None else f"{seconds:.3g} s, {node.state}"
    return [part for part in (node.name, node.scope, last) if part]


def _label(node: Node) -> str:
    return "<br/>".join(map(_escape, caption(node)))


def _escape(text: str) -> str:
    """Escape text for a quoted Mermaid label: replace characters that may be Mermaid syntax by
    number codes.
    """
    # Quotes, brackets, backticks, # and & have a meaning in Mermaid; letters of any script have
    # none. A line break would end the statement.
    flat = " ".join(text.split())
    return "".join(c if c.isalnum() or c in _PLAIN else f"#{ord(c)};" for c in flat)
