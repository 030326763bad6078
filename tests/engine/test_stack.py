"""Compose's services as processes of this machine: the server, PostgreSQL, Mosquitto, Prometheus.

Their settings are those of deploy/. Only hosts, ports and folders are others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import paho.mqtt.publish
import pytest
import yaml

from tests.deploy.composed import DEPLOY, PASSWORDS, Composed, composed
from tests.doubles.ports import reserved_port
from tests.doubles.tinymodel import tiny_model
from tests.engine.forked import forked_python
from tests.engine.served import START_S, WAIT_S, url_of
from tests.serving.langgraph.postgres import cluster

if TYPE_CHECKING:
    from paho.mqtt.publish import AuthParameter

pytestmark = pytest.mark.engine

ROOT = DEPLOY.parent
FLAGS = "--dtype float32 --max-model-len 2048 --block-size 32"
PROGRAM = """
from agentrt import Context, program

@program
async def greet(ctx: Context, name: object) -> str:
    return (await ctx.llm(f"Greet {name}.", max_tokens=30)).text
"""
EVERY = "1s"
"""How often Prometheus looks here, and how long it waits for an answer. A busy machine may need
more than a quarter of a second.
"""


class Service:
    """A process and what it says, which is asked until it is as it should be."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            said = self.log.read_text("utf-8", "replace")[-2000:]
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)  # another process: it is asked, not told


@contextmanager
def running(log: Path, command: list[str], given: Mapping[str, str]) -> Iterator[Service]:
    """The command, until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=log.parent, stdout=output, stderr=output, env=os.environ | given
        )
    try:
        yield Service(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(WAIT_S)


@contextmanager
def mosquitto(services: Composed, folder: Path) -> Iterator[int]:
    """Compose's own command. Gives the port."""
    service, port = services["mosquitto"], reserved_port()
    settings = (DEPLOY / "mosquitto.conf").read_text("utf-8")
    settings = settings.replace("listener 1883", f"listener {port} 127.0.0.1")
    settings = settings.replace("/tmp/", f"{folder}/")
    if os.geteuid() == 0:  # in its container it is not
        settings += "user root\n"
    (folder / "mosquitto.conf").write_text(settings, "utf-8")
    command = [
        word.replace("/tmp/", f"{folder}/").replace("/mosquitto/config/", f"{folder}/")
        for word in service["command"]
    ]
    path = {"PATH": f"{os.environ['PATH']}:/usr/sbin"}
    with running(folder / "mosquitto.log", command, service["environment"] | path) as it:
        it.until(lambda: "running" in it.log.read_text("utf-8"))
        yield port


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    """It scrapes ``target``. Gives a client of its API."""
    shutil.copytree(DEPLOY / "prometheus", folder / "prometheus")
    file = folder / "prometheus" / "prometheus.yml"
    settings = yaml.safe_load(file.read_text("utf-8"))
    settings["global"] = dict.fromkeys(settings["global"], EVERY)
    [job] = settings["scrape_configs"]
    job["static_configs"] = [{"targets": [target]}]
    job["scrape_timeout"] = EVERY
    file.write_text(yaml.safe_dump(settings), "utf-8")
    port = reserved_port()
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder}/tsdb"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with (
        running(folder / "prometheus.log", command, {}) as it,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as api,
    ):
        it.until(lambda: "Server is ready" in it.log.read_text("utf-8"))
        yield api


