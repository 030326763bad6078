"""Random workloads that fit into the cache as a whole, for comparing schedulers."""

from __future__ import annotations

import math
import random
from itertools import count

from agentrt.lab.engine.headless import BLOCK_SIZE
from benchmarks.stress.plans import (
    HEAD,
    LAYERS,
    Branches,
    CallPlan,
    CasePlan,
    EnginePlan,
    Gap,
    ProgramPlan,
    Stage,
)

_MODEL_LEN = 8000


def draw_workload(seed: int) -> CasePlan:
    """Draw the workload of a seed, on an engine with room for every context at once.

    In some workloads, programs of all types have similar sizes; in others, the sizes of the types
    are very different. Programs arrive at once, in a stream, or in bursts. The plan has no
    settings.
    """
    return _Draw(seed).workload()


class _Draw:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"workload {seed}")
        self._numbers = count(1)

    def workload(self) -> CasePlan:
        rng = self.rng
        spread = rng.choice((0.2, 0.6, 1.2))
        types = [
            (f"type{n}", math.exp(rng.gauss(0, spread)), rng.choice((0.2, 0.6)))
            for n in range(rng.randint(1, 4))
        ]
        arrivals = self._arrivals(rng.randint(5, 16))
        programs = tuple(
            self._program(n, rng.choice(types), arrives) for n, arrives in enumerate(arrivals)
        )
        layers = rng.choice(("full", "full", "full", "hybrid"))
        step_tokens = rng.choice((256, 512, 2048))
        base_s = rng.choice((0.01, 0.02, 0.05))
        engine = EnginePlan(
            slots=rng.choice((1, 2, 3, 4, 6, 8, 16)),
            blocks=LAYERS[layers] * _room(programs),
            step_tokens=step_tokens,
            max_model_len=_MODEL_LEN,
            in_flight=rng.choice((1, 2)),
            layers=layers,
            prefix_cache=rng.random() < 0.9,
            base_s=base_s,
            token_s=base_s * rng.choice((1.0, 4.0)) / step_tokens,
        )
        return CasePlan(self.seed, engine, {}, programs)

    def _arrivals(self, programs: int) -> list[float]:
        rng = self.rng
        kind, gap_s = rng.choice(("at once", "stream", "bursts")), rng.choice((0.02, 0.1, 0.5, 1.0))
        if kind == "at once":
            return [0.0] * programs
        if kind == "bursts":
            return sorted(10 * gap_s * rng.randint(0, 3) for _ in range(programs))
        now, arrivals = 0.0, []
        for _ in range(programs):
            now += rng.expovariate(1 / gap_s)
            arrivals.append(now)
        return arrivals

    def _program(self, number: int, kind: tuple[str, float, float], arrives: float) -> ProgramPlan:
        rng, (type_, scale, spread) = self.rng, kind
        stages: list[Stage] = []
        for nth in range(rng.randint(1, 4)):
            if nth:
                stages += self._gap()
            size = scale * math.exp(rng.gauss(0, spread))
            if rng.random() < 0.15:
                branches = tuple((self._call(size),) for _ in range(rng.randint(2, 4)))
                stages.append(Branches(branches))
            else:
                stages.append(self._call(size))
        return ProgramPlan(
            f"p{number}",
            type_,
            tuple(stages),
            arrives=arrives,
            end=rng.choice(("ends", "ends", "silent")),
        )

    def _call(self, size: float) -> CallPlan:
        rng = self.rng
        return CallPlan(
            f"plain-{next(self._numbers)}",
            fresh=max(1, min(1000, int(rng.uniform(20, 300) * size))),
            output=max(1, min(80, int(rng.uniform(4, 30) * size))),
            node=rng.choice(("", "plan", "act")),
        )

    def _gap(self) -> list[Stage]:
        """Draw no gap, a human, or a tool, which may be unreported."""
        rng = self.rng
        if rng.random() < 0.3:
            return []
        if rng.random() < 0.1:
            return [Gap("human", "", rng.uniform(5, 30))]
        return [Gap("tool", rng.choice(("shell", "web")), rng.uniform(0, 4), rng.random() < 0.7)]


def _room(programs: tuple[ProgramPlan, ...]) -> int:
    """Return the number of blocks that can hold the contexts of all calls at the same time."""
    blocks = 1
    for program in programs:
        context = HEAD
        for call in program.calls:
            context += call.fresh + call.output
            blocks += context // BLOCK_SIZE + 2
    return blocks
