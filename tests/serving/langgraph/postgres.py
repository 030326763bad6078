"""A PostgreSQL cluster of the tests' own, in a folder, on a free loopback port.

PostgreSQL refuses to run as root, so that its processes are those of the user postgres then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

from tests.doubles.ports import reserved_port

_HELP = (
    "these tests need PostgreSQL's server: `apt-get install postgresql` (as root, .ci/setup does "
    "it), or put initdb and pg_ctl on the PATH"
)


def programs() -> Path:
    """The folder with initdb and pg_ctl. Raises `RuntimeError` if there is none."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda at: float(at.parts[-3])
    )
    if not folders:
        raise RuntimeError(_HELP)
    return folders[-1].parent


@contextmanager
def cluster(password: str | None = None) -> Iterator[str]:
    """A new, empty database; gives its URL. With a ``password`` it asks for that, which is not in
    the URL.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentrt-pg-"))
    bin_, data, port = programs(), folder / "data", reserved_port()
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
    asks = ["-A", "trust"]
    if password is not None:
        file = folder / "password"
        file.write_text(password)
        asks = ["-A", "scram-sha-256", "--pwfile", str(file)]
    try:
        _run(bin_ / "initdb", "-D", data, *asks, "-U", "agentrt", "-N", "-E", "UTF8")
        options = (
            f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} "
            "-c fsync=off -c max_connections=60"
        )
        _run(bin_ / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgresql://agentrt@127.0.0.1:{port}/postgres"
        finally:
            _run(bin_ / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(url: str) -> str:
    """An empty database beside the one at ``url``; gives its URL. A cluster takes a second."""
    name = f"own_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return f"{url.rpartition('/')[0]}/{name}"


def _run(*command: str | Path) -> None:
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    prefix = as_user if os.geteuid() == 0 else []
    done = subprocess.run(
        [*prefix, *map(str, command)], capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr or done.stdout}")


class Proxy:
    """A proxy between a server and its database, which can be ``stalled`` and cut."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2].partition("/")[0])
        self._server: asyncio.Server | None = None
        self._carried: set[asyncio.Task[None] | None] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = reserved_port()
        self.url = url.replace(f":{self._port}/", f":{self.port}/")

    async def open(self) -> None:
        """Let connections through."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    async def cut(self) -> None:
        """End all connections, and take none."""
        assert self._server is not None
        self._server.close()
        carried = [one for one in self._carried if one is not None]
        for one in carried:
            one.cancel()
        await asyncio.gather(*carried)

    def stall(self) -> None:
        """Hold back all that is sent."""
        self._flows.clear()

    def flow(self) -> None:
        """Continue."""
        self._flows.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._carried.add(task := asyncio.current_task())
        ends = [writer]
        with contextlib.suppress(OSError, asyncio.CancelledError):
            other, there = await asyncio.open_connection("127.0.0.1", self._port)
            ends.append(there)
            await asyncio.gather(self._pipe(reader, there), self._pipe(other, writer))
        for end in ends:
            end.transport.abort()
            with contextlib.suppress(OSError):
                await end.wait_closed()
        self._carried.discard(task)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._flows.wait()
            writer.write(data)
        writer.close()