@dataclass(frozen=True, slots=True)
class Stack:
    """The server, where it serves, and the broker's port."""

    server: Service
    url: str
    broker: int


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """The server, as Compose starts it with a file, a model and a trigger."""
    (tmp_path / "greet.py").write_text(PROGRAM, "utf-8")
    model = tiny_model(tmp_path / "tiny")
    more = f"/programs/greet.py --model {model} --served-model-name tiny --max-num-seqs 1"
    arguments = f"{more} --on mqtt:alarm/#=greet --on-tenant plant --port 0 -- {FLAGS}"
    services = composed(AGENTRT_ARGS=arguments)
    with ExitStack() as opened:
        database = opened.enter_context(cluster(PASSWORDS["POSTGRES_PASSWORD"]))
        broker = opened.enter_context(mosquitto(services, tmp_path))
        here = {
            "0.0.0.0": "127.0.0.1",
            "/programs/": f"{tmp_path}/",
            "postgresql://agentrt@postgres/agentrt": database,
            "@mosquitto": f"@127.0.0.1:{broker}",
        }
        command = services["server"]["command"]
        for theirs, ours in here.items():
            assert any(theirs in word for word in command)
            command = [word.replace(theirs, ours) for word in command]
        given = {k: v for k, v in services["server"]["environment"].items() if v is not None}
        with forked_python(tmp_path):
            start = [sys.executable, "-m", "agentrt.cli", *command]
            server = opened.enter_context(running(tmp_path / "server.log", start, given))
        url = url_of(server.process, server.log, "tiny, greet")
        yield Stack(server, url, broker)


def tell(broker: int, topic: str) -> None:
    """Publish a message, as the user that Compose's services are."""
    user: AuthParameter = {"username": "agentrt", "password": PASSWORDS["MQTT_PASSWORD"]}
    paho.mqtt.publish.single(topic, "hot", 1, hostname="127.0.0.1", port=broker, auth=user)


def expressions() -> set[str]:
    """What the board asks for."""
    board = json.loads((DEPLOY / "grafana" / "agentrt.json").read_text("utf-8"))
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return {expression.replace("$__rate_interval", "1m") for expression in targets}


@contextmanager
def users(server: httpx.Client) -> Iterator[None]:
    """Three, who run programs one after another while the block lasts."""
    over = threading.Event()

    def user() -> None:
        while not over.is_set():
            server.post("/v1/programs/greet/runs", json={"input": "Ann"}).raise_for_status()

    threads = [threading.Thread(target=user) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_the_services_work_together(stack: Stack, tmp_path: Path) -> None:
    """The board's queries find what the server counts; a signal ends it once all is answered."""
    it, at = stack.server, stack.url.removeprefix("http://")
    with httpx.Client(base_url=stack.url, timeout=WAIT_S) as server:
        is_well(stack.url)
        assert server.get("/metrics", headers={"host": "server:8000"}).status_code == 200
        assert server.get("/metrics", headers={"host": "elsewhere"}).status_code == 403

        def was_told() -> bool:
            tell(stack.broker, "alarm/1")  # again: none is kept from before the subscription
            return 'tenant="plant"' in server.get("/metrics").text

        it.until(was_told)
        with prometheus(tmp_path, at) as api, users(server):
            asks_the_board(api, it)
        body = {"model": "tiny", "prompt": "Go on.", "max_tokens": 200, "stream": True}
        with server.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            it.process.send_signal(signal.SIGTERM)
            assert "[DONE]" in "\n".join(lines)
    assert it.process.wait(WAIT_S) == 128 + signal.SIGTERM
    assert "stopped: " in it.log.read_text("utf-8", "replace")


def is_well(url: str) -> None:
    """The image's own check of its health says so."""
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    check = re.search(r"HEALTHCHECK .*\n\s+CMD (\[.*\])", dockerfile)
    assert check is not None
    program, *words = json.loads(
        check[1].replace("'127.0.0.1', 8000", f"'127.0.0.1', {httpx.URL(url).port}")
    )
    found = shutil.which(program)
    assert found is not None
    subprocess.run([found, *words], check=True)


def asks_the_board(api: httpx.Client, it: Service) -> None:
    """Until each query has found something; and no alert is on."""
    missing = expressions()

    def all_found() -> bool:
        for query in sorted(missing):
            answer = api.get("/api/v1/query", params={"query": query}).json()
            assert answer["status"] == "success", (query, answer)
            if answer["data"]["result"]:
                missing.discard(query)
        return not missing

    it.until(all_found)
    groups = api.get("/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule["health"] for rule in rules] == ["ok"] * 4
    assert {rule["state"] for rule in rules} == {"inactive"}
