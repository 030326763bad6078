"""The rules of other projects, which benchmarks compare with agentrt's scheduler.

Importing this package registers the names of these rules as contenders, for ``--policy``. The limit
on concurrent programs (`CapGate`) and ThunderAgent's rule are gates in front of stock vLLM.
Continuum's rule is a scheduler class that replaces agentrt's scheduler class.

To add a rival:

1. Write its rule in a module of this package. A rule that a proxy could apply is a `Gate`, and also
   works on real engines. A rule inside the engine is a subclass of `ProgramScheduler`, and works in
   virtual time only: its ``use`` chooses the order of calls, and its ``retention_policy`` the order
   in which cached blocks are evicted (`continuum`).
2. Add a `Rival` to `RIVALS` below, with a function that returns a `GatedContender` for a gate, and
   an `OwnScheduler` for a scheduler class.
3. Test in ``tests/benchmarks/test_rivals.py`` that the rule has an effect.
4. To run it by default, add its name to ``benchmarks/memory/plan.py``.
"""

from __future__ import annotations

from functools import partial

from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.program import Stock
from agentrt.lab.runs.contenders import RIVALS, Contender, Rival
from agentrt.scheduler.config import SchedulerConfig
from benchmarks.rivals.contenders import GatedContender, OwnScheduler
from benchmarks.rivals.gates import CapGate, Gate, ThunderAgent

CAP, THUNDER, CONTINUUM = "cap", "thunderagent", "continuum"
DECAY, PREVIEW = f"{THUNDER}-decay", f"{CONTINUUM}-preview"


def _cap(most: int, options: VirtualOptions) -> Gate:
    return CapGate(most)


def _thunder(options: VirtualOptions, *, decay: bool = False) -> Gate:
    return ThunderAgent(options.kv_blocks * options.block_size, decay=decay)


def _capped(name: str, number: str) -> Contender | None:
    if not number.isdecimal() or not int(number):
        return None
    return GatedContender(name, Stock(), gate=partial(_cap, int(number)))


def _gated(name: str, number: str, *, decay: bool) -> Contender | None:
    return None if number else GatedContender(name, Stock(), gate=partial(_thunder, decay=decay))


def _pinning(name: str, number: str, *, scheduler: str) -> Contender | None:
    if number:
        return None
    # Only for the policy's default retention and admission: the scheduler's class sets the order.
    ours = SchedulerConfig(policy="program-fcfs")
    return OwnScheduler(name, ours, scheduler=f"benchmarks.rivals.continuum:{scheduler}")


RIVALS.update(
    {
        CAP: Rival(f"{CAP}:N (at most N programs at a time)", _capped),
        THUNDER: Rival(THUNDER, partial(_gated, decay=False)),
        DECAY: Rival(DECAY, partial(_gated, decay=True)),
        CONTINUUM: Rival(CONTINUUM, partial(_pinning, scheduler="ContinuumScheduler")),
        PREVIEW: Rival(PREVIEW, partial(_pinning, scheduler="PreviewScheduler")),
    }
)
