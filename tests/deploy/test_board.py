"""Grafana's board and Prometheus' settings. tests/engine/test_stack.py asks a real Prometheus."""

from __future__ import annotations

import json
import re
import runpy
import subprocess

from tests.deploy.composed import DEPLOY, Composed

BOARD = DEPLOY / "grafana" / "agentrt.json"
PAGE = DEPLOY.parent / "docs" / "monitoring.md"


def test_the_board_is_what_its_script_makes() -> None:
    """By Grafana's own types, which refuse what a panel cannot have."""
    made = runpy.run_path(str(DEPLOY / "grafana" / "board.py"))["board"]()
    assert made == BOARD.read_text("utf-8"), "run deploy/grafana/board.py"


def test_each_panel_is_on_metrics_of_the_page() -> None:
    panels = json.loads(BOARD.read_text("utf-8"))["panels"]
    listed = set(re.findall(r"`((?:agentrt_|vllm:)\w+)`", PAGE.read_text("utf-8")))
    used = {
        name.removesuffix("_bucket")
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"(?:agentrt_|vllm:)\w+", target["expr"])
    }
    assert len(panels) == 12
    assert sorted(used - listed) == []


def test_promtool_takes_the_settings_and_the_rules() -> None:
    settings = DEPLOY / "prometheus" / "prometheus.yml"
    done = subprocess.run(
        ["promtool", "check", "config", settings], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "4 rules found" in done.stdout


def test_grafana_finds_the_board_where_compose_puts_it(services: Composed) -> None:
    targets = {volume["target"] for volume in services["grafana"]["volumes"]}
    provider = (DEPLOY / "grafana/provisioning/dashboards/agentrt.yaml").read_text("utf-8")
    [folder] = re.findall(r"path: (\S+)", provider)
    assert f"{folder}/{BOARD.name}" in targets
