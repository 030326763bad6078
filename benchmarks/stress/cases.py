"""Functions that run a single case, or many cases in several processes, and report violations."""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agentrt.lab.commands.progress import run_all
from benchmarks.stress.faults import Violation
from benchmarks.stress.plans import CasePlan, draw_case
from benchmarks.stress.watch import Figures

if TYPE_CHECKING:
    from benchmarks.stress.watch import Watch

DETERMINISTIC = "deterministic"
"""The invariant that two runs of a case are equal."""
_LAST_EVENTS = 16
_PIECE = 25
"""Number of cases that a process runs before it returns their outcomes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a case: success, or the ``invariant`` that was violated.

    ``digest`` is a hash of all events. A case that is run again must have the same digest.
    """

    seed: int
    policy: str
    digest: str
    figures: Figures
    invariant: str = ""
    detail: str = ""
    story: tuple[str, ...] = ()

    @property
    def report(self) -> str:
        """The full report of a failure."""
        head = f"seed {self.seed}: {self.policy}: {self.invariant}: {self.detail}"
        return "\n".join((head, *(f"    {line}" for line in self.story)))


def run_case(plan: CasePlan, cls: type[Any] | None = None) -> Outcome:
    """Run a case to its end or its first violation."""
    from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
    from benchmarks.stress.clients import Clients
    from benchmarks.stress.engine import make_engine
    from benchmarks.stress.watch import Watch

    _silence()
    engine = make_engine(cls or ProgramScheduler, plan.engine, plan.settings, plan.seed)
    watch = Watch(engine)
    clients = Clients(engine, plan, watch, ours=watch.core is not None)
    fault: Violation | None = None
    try:
        clients.run()
        watch.figures.seconds = engine.now
        clients.settle()
        watch.check_end()
    except Violation as violation:
        fault = violation
    except Exception as error:  # any error of the scheduler would have killed an engine
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
        fault = Violation("survives", f"{type(error).__name__}: {error} ({places})")
    watch.count_copies()
    watch.figures.tokens = engine.computed_tokens
    digest = hashlib.sha256(repr(watch.events).encode()).hexdigest()[:16]
    outcome = Outcome(plan.seed, plan.policy, digest, watch.figures)
    if fault is None:
        return outcome
    return Outcome(
        plan.seed,
        plan.policy,
        digest,
        watch.figures,
        fault.invariant,
        f"{fault.detail}{f' [{fault.subject}]' if fault.subject else ''}",
        tuple(_story(plan, watch, fault.subject)),
    )


def run_twice(plan: CasePlan) -> Outcome:
    """Run a case to its end or its first violation. A case without a violation runs again, and both
    runs must be equal.
    """
    outcome = run_case(plan)
    if outcome.invariant:
        return outcome
    again = run_case(plan)
    if again.digest == outcome.digest:
        return outcome
    detail = f"two runs differ: {outcome.digest}, {again.digest}"
    return replace(outcome, invariant=DETERMINISTIC, detail=detail)


def _silence() -> None:
    """Silence vLLM's log messages below ``CRITICAL``, because many cases have grammars that reject
    a token, which vLLM logs.
    """
    logger = logging.getLogger("vllm")
    if logger.level != logging.CRITICAL:
        logger.setLevel(logging.CRITICAL)


def _story(plan: CasePlan, watch: Watch, subject: str) -> Iterator[str]:
    """Yield the settings of the case, the last events, and the calls in the engine. The events are
    those of the call or program ``subject`` and of the whole engine; all events if ``subject`` is
    empty.
    """
    yield f"engine {plan.engine}"
    yield f"settings {plan.settings}"
    events = [event for event in watch.events if not subject or event[2] in (subject, "")]
    for now, step, name, text in events[-_LAST_EVENTS:]:
        yield f"{now:9.3f} s, step {step:5d}: {name} {text}"
    yield f"in the engine: {'; '.join(watch.standing()) or 'nothing'}"


def shrink(plan: CasePlan, invariant: str) -> tuple[CasePlan, Outcome]:
    """Remove from a case that violated ``invariant`` all programs and disturbances that this
    failure does not need. Return the smaller case and its outcome. If the case does not violate
    this invariant again, return the case itself and the new outcome.
    """
    run = run_twice if invariant == DETERMINISTIC else run_case
    outcome = run(plan)
    smaller = outcome.invariant == invariant
    while smaller:
        smaller = False
        for candidate in _smaller(plan):
            again = run(candidate)
            if again.invariant == invariant:
                plan, outcome, smaller = candidate, again, True
                break
    return plan, outcome


def _smaller(plan: CasePlan) -> Iterator[CasePlan]:
    """For each disturbance and each program of a case, yield the case without this disturbance or
    program. A case keeps its last program.
    """
    for at in range(len(plan.disturbances)):
        rest = plan.disturbances[:at] + plan.disturbances[at + 1 :]
        yield replace(plan, disturbances=rest)
    for at in range(len(plan.programs)) if len(plan.programs) > 1 else ():
        yield replace(plan, programs=plan.programs[:at] + plan.programs[at + 1 :])


def run_seeds(
    seeds: Iterable[int],
    *,
    twice: int = 0,
    without: Collection[str] = (),
    always: Collection[str] = (),
) -> list[Outcome]:
    """Run the case of each seed. If a case has no violation and its seed is a multiple of
    ``twice``, the case runs again, and both runs must be equal. With 0, no case runs again.
    """
    outcomes = []
    for seed in seeds:
        run = run_twice if twice and seed % twice == 0 else run_case
        outcomes.append(run(draw_case(seed, without, always)))
    return outcomes


def run_cases(seeds: range, jobs: int, **how: Any) -> Iterator[Outcome]:
    """Run the cases of all seeds in ``jobs`` processes. ``how`` are the other arguments of
    `run_seeds`. With one process, the outcomes are in the order of the seeds.
    """
    size = 1 if jobs == 1 else _PIECE
    pieces = [seeds[at : at + size] for at in range(0, len(seeds), size)]
    for outcomes in run_all(pieces, jobs, partial(run_seeds, **how)):
        yield from outcomes
