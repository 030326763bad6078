"""A Python for commands of tests, which are forks of one process that has imported what they need.

A command takes .6 to 3 s of a core to import. For tests that ask what commands do; how they load
and end is asked of Python itself.
"""

from __future__ import annotations

import gc
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from weakref import finalize

from agentrt.executors.vllm.processes import descendants

_SERVER = forkserver.ForkServer()
"""Not Python's own, which tests let import what they need."""
_IMPORTS = (
    *("agentrt.cli.app", "agentrt.cli.run", "agentrt.cli.serving", "agentrt.cli.worker"),
    *("agentrt.serving.app", "agentrt.serving.chat", "agentrt.serving.observability"),
    *("agentrt.serving.langgraph.router", "agentrt.serving.mcp", "agentrt.executors.vllm.engine"),
    *("agentrt.integrations.langchain.client", "agentrt.integrations.mqtt", "langgraph.graph"),
    *("mcp.server.mcpserver", "uvicorn", __name__),
)
_ROOT = Path(__file__).parents[2]
_PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from tests.engine.forked_command import main
main({server!r}, {path!r}, {run!r})
"""


def write_python(folder: Path, server: forkserver.ForkServer, run: str) -> str:
    """A script in ``folder`` that is a Python. Its `-m MODULE …` lets a fork of the ``server``
    call what ``run`` names, by `module:function`, with the module and its arguments.
    """
    program, script = folder / "python.py", folder / "python"
    address = server._forkserver_address  # type: ignore[attr-defined]  # typeshed lacks it
    told = _PROGRAM.format(root=str(_ROOT), server=address, path=sys.path, run=run)
    program.write_text(told, encoding="utf-8")
    script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -SE '{program}' \"$@\"\n", "utf-8")
    script.chmod(0o755)
    return str(script)


@cache
def forked_python() -> str:
    """The Python, whose fork server ends with this process."""
    _SERVER.set_forkserver_preload([*_IMPORTS])
    _SERVER.ensure_running()
    folder = Path(tempfile.mkdtemp(prefix="forked-python-"))
    finalize(_SERVER, shutil.rmtree, folder, ignore_errors=True)
    return write_python(folder, _SERVER, f"{__name__}:run_module")


def forks() -> list[int]:
    """Return the process ids of all commands that are forks.

    A test that kills a command at a random moment kills its fork: one whose command was killed
    ends itself, but only between two instructions of Python.
    """
    return descendants(_SERVER._forkserver_pid)  # type: ignore[attr-defined]  # typeshed lacks it


def run_module(module: str, arguments: Sequence[str]) -> int:
    """In a fork: be `python -m MODULE …`. Gives the exit code."""
    gc.freeze()  # what was imported is not looked through again
    sys.argv = [module, *arguments]
    return ended(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def ended(run: Callable[[], object]) -> int:
    """The exit code with which Python would end."""
    code: object = 0
    try:
        run()
    except SystemExit as stopped:
        code = stopped.code
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code if isinstance(code, int) else int(code is not None)
