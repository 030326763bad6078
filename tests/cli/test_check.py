"""``agentrt serve --check``: what of a deployment is served, without an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refused, Run
from tests.cli.graphs import ECHO

pytestmark = pytest.mark.usefixtures("clean_imports")

FACTORIES = """
from langgraph_sdk import Auth
auth = Auth()

def good(config):
    return graph

def needy(config):
    config["configurable"]["cups"]
    return graph

def checks(config):
    if "cups" not in config["configurable"]:
        raise ValueError("cups are required")
    return graph

def has_defaults(config):
    configurable = config.get("configurable") or {}
    if not configurable.get("cups"):
        raise ValueError("cups are required")
    return graph

def needy_context(runtime: "ServerRuntime"):
    runtime.execution_runtime.context["spoons"]
    return graph

def for_runs(config, runtime: "ServerRuntime"):
    if runtime.execution_runtime is None:
        raise ValueError("only for runs")
    return graph

def of_users(runtime: "ServerRuntime"):
    runtime.ensure_user()
    return graph

def broken(config):
    raise OSError("no kettle")

def wants(kettle: str):
    return graph
"""


def project(folder: Path, **settings: Any) -> str:
    (folder / "agent.py").write_text(ECHO + FACTORIES)
    (folder / "langgraph.json").write_text(json.dumps(settings))
    return str(folder / "langgraph.json")


def graphs(*names: str) -> dict[str, str]:
    return {name: f"./agent.py:{name}" for name in names}


def rows(out: str) -> dict[str, str]:
    """What is said of each thing."""
    return {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()[1:]}


def test_all_of_a_deployment_is_served(tmp_path: Path, command: Run) -> None:
    path = project(
        tmp_path,
        dependencies=[".", "langgraph>=1", "tea-pot; python_version < '3'", "git+file:///tea"],
        graphs=graphs("graph", "good"),
        python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
        env={"TEA": "green"},
        http={"cors": {"allow_origins": ["*"]}, "app": None},
        webhooks={"url": {"allowed_domains": ["hooks.example.com"]}},
    )
    ran = command("serve", "--check", path)
    assert ran.code == 0
    assert rows(ran.out) == {
        "graphs.graph": "yes",
        "graphs.good": "yes",
        "dependencies": "yes",
        "python_version": "- not used; only for building an image",
        "env": "yes",
        "http.cors": "yes",
        "webhooks": "yes",
    }


def test_what_is_not_served_is_said(tmp_path: Path, command: Run) -> None:
    path = project(
        tmp_path,
        graphs={**graphs("broken", "wants", "nothing"), "js": "./agent.ts:graph"},
        auth={"path": "./agent.py:graph"},
        http={"app": "./a.py:app", "disable_store": True, "cors": {"allow_origins": "*"}},
        store={"index": {"dims": 3}},
        webhooks={"url": {"allowed_domains": "hooks.example.com"}},
        teapot=True,
    )
    ran = command("serve", "--check", path)
    assert ran.code == 1
    found = rows(ran.out)
    says = {
        "graphs.broken": "raised OSError: no kettle",
        "graphs.wants": "kettle",
        "graphs.nothing": "no variable 'nothing'",
        "graphs.js": "./agent.ts",
        "auth": "is not a langgraph_sdk.Auth",
        "http.app": "run that application as a server of its own",
        "http.disable_store": "block the paths in a proxy",
        "http.cors": "allow_origins: Input should be a valid list",
        "store.index": "no semantic search",
        "webhooks": "url.allowed_domains",
        "teapot": "unknown key",
    }
    assert found.keys() == says.keys()
    for name, words in says.items():
        assert found[name].startswith("no ")
        assert words in found[name]


def test_what_must_be_around_the_graphs_is_looked_for(tmp_path: Path, command: Run) -> None:
    path = project(
        tmp_path,
        graphs=graphs("graph"),
        dependencies=[".", "tea-pot>=1", "langgraph<0.1", "langgraph"],
        env=".env",
        python_version="3.99",
        webhooks=[1],
        checkpointer={"ttl": 5},
    )
    ran = command("serve", "--check", path)
    assert ran.code == 1
    found = rows(ran.out)
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert found["dependencies"] == "no not installed here: tea-pot>=1, langgraph<0.1"
    assert found["python_version"] == f"- not used; this server runs Python {ours}"
    assert "'.env'" in found["env"]
    assert found["webhooks"].endswith("webhooks: Input should be a valid dictionary")
    assert found["checkpointer.ttl"].endswith("ttl: Input should be a valid dictionary")


def test_a_factory_that_needs_more_of_a_run_is_served(tmp_path: Path, command: Run) -> None:
    names = "needy", "checks", "has_defaults"
    path = project(tmp_path, graphs=graphs(*names))
    ran = command("serve", "--check", path)
    says = "yes the graph's factory fails unless the config or context of a run has cups"
    assert (ran.code, rows(ran.out)) == (0, {f"graphs.{name}": says for name in names})


def test_a_factory_that_needs_a_run_is_served(tmp_path: Path, command: Run) -> None:
    path = project(tmp_path, graphs=graphs("for_runs", "needy_context"))
    ran = command("serve", "--check", path)
    assert ran.code == 0
    found = rows(ran.out)
    assert found["graphs.for_runs"].startswith("yes the graph's factory works only for runs")
    assert found["graphs.needy_context"].endswith("the config or context of a run has spoons")


@pytest.mark.parametrize("hooks", [True, False])
def test_a_factory_that_needs_a_user_needs_hooks(hooks: bool, tmp_path: Path, command: Run) -> None:
    auth = {"auth": {"path": "./agent.py:auth"}} if hooks else {}
    path = project(tmp_path, graphs=graphs("of_users"), **auth)
    assert command("serve", "--check", path).code == (0 if hooks else 1)


def test_one_graph_or_program_is_checked(tmp_path: Path, command: Run) -> None:
    path = project(tmp_path, graphs=graphs("graph", "broken"))
    ran = command("serve", "--check", f"{path}:graph")
    assert (ran.code, list(rows(ran.out))) == (0, ["graphs.graph"])
    assert command("serve", "--check", tmp_path / "agent.py").code == 0


def test_something_is_to_be_checked(refused: Refused) -> None:
    refused("serve", "--check", says=["--check", "langgraph.json"])


@pytest.mark.parametrize("name", ["broken", "wants"])
def test_a_factory_that_cannot_work_is_found_before_the_engine_starts(
    name: str, tmp_path: Path, command: Run
) -> None:
    """An engine that started first would refuse its own flag."""
    path = project(tmp_path, graphs=graphs(name), store={"index": {"dims": 3}})
    flags = ["--port", "0", "--database", f"sqlite:{tmp_path / 'a.db'}"]
    ran = command("serve", path, *flags, "--", "--max-model-len", "100000000")
    assert ran.code == 2
    assert "kettle" in ran.err
    assert "store.index is not supported: no semantic search in the store" in ran.err
