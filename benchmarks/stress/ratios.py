"""The times of workloads that fit into the KV cache, compared with the times under stock vLLM's
scheduler.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.reports.tables import markdown
from agentrt.scheduler.config import DEFAULT_POLICY, SchedulerConfig
from agentrt.scheduler.policies import BUILT_IN
from benchmarks.harness import percentile
from benchmarks.stress.faults import Violation
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
from benchmarks.stress.watch import Figures

DEFAULT = "default"
POLICIES = (DEFAULT, *(name for name in BUILT_IN if name != DEFAULT_POLICY))
"""The compared policies: the defaults, and every other policy with its usual retention and
admission.
"""
LIMITS = {DEFAULT: 1.15}
OTHERS_LIMIT = 1.5
"""The highest acceptable ratio of the total time to stock's, for policies that are not
in `LIMITS`.
"""
_WORTH_NAMING = 0.05
"""`_cause` names a difference from stock's run only if it costs more than this share of the run."""
_ORDERS = 8
"""The number of other orders of a workload's programs that are tried."""


@dataclass(frozen=True, slots=True)
class Run:
    """The run of a workload under one scheduler: the time of the end of each program, and the
    waiting time of its calls.
    """

    figures: Figures
    ended_at: dict[str, float]
    waited_s: dict[str, float]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of a workload's total time under a policy to its total time under stock. ``mean``
    is the ratio of the mean times of the programs.

    ``cause`` names the difference from stock's run that costs the most time. ``figures`` has the
    figures of both runs.
    """

    seed: int
    policy: str
    ratio: float
    mean: float
    cause: str
    figures: str

    @property
    def limit(self) -> float:
        return LIMITS.get(self.policy, OTHERS_LIMIT)


def run_workload(plan: CasePlan, policy: str | None) -> Run:
    """Run a workload under a policy, or, if ``policy`` is None, under stock's scheduler."""
    from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
    from agentrt.lab.engine.headless import stock_scheduler
    from benchmarks.stress.clients import Clients
    from benchmarks.stress.engine import make_engine
    from benchmarks.stress.watch import Watch

    cls = stock_scheduler() if policy is None else ProgramScheduler
    engine = make_engine(cls, plan.engine, None if policy is None else settings(policy), plan.seed)
    watch = Watch(engine, checks=False)
    clients = Clients(engine, plan, watch, ours=policy is not None)
    fault = ""
    try:
        clients.run()
    except Violation as violation:
        fault = str(violation)
    watch.figures.seconds = max(clients.ended_at.values(), default=engine.now)
    watch.figures.tokens = engine.computed_tokens
    return Run(watch.figures, clients.ended_at, dict(watch.waited_s), fault)


def settings(policy: str) -> dict[str, object]:
    """Return the scheduler's settings for a policy. All other options have their defaults."""
    return SchedulerConfig(policy=DEFAULT_POLICY if policy == DEFAULT else policy).to_dict()


def compare(seed: int, policies: Sequence[str]) -> list[Ratio]:
    """Compare policies with stock on the workload of a seed."""
    plan = draw_workload(seed)
    stock = run_workload(plan, None)
    assert not stock.fault, f"stock, workload {seed}: {stock.fault}"
    return [_ratio(plan, policy, run_workload(plan, policy), stock) for policy in policies]


def _ratio(plan: CasePlan, policy: str, ours: Run, stock: Run) -> Ratio:
    if ours.fault:
        return Ratio(plan.seed, policy, math.inf, math.inf, "a violation", ours.fault)
    arrived = {program.name: program.arrives for program in plan.programs}
    means = [
        statistics.fmean(ended - arrived[name] for name, ended in run.ended_at.items())
        for run in (ours, stock)
    ]
    ratio = ours.figures.seconds / stock.figures.seconds
    mean = means[0] / means[1]
    return Ratio(plan.seed, policy, ratio, mean, _cause(ours, stock), _figures(ours, stock))


def _cause(ours: Run, stock: Run) -> str:
    """Return the name of the difference from stock's run that costs the most time; if none costs
    more than 5%, return "the order alone".
    """
    mine, theirs = ours.figures, stock.figures
    costs = {
        "tokens computed again": mine.tokens / theirs.tokens - 1,
        "slots left free": (mine.idle_slots - theirs.idle_slots) / mine.steps,
        "an idle engine": (mine.idle_s - theirs.idle_s) / mine.seconds,
    }
    cause, most = max(costs.items(), key=lambda cost: cost[1])
    return cause if most > _WORTH_NAMING else "the order alone"


