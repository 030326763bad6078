"""How to install the packages of agentrt's extras. agentrt is not published as a package yet, so
its extras are installed from a checkout.
"""

from __future__ import annotations

import shlex
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
"""The checkout that this code is in, if it is in one."""


def install_command(extra: str = "", *, checkout: Path = _CHECKOUT) -> str:
    """Return the command that installs agentrt with an ``extra``, such as ``mqtt``, in words that
    follow "run: ".

    The command names the folder of this code's checkout. If this code is not in a checkout, the
    command is for whichever checkout the user has.
    """
    suffix = f"[{extra}]" if extra else ""
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{checkout}{suffix}')}"
    return f"pip install {shlex.quote(f'.{suffix}')} in a checkout of agentrt"


def install_vllm() -> str:
    """Return instructions for installing vLLM, on a machine with a GPU and on a machine without a
    GPU.
    """
    return (
        f"on a machine with a GPU, run: {install_command('engine')}; without a GPU, run: make "
        "setup in a checkout of agentrt"
    )
