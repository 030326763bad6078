"""Compose: Docker Compose takes the file, and the services open and give away nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentrt.cli.serve import serve
from tests.deploy.composed import DEPLOY, PASSWORDS, Composed, composed, config

RULES = """
extends: default
rules:
  braces: {max-spaces-inside: 1}
  document-start: disable
  line-length: {max: 100}
ignore: [templates]
"""


def test_yamllint_finds_nothing() -> None:
    done = subprocess.run(
        ["yamllint", "--strict", "--config-data", RULES, str(DEPLOY)],
        env={"PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", PASSWORDS)
def test_each_password_must_be_given(name: str) -> None:
    others = {other: word for other, word in PASSWORDS.items() if other != name}
    done = config("--env-file", os.devnull, **others)
    assert done.returncode != 0
    assert f"required variable {name} is missing a value: name one in deploy/.env" in done.stderr


def test_ports_are_of_the_loopback_alone(services: Composed) -> None:
    published = [port for one in services.values() for port in one.get("ports", ())]
    assert len(published) == 4
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_each_service_says_whether_it_is_well(services: Composed) -> None:
    """The server's check is in its image."""
    assert [name for name, one in services.items() if "healthcheck" not in one] == ["server"]
    needed = services["server"]["depends_on"].values()
    assert {one["condition"] for one in needed} == {"service_healthy"}


def test_a_stop_may_last_as_long_as_the_server_drains(services: Composed) -> None:
    context = serve.make_context(
        "serve", services["server"]["command"][1:], resilient_parsing=False
    )
    grace = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", services["server"]["stop_grace_period"])
    assert grace is not None
    seconds = 60 * int(grace[1] or 0) + int(grace[2] or 0)
    assert seconds >= context.params["drain_timeout"] + 20


def test_hosts_are_services_and_files_are_there(services: Composed) -> None:
    command = " ".join(services["server"]["command"])
    hosts = set(re.findall(r"://(?:\w+@)?(\w+)", command))
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text("utf-8"))
    [job] = scraped["scrape_configs"]
    hosts.update(target.partition(":")[0] for target in job["static_configs"][0]["targets"])
    sources = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text("utf-8")
    )
    hosts.update(re.findall(r"://(\w+)", sources["datasources"][0]["url"]))
    assert hosts == {"postgres", "mosquitto", "server", "prometheus"}
    assert hosts < set(services)
    bound = [
        volume["source"]
        for one in services.values()
        for volume in one.get("volumes", ())
        if volume["type"] == "bind"
    ]
    assert len(bound) == 5
    assert [source for source in bound if not Path(source).exists()] == []


def test_the_file_for_gpus_changes_the_engine() -> None:
    server = composed("-f", "compose.yaml", "-f", "compose.gpu.yaml")["server"]
    assert server["build"]["args"]["ENGINE"] == "engine"
    assert server["gpus"]
    assert int(server["shm_size"]) == 64 << 30
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert all(f"ARG {name}" in dockerfile for name in server["build"]["args"])
