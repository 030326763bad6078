"""Mosquitto, the real broker, on a free port of the loopback."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from agentrt.integrations.mqtt.broker import Broker
from agentrt.integrations.mqtt.topics import TopicPrefix
from tests.doubles.ports import reserved_port

PLAIN = ("allow_anonymous true",)


class Mosquitto:
    """A broker that can be killed and started again; in a ``with`` block it runs. It keeps nothing
    on disk.
    """

    def __init__(self, folder: Path, settings: tuple[str, ...] = PLAIN) -> None:
        self.port = reserved_port()
        self._config = folder / f"mosquitto-{self.port}.conf"
        lines = (f"listener {self.port} 127.0.0.1", "set_tcp_nodelay true", "sys_interval 1")
        self._config.write_text("\n".join([*lines, *settings, "log_type none"]) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
        assert program is not None, "some tests need Debian's package mosquitto"
        self._process = subprocess.Popen(
            [program, "-c", str(self._config)], stderr=subprocess.DEVNULL
        )
        for _ in range(6000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, "the broker did not start"
            time.sleep(0.01)
        raise AssertionError("the broker does not listen")

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Meanwhile it says nothing, and its connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def broker(self, prefix: str = "agentrt") -> Broker:
        return Broker("127.0.0.1", self.port, TopicPrefix(prefix))
