"""Programs by the name of their workload: those of the paper's evaluation, and eight types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from random import Random

from agentrt.errors import ConfigError
from agentrt.lab.workloads import chat, graphs, lats, react
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.sizes import Gaps

Generator = Callable[[Random, str, Gaps], ProgramShape]
"""Makes the program with this id; all that is random comes from the first argument."""

_AS_IN_PAPER = Gaps()
_WORKLOADS: Mapping[str, tuple[Generator, ...]] = {
    "chat": (chat.program,),
    "react": (react.program,),
    "lats": (lats.program,),
    "mixed": (chat.program, react.program, lats.program),
    "graphs8": (
        graphs.rag,
        graphs.chain,
        react.program,
        graphs.plan_execute,
        graphs.best_of_n,
        graphs.debate,
        graphs.map_reduce,
        graphs.tree_search,
    ),
}


def workload_names() -> tuple[str, ...]:
    """The names that `generate` knows."""
    return tuple(_WORKLOADS)


def generate(name: str, n: int, seed: int, *, gaps: Gaps = _AS_IN_PAPER) -> list[ProgramShape]:
    """``n`` programs of a workload, all arriving at 0.

    Program i of a seed is the same whatever ``n`` is. A workload of several types has
    them in equal shares (programs, not calls): each once, in random order, in every
    block of as many programs as there are types.

    Raises `ConfigError` for a name that is not in `workload_names`.
    """
    if name not in _WORKLOADS:
        near = get_close_matches(name, _WORKLOADS, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"no workload is named {name!r}: {meant}there are {', '.join(_WORKLOADS)}"
        )
    if n < 0:
        raise ConfigError(f"cannot make {n} programs: give a number from 0 up")
    return [_program(name, seed, index, gaps) for index in range(n)]


def _program(name: str, seed: int, index: int, gaps: Gaps) -> ProgramShape:
    makers = _WORKLOADS[name]
    block, place = divmod(index, len(makers))
    order = Random(f"{name}/{seed}/block {block}").sample(makers, len(makers))
    rng = Random(f"{name}/{seed}/program {index}")
    return order[place](rng, f"{name}-{seed}-{index:05d}", gaps)
