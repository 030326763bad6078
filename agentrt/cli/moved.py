"""Commands that have moved out of the package. For one version, a moved command says what replaces
it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import agentrt
from agentrt.errors import UsageError

_BENCHMARKS = ("external", "gpu", "journal", "memory", "paper")
_AS_IT_IS: dict[str, Any] = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


@click.command(hidden=True, context_settings=_AS_IT_IS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def bench(words: Sequence[str]) -> int:
    """Raise `UsageError`, which names the command that replaces ``agentrt bench``. In a checkout,
    ``agentrt bench gpu`` still works.
    """
    root = Path(agentrt.__file__).parents[1]
    name = words[0] if words and words[0] in _BENCHMARKS else "policies"
    if name == "gpu" and (root / "benchmarks" / "__main__.py").is_file():
        sys.path.insert(0, str(root))
        code: int = import_module("benchmarks.__main__").call([*words])
        return code
    was = "agentrt bench" if name == "policies" else f"agentrt bench {name}"
    raise UsageError(
        f"'{was}' was replaced; run 'python -m benchmarks {name}' in a checkout of agentrt"
    )
