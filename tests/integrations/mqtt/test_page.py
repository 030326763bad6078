"""What docs/mqtt.md says: a worker, rules for Mosquitto."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrt.errors import ToolFailedError, ToolUnavailableError
from agentrt.integrations.mqtt import Broker, read_broker
from tests.integrations.mqtt.mosquitto import Mosquitto
from tests.integrations.mqtt.processes import ROOT, workers
from tests.integrations.mqtt.side import calling, until
from tests.integrations.mqtt.test_questions import chooser, opened
from tests.pages import blocks


@pytest.fixture
def drill(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The worker of the page, in a process of its own."""
    [source] = blocks("mqtt.md")
    assert len(source.splitlines()) < 60
    file = tmp_path / "drill.py"
    file.write_text(source)
    place = {"BROKER": "127.0.0.1", "PORT": str(mosquitto.port)}
    worker = subprocess.Popen([sys.executable, str(file)], env={**os.environ, **place})
    yield worker
    worker.kill()
    worker.wait()


async def test_the_worker_of_the_page_works(
    mosquitto: Mosquitto, drill: subprocess.Popen[bytes]
) -> None:
    async with calling(mosquitto.broker()) as caller:
        assert await caller.call("drill", depth=3) == {"drilled": 3}
        assert await caller.call("drill", depth=3, key="same") == {"drilled": 3}
        assert await caller.call("drill", depth=9, key="same") == {"drilled": 3}
        with pytest.raises(ToolFailedError, match=r"tool drill failed: TypeError: .*wide"):
            await caller.call("drill", wide=1)
        drill.kill()
        fleet = caller.transport._tenants["default"]
        await until(lambda: not fleet.workers)


def run(*command: object) -> None:
    subprocess.run([str(one) for one in command], check=True, capture_output=True)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mosquitto, Path]]:
    """A broker as the page sets it up, with TLS, passwords and rules; the certificate to trust."""
    folder = tmp_path_factory.mktemp("guarded")
    ca, server, request = folder / "ca", folder / "server", folder / "server.csr"
    new = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run(*new, "-x509", "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", "/CN=test ca")
    run(*new, "-keyout", f"{server}.key", "-out", request, "-subj", "/CN=broker")
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1")
    signed = ("openssl", "x509", "-req", "-CAcreateserial", "-extfile", extensions)
    run(*signed, "-in", request, "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-out", f"{server}.pem")
    passwords = folder / "passwords"
    passwords.touch(0o600)
    for user in ("agent", "worker", "human", "stranger"):
        run("mosquitto_passwd", "-b", passwords, user, f"{user}s own")
    [settings], [rules] = blocks("mqtt.md", "conf"), blocks("mqtt.md", "acl")
    (folder / "acl").write_text(rules)
    lines = settings.replace("/etc/mosquitto", str(folder)).splitlines()[1:]
    with Mosquitto(folder, ("user root", *lines)) as broker:
        yield broker, folder / "ca.pem"


def guarded_broker(mosquitto: Mosquitto, user: str, password: str, ca: Path | None) -> Broker:
    url = f"mqtts://{user}@127.0.0.1:{mosquitto.port}"
    return read_broker(url, {"AGENTRT_BROKER_PASSWORD": password}, ca=ca)


CALLER = """
import asyncio, sys
from pathlib import Path
from agentrt.integrations.mqtt import MqttTools, read_broker
from tests.integrations.mqtt.side import Caller

async def call():
    transport = MqttTools(read_broker(sys.argv[1], ca=Path(sys.argv[2])), away=1)
    await transport.open()
    await Caller(transport).call("cancelled")

asyncio.run(call())
"""


async def test_a_worker_and_callers_with_tls_passwords_and_rules(
    guarded: tuple[Mosquitto, Path], tmp_path: Path
) -> None:
    """1. One calls, and is asked. 2. Another is killed: its will, which the page's rules let it
    leave, and workers read, stops its call.
    """
    mosquitto, ca = guarded
    at, runs = f"127.0.0.1:{mosquitto.port}", tmp_path / "runs"
    (tmp_path / "gate1").touch()
    worker, other = f"mqtts://worker:workers%20own@{at}", f"mqtts://agent:agents%20own@{at}"
    with workers(1, worker, "--broker-ca", str(ca), folder=tmp_path):
        async with calling(guarded_broker(mosquitto, "agent", "agents own", ca)) as caller:
            assert await caller.call("once", number=3, until="gate1") == 3
            assert await caller.call("asks") == "Go? yes"
        runs.unlink()
        command = [sys.executable, "-c", CALLER, other, str(ca)]
        with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: ASYNC220  # it is only started here
            await until(runs.exists)
            process.kill()
        await until(lambda: runs.read_text() == "waits\ncancelled\n")


async def test_a_human_answers_with_tls_a_password_and_rules(
    guarded: tuple[Mosquitto, Path],
) -> None:
    mosquitto, ca = guarded
    agent, human = (
        guarded_broker(mosquitto, user, f"{user}s own", ca) for user in ("agent", "human")
    )
    async with opened(agent, "agentrt", human) as (runtime, phone):
        run = runtime.start(chooser)
        _, question = await phone.next()
        assert await phone.answer(question["id"], '{"answer": "red"}') == {"state": "answered"}
        assert await run.wait() == "red"


# paho leaves the socket of a handshake that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_other_users_and_certificates_are_refused(
    guarded: tuple[Mosquitto, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault is told once a connection was tried."""
    monkeypatch.setattr("agentrt.integrations.mqtt.tools._SYNC_S", 0.2)  # nothing comes anyway
    mosquitto, ca = guarded
    for broker, said in (
        (Broker("127.0.0.1", mosquitto.port), "cannot be reached: failed to receive on"),
        (
            guarded_broker(mosquitto, "agent", "wrong", ca),
            "rejected the user 'agent' with this password",
        ),
        (guarded_broker(mosquitto, "agent", "agents own", None), "certificate verify failed"),
        (
            guarded_broker(mosquitto, "stranger", "strangers own", ca),
            "the broker's rules do not allow .* agentrt/cl",
        ),
    ):
        async with calling(broker, connect_timeout=0.1) as caller:
            await caller.transport._connection._tried.wait()
            with pytest.raises(ToolUnavailableError, match=said) as raised:
                await caller.transport.tools()
            assert "own" not in str(raised.value)
