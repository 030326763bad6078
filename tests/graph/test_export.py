"""A small DAG, exported each way, compared with the text written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any
from xml.etree import ElementTree

import pytest

from agentrt.errors import ConfigError
from agentrt.graph import (
    ExecutionDAG,
    Interrupt,
    NodeKind,
    NodeState,
    Progress,
    to_json,
    to_mermaid,
    to_networkx,
    to_svg,
    write,
)
from agentrt.request import CallReport

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def dag() -> ExecutionDAG:
    """Plan (2 s), then a search and a side call (1 s) at once, then a question that is open."""
    dag = ExecutionDAG("p1", "demo")
    dag.add(NodeKind.CALL, "qwen", "main/plan", (), 0.0)
    dag.start(0, 0.5)
    dag.finish(0, 3.0, CallReport(service_s=2.0, output_tokens=7))
    dag.add(NodeKind.TOOL, 'find "x" <b>', "main", (0,), 3.0)
    dag.add(NodeKind.CALL, "qwen", "", (0,), 3.0)
    dag.fail(1, 4.5, "no net")
    dag.finish(2, 5.0, CallReport(service_s=1.0))
    dag.add(NodeKind.HUMAN, "ask", "main", (1, 2), 5.0)
    return dag


def test_json_has_the_documented_shape(dag: ExecutionDAG) -> None:
    value = to_json(dag)
    assert json.loads(json.dumps(value)) == value
    assert value["version"] == 1
    assert list(value) == ["version", "program", "nodes", "edges", "critical_path"]
    assert value["program"] == {
        "id": "p1",
        "type": "demo",
        "state": "running",
        "closed_at": None,
    }
    assert value["edges"] == [
        {"from": 0, "to": 1},
        {"from": 0, "to": 2},
        {"from": 1, "to": 3},
        {"from": 2, "to": 3},
    ]
    assert value["critical_path"] == {"seconds": 3.0, "nodes": [0, 2]}
    first, failed = value["nodes"][:2]
    assert first["report"]["output_tokens"] == 7
    del first["report"]
    assert first == {
        "id": 0,
        "kind": "call",
        "name": "qwen",
        "scope": "main/plan",
        "parents": [],
        "created_at": 0.0,
        "path_s": 0.0,
        "depth": 0,
        "via": None,
        "state": "done",
        "started_at": 0.5,
        "ended_at": 3.0,
        "service_s": 2.0,
        "wait": "",
        "error": None,
        "interrupt": None,
    }
    assert (failed["state"], failed["error"], failed["report"]) == ("failed", "no net", None)


def test_json_of_a_closed_program(dag: ExecutionDAG) -> None:
    dag.close(9.0, NodeState.DONE)
    assert to_json(dag)["program"]["closed_at"] == 9.0
    assert to_json(dag)["nodes"][3]["state"] == "cancelled"


def test_networkx_has_the_same_nodes_and_edges(dag: ExecutionDAG) -> None:
    graph = to_networkx(dag)
    assert sorted(graph.edges) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert graph.nodes[2]["path_s"] == 2.0
    assert "id" not in graph.nodes[2]
    assert graph.nodes[0]["kind"] == "call"
    assert graph.graph == {"program_id": "p1", "program_type": "demo"}


def test_mermaid_of_one_program(dag: ExecutionDAG) -> None:
    assert to_mermaid(dag) == (
        "flowchart TD\n"
        '    n0["qwen<br/>main/plan<br/>2 s"]\n'
        '    n1(["find #34;x#34; #60;b#62;<br/>main<br/>1.5 s, failed"])\n'
        '    n2["qwen<br/>1 s"]\n'
        '    n3{{"ask<br/>main<br/>waiting"}}\n'
        "    n0 --> n1\n"
        "    n0 --> n2\n"
        "    n1 --> n3\n"
        "    n2 --> n3\n"
        "    class n0,n2 critical\n"
        "    classDef critical stroke:#d33,stroke-width:3px\n"
    )


def test_mermaid_labels_stay_on_one_line() -> None:
    dag = ExecutionDAG("p", "t")
    dag.add(NodeKind.CALL, 'a\nb"]; `c` #1 & [é] 模型', "main", (), 0.0)
    assert to_mermaid(dag).splitlines()[1] == (
        '    n0["a b#34;#93;#59; #96;c#96; #35;1 #38; #91;é#93; 模型<br/>main<br/>waiting"]'
    )


def test_mermaid_of_nothing() -> None:
    assert to_mermaid(ExecutionDAG("p", "t")).splitlines() == [
        "flowchart TD",
        "    classDef critical stroke:#d33,stroke-width:3px",
    ]


def test_svg_has_each_node_below_its_parents(dag: ExecutionDAG) -> None:
    drawn = ElementTree.fromstring(to_svg(dag))
    boxes = drawn.findall(f"{SVG}g")
    assert [[text.text for text in box.findall(f"{SVG}text")] for box in boxes] == [
        ["qwen", "main/plan", "2 s"],
        ['find "x" <b>', "main", "1.5 s, failed"],
        ["qwen", "1 s"],
        ["ask", "main", "waiting"],
    ]
    places = [box.find(f"{SVG}rect") for box in boxes]
    tops = [float(place.attrib["y"]) for place in places if place is not None]
    assert tops[0] < tops[1] == tops[2] < tops[3]
    assert len({place.attrib["x"] for place in places[1:3] if place is not None}) == 2
    edges = [path.attrib["stroke"] for path in drawn.findall(f"{SVG}path")]
    assert (len(edges), edges.count("#d33")) == (4, 1)


def test_an_edge_that_skips_a_node_of_the_critical_path_is_not_on_it() -> None:
    dag = ExecutionDAG("p", "t")
    for node, parents in enumerate([(), (0,), (0, 1)]):
        dag.add(NodeKind.CALL, "m", "main", parents, 0.0)
        dag.start(node, 0.0)
        dag.finish(node, 1.0, CallReport(service_s=1.0))
    edges = ElementTree.fromstring(to_svg(dag)).findall(f"{SVG}path")
    # The edges of the third node come last, in the order of its parents.
    assert [path.attrib["stroke"] for path in edges] == ["#d33", "#888", "#d33"]


def test_svg_of_nothing() -> None:
    drawn = ElementTree.fromstring(to_svg(ExecutionDAG("p", "t & u")))
    assert [part.text for part in drawn] == ["t & u p: running"]


def test_write_several_as_subgraphs(dag: ExecutionDAG, tmp_path: Path) -> None:
    other = ExecutionDAG("p[2]", "demo")
    other.add(NodeKind.CALL, "m", "main", (), 0.0)
    write([dag, other], tmp_path / "two.mmd")
    lines = (tmp_path / "two.mmd").read_text(encoding="utf-8").splitlines()
    assert lines[:3] == [
        "flowchart TD",
        '    subgraph p0["demo p1"]',
        '        p0n0["qwen<br/>main/plan<br/>2 s"]',
    ]
    assert lines[-5:] == [
        "    end",
        '    subgraph p1["demo p#91;2#93;"]',
        '        p1n0["m<br/>main<br/>waiting"]',
        "    end",
        "    classDef critical stroke:#d33,stroke-width:3px",
    ]
    assert "        class p0n0,p0n2 critical" in lines


def test_write_json_and_mermaid(dag: ExecutionDAG, tmp_path: Path) -> None:
    dag.add(NodeKind.CALL, "模型", "main", (), 6.0)
    write(dag, tmp_path / "one.json")
    text = json.dumps(to_json(dag), indent=2, ensure_ascii=False) + "\n"
    assert (tmp_path / "one.json").read_bytes() == text.encode()
    write([dag], str(tmp_path / "list.json"))
    assert json.loads((tmp_path / "list.json").read_text()) == [to_json(dag)]
    write(dag, tmp_path / "one.mmd")
    assert (tmp_path / "one.mmd").read_text() == to_mermaid(dag)


def test_another_suffix_is_refused(dag: ExecutionDAG, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        write(dag, tmp_path / "one.png")
    assert str(refused.value) == (
        "cannot write a graph to 'one.png': "
        "name a file that ends in .json (data) or .mmd (a Mermaid drawing)"
    )
    assert list(tmp_path.iterdir()) == []


def test_arguments_of_any_kind_are_exported(dag: ExecutionDAG) -> None:
    """A function of this process may be given a lock, or what contains itself."""
    lock, circle = Lock(), list[object]()
    circle.append(circle)
    many: list[dict[Any, Any]] = [{"n": 1, "lock": lock, (1, 2): "no name"}, {"circle": circle}]
    for arguments in many:
        node = dag.add(NodeKind.TOOL, "drill", "main", (), 6.0)
        node.interrupt = Interrupt("thread", arguments, attempt=2, progress=Progress(1, 3))
    odd, circular = (node["interrupt"] for node in to_json(dag)["nodes"][-2:])
    assert odd["arguments"] == {"n": 1, "lock": repr(lock)}
    assert circular["arguments"] == "{'circle': [[...]]}"
    assert odd["progress"] == {"done": 1, "total": 3, "message": ""}


def test_a_drawing_tells_what_was_late_from_what_failed(dag: ExecutionDAG) -> None:
    dag.expire(dag.add(NodeKind.TOOL, "drill", "main", (), 6.0).id, 8.0, "late")
    assert "1.5 s, failed" in to_mermaid(dag)
    assert "drill<br/>main<br/>2 s, expired" in to_mermaid(dag)