def _figures(ours: Run, stock: Run) -> str:
    mine, theirs = ours.figures, stock.figures
    recomputed = mine.recomputed_tokens
    last = max(ours.ended_at, key=lambda name: ours.ended_at[name])
    ended_at, waited_s = ours.ended_at[last], ours.waited_s.get(last, 0.0)
    stock_ended_at, stock_waited_s = stock.ended_at[last], stock.waited_s.get(last, 0.0)
    parts = [
        f"preemptions: {mine.gave_way} for others, {mine.for_memory} for memory",
        f"tokens computed: {mine.tokens}, {recomputed} of them again (stock {theirs.tokens})",
        f"steps: {mine.steps} (stock {theirs.steps})",
        f"steps with a slot free and a call waiting: {mine.idle_slots} (stock {theirs.idle_slots})",
        f"of these steps, those with a call held back by admission: {mine.kept_out}",
        f"idle: {mine.idle_s:.1f} s",
        f"the last to end: {last} at {ended_at:.1f} s (stock {stock_ended_at:.1f})",
        f"its calls waited {waited_s:.1f} s (stock {stock_waited_s:.1f})",
    ]
    return "; ".join(parts)


def by_policy(ratios: Sequence[Ratio]) -> list[dict[str, Any]]:
    """Return a row of values for each policy: the median, the 99th percentile and the maximum of
    the ratios, the seed of the maximum, the number of ratios above the limit, and the median of the
    ratios of the mean times.
    """
    rows = []
    for policy in dict.fromkeys(ratio.policy for ratio in ratios):
        mine = [ratio for ratio in ratios if ratio.policy == policy]
        values = [ratio.ratio for ratio in mine]
        worst = max(mine, key=lambda ratio: ratio.ratio)
        rows.append(
            {
                "policy": policy,
                "workloads": len(mine),
                "median": statistics.median(values),
                "p99": percentile(values, 0.99),
                "worst": worst.ratio,
                "seed": worst.seed,
                "limit": worst.limit,
                "above": sum(ratio.ratio > ratio.limit for ratio in mine),
                "mean": statistics.median(ratio.mean for ratio in mine),
            }
        )
    return rows


def worst_of(ratios: Sequence[Ratio], most: int) -> list[dict[str, Any]]:
    """Return a row of values for each of the ``most`` highest ratios, with the explanation.

    ``other_orders`` is the largest value of `other_orders`: it shows how much stock's own total
    time changes when the programs exchange their arrival times.
    """
    ranked = sorted(ratios, key=lambda ratio: -ratio.ratio)[:most]
    others = {seed: max(other_orders(seed)) for seed in {ratio.seed for ratio in ranked}}
    return [
        {
            "seed": ratio.seed,
            "policy": ratio.policy,
            "ratio": ratio.ratio,
            "other_orders": others[ratio.seed],
            "cause": ratio.cause,
            "figures": ratio.figures,
        }
        for ratio in ranked
    ]


def policies_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of `by_policy` as a table."""
    head = ["policy", "workloads", "median time / stock", "P99", "worst", "seed of the worst"]
    head += ["limit", "workloads above the limit", "mean time of a program / stock"]
    cells = [
        [
            row["policy"],
            row["workloads"],
            *(f"{row[name]:.3f}" for name in ("median", "p99", "worst")),
            *(row[name] for name in ("seed", "limit", "above")),
            f"{row['mean']:.3f}",
        ]
        for row in rows
    ]
    return markdown(head, cells)


def worst_table(rows: Sequence[Mapping[str, Any]], *, figures: bool = True) -> str:
    """Return the rows of `worst_of` as a table, with or without the column of figures."""
    head = ["seed", "policy", "time / stock", "stock in other orders / stock", "explained by"]
    cells = [
        [
            row["seed"],
            row["policy"],
            *(f"{row[name]:.3f}" for name in ("ratio", "other_orders")),
            row["cause"],
            *([row["figures"]] if figures else []),
        ]
        for row in rows
    ]
    return markdown([*head, "figures"] if figures else head, cells)


def other_orders(seed: int) -> list[float]:
    """Return how stock's total time changes when the programs of a workload exchange their arrival
    times: for each of several random exchanges, the ratio of the new total time to the old one.

    No policy is responsible for these differences, because only the order of arrival differs.
    """
    plan = draw_workload(seed)
    stock, rng = run_workload(plan, None), random.Random(f"orders {seed}")
    ratios = []
    for _ in range(_ORDERS):
        arrivals = [program.arrives for program in plan.programs]
        rng.shuffle(arrivals)
        programs = sorted(
            (
                replace(program, arrives=arrives)
                for program, arrives in zip(plan.programs, arrivals, strict=True)
            ),
            key=lambda program: (program.arrives, rng.random()),
        )
        other = run_workload(replace(plan, programs=tuple(programs)), None)
        ratios.append(other.figures.seconds / stock.figures.seconds)
    return ratios


# -- random workloads that fit into the cache as a whole -------------------------------------

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
