"""The image: its Dockerfile is checked, and its build stage runs here, in a folder."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from dockerfile_parse import DockerfileParser

from tests.packaging.wheels import settings

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
ARGUMENTS = {"ENGINE": "serve", "EXTRAS": "mqtt,postgres"}
"""An engine takes 2 GB: here the server stands in its place."""
Step = tuple[str, str]
"""An instruction of the Dockerfile, and its value."""


@pytest.fixture(scope="module")
def stages() -> list[list[Step]]:
    """The steps of each stage; what comes before the first is left out."""
    found: list[list[Step]] = []
    for one in DockerfileParser(str(DOCKERFILE), cache_content=True).structure:
        if one["instruction"] == "FROM":
            found.append([])
        elif found:
            found[-1].append((one["instruction"], one["value"]))
    return found


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), DOCKERFILE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_the_server_is_the_first_process_and_not_root(stages: list[list[Step]]) -> None:
    """A shell between Docker and the server would keep SIGTERM to itself."""
    last = dict(stages[-1])
    assert json.loads(last["ENTRYPOINT"]) == ["agentrt"]
    assert json.loads(last["CMD"]) == ["serve", "--host", "0.0.0.0"]
    assert int(last["USER"]) > 0
    written = json.loads(last["VOLUME"])
    assert last["WORKDIR"] in written
    [makes] = [value for what, value in stages[-1] if what == "RUN"]
    assert all(folder in makes for folder in written)


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1)])
def test_the_health_check_uses_no_proxy(
    stages: list[list[Step]], monkeypatch: pytest.MonkeyPatch, status: int, exit_code: int
) -> None:
    """Docker itself sets HTTP_PROXY in containers if its configuration has proxies."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Do not print requests."""

    command = json.loads(dict(stages[-1])["HEALTHCHECK"].partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        code = command[2].replace("8000", str(server.server_port))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        server.shutdown()
    assert done.returncode == exit_code, done.stderr


def context(folder: Path) -> None:
    """What .dockerignore lets into the build."""
    named = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for name in (line[1:] for line in named if line.startswith("!")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            no_cache = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=no_cache)
        else:
            shutil.copy(ROOT / name, folder / name)


def test_the_build_stage_makes_an_environment_with_the_command(
    stages: list[list[Step]], tmp_path: Path
) -> None:
    source, opt = tmp_path / "src", tmp_path / "opt"
    context(source)
    environment = {**settings(), **ARGUMENTS, "UV_COMPILE_BYTECODE": "0"}
    environment.pop("PYTHONPATH", None)
    lines = ["set -e"]
    for what, value in stages[1]:
        if what == "ARG":
            assert value.partition("=")[0] in ARGUMENTS
        if what == "RUN":
            lines.append(re.sub(r"--mount=\S+ ", "", value).replace("/opt/", f"{opt}/"))
    script = ["bash", "-c", "\n".join(lines)]
    done = subprocess.run(
        script, cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    command = [str(opt / "agentrt/bin/agentrt"), "serve", "--help"]
    said = subprocess.check_output(command, env=environment, text=True)
    assert "--drain-timeout" in said
    imports = "import psycopg, aiomqtt, fastapi, agentrt; print(agentrt.__file__)"
    at = subprocess.check_output([opt / "agentrt/bin/python", "-Ic", imports], text=True)
    assert at.startswith(str(opt))
