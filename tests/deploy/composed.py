"""deploy/compose.yaml as Docker Compose itself reads it: variables filled in, checked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import compose

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PASSWORDS = {
    "POSTGRES_PASSWORD": "of-postgres",
    "MQTT_PASSWORD": "of-mosquitto",
    "GRAFANA_PASSWORD": "of-grafana",
}
Composed = dict[str, dict[str, Any]]
"""Each service's settings."""


def config(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `docker compose config` says, with these variables and no others of Compose's."""
    program = Path(compose.__file__).with_name("docker-compose")
    return subprocess.run(
        [program, *options, "config", "--format", "json"],
        cwd=DEPLOY,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def composed(*options: str, **variables: str) -> Composed:
    """The services, with their files' own words for a dollar sign."""
    done = config("--env-file", os.devnull, *options, **PASSWORDS, **variables)
    assert done.returncode == 0, done.stderr
    found: Composed = json.loads(done.stdout.replace("$$", "$"))["services"]
    return found
