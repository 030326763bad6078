"""A command `python -m MODULE …` that lets a fork of the fork server do its work.

Run by a script of `tests.doubles.forked_python`, it imports next to nothing: it hands its
arguments, variables, folder and standard streams to the fork, passes signals on to it, and ends as
the fork ends. If it is killed, so is the fork.
"""

from __future__ import annotations

import array
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from typing import Any

_NUMBER = struct.Struct("q")
"""How a fork server tells numbers: a fork's process id, and later how it ended."""


class Command:
    """What the fork runs, as multiprocessing's fork server runs a process object."""

    def __init__(self, run: str, module: str, arguments: list[str], folder: str) -> None:
        self._run, self._folder = run, folder
        self._module, self._arguments = module, arguments
        self._environ = dict(os.environ)

    def _bootstrap(self, parent_sentinel: int) -> int:
        from multiprocessing import forkserver

        os.setpgid(0, 0)  # Ray kills the process group of a worker that has ended
        for number, stream in enumerate(forkserver.get_inherited_fds() or ()):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # the server has closed its own
        threading.Thread(target=_die_with, args=(parent_sentinel,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.environ.clear()
        os.environ.update(self._environ)
        os.chdir(self._folder)
        sys.path.insert(0, self._folder)
        from importlib import import_module

        module, function = self._run.split(":")
        code: int = getattr(import_module(module), function)(self._module, self._arguments)
        return code


def _die_with(sentinel: int) -> None:
    os.read(sentinel, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def main(server: str, path: list[str], run: str) -> None:
    """Be ``sys.argv``, which is ``-m MODULE …``, by a fork of the ``server`` that finds modules in
    ``path`` and calls ``run``.
    """
    _, dash_m, module, *arguments = sys.argv
    assert dash_m == "-m"
    command = Command(run, module, arguments, os.getcwd())  # noqa: PTH109  # pathlib takes its time
    told, _keep = _fork(server, {"name": module, "sys_path": path}, command)
    pid = _number(told)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(pid, number))
    code = _number(told)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _fork(server: str, prepared: dict[str, Any], command: Command) -> tuple[int, int]:
    """Where the fork's numbers come from, and a pipe at whose end it dies."""
    nothing = os.open(os.devnull, os.O_WRONLY)  # for what keeps a server and a tracker alive
    told, tells = os.pipe()
    reads, writes = os.pipe()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server)
        given = array.array("i", [reads, tells, nothing, nothing, 0, 1, 2])
        client.sendmsg([bytes([len(given)])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
    for one in (tells, reads):
        os.close(one)
    os.write(writes, pickle.dumps(prepared) + pickle.dumps(command))
    return told, writes


def _number(told: int) -> int:
    found = os.read(told, _NUMBER.size)
    return int(_NUMBER.unpack(found)[0]) if found else 255
