"""``benchmarks cliff``: predicts a fall of throughput that another project measured.

InferenceX (pull request 2268) served coding agents' sessions (AgentX) with GLM-5.2 NVFP4 on one
node of eight B300 GPUs, with SGLang and a KV cache of 3.3 million tokens. From 8 to 32 sessions at
a time, the throughput fell to a fifth, because their contexts no longer fitted. Here, sessions of
the published sizes run in virtual time on vLLM's scheduler with a KV cache of the same size, and
then under agentrt's defaults.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random
from statistics import median
from typing import Any

import click

from agentrt.executors.identity import to_extra_args
from agentrt.lab.commands.options import (
    ManyCommand,
    many,
    policy_option,
    silence_vllm,
)
from agentrt.lab.commands.progress import finished
from agentrt.lab.engine.headless import TOKEN, HeadlessEngine, make_scheduler, stock_scheduler
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.outcome import quantile
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.contenders import DEFAULT, STOCK, check_parts, contender, contenders
from agentrt.request import Identity
from benchmarks.cells import seeds_of, study_options
from benchmarks.harness import show
from benchmarks.options import counts, minutes_option
from benchmarks.workloads.sizes import Sizes

GPUS = 8
POOL, BLOCK, STEP_TOKENS, SLOTS = 3_300_000, 64, 8_192, 256
"""The tokens of the KV cache are published. The tokens of a block, the tokens of a step, and the
slots are assumed.
"""
LONGEST = 1_048_576
STEPS = StepTimeModel(
    base_s=18e-3, per_prefill_token_s=52e-6, per_decode_s=0.0, per_context_token_s=0.0
)
"""Step times, fitted such that stock vLLM has the published throughput: the base at 8 sessions, and
the time of a prompt token at 32 sessions.
"""


@dataclass(frozen=True, slots=True)
class PublishedFigures:
    """Published figures: tokens of prompts and outputs per second and GPU, the share of prompt
    tokens that were cached, and the median seconds to the first token.
    """

    tokens: float
    hits: float
    ttft_s: float


MEASURED: Mapping[int, PublishedFigures] = {
    8: PublishedFigures(12_603, 0.97, 0.4),
    16: PublishedFigures(3_421, 0.39, 14.2),
    32: PublishedFigures(2_383, 0.05, 196.8),
}
"""The published figures by the number of sessions at a time."""

SYSTEM = 20_000
TURNS = Sizes(mean=60, spread=0.8, low=5, high=200)
FIRST = Sizes(mean=20_000, spread=0.8, low=1_000, high=200_000)
ADDED = Sizes(mean=2_800, spread=1.0, low=20, high=60_000)
OUTPUT = Sizes(mean=640, spread=0.9, low=10, high=8_000)
"""The means and spreads are assumed. The resulting medians are near the published medians: 43 turns
in a session, and 142,000 prompt tokens and 444 output tokens over all calls.
"""
_GAP = (1.0, 1.5)
"""Median and spread of the seconds from an answer to the next turn (assumed)."""
_LONGEST_GAP_S = 10.0
"""Maximum gap in seconds, as in the published runs."""
_AT_START = 64
"""Number of sessions from which a client's first session is drawn."""


@click.command(cls=ManyCommand)
@many(
    "--clients",
    metavar="N,…",
    help="Numbers of clients. Each client has one session at a time.  [default: 8,16,32,64]",
)
@policy_option(f"Schedulers.  [default: {STOCK},{DEFAULT}]")
@minutes_option(
    30.0,
    "Virtual minutes that are measured. The measurement begins after a warm-up of a third of "
    "this time.",
    least=1.0,
)
@study_options(3)
def cliff(**options: Any) -> None:
    """Predict a published fall of throughput, and the throughput under agentrt's defaults.

    Clients hold sessions of coding agents, one after the other, and never say that a session is
    over. A cell shows tokens per second and GPU, the share of prompt tokens found in the KV cache,
    and the median and the P95 of the seconds to the first token, each the median over the seeds.
    The P95 includes the calls that still wait at the end.
    """
    numbers = counts("--clients", options["clients"] or ("8", "16", "32", "64"))
    policies = contenders(options["policy"] or (STOCK, DEFAULT))
    check_parts(policies)
    names = [policy.name for policy in policies]
    minutes = options["minutes"]
    specs = [Spec(*cell, minutes) for cell in product(numbers, seeds_of(options), names)]
    silence_vllm()
    with finished(specs, options["jobs"], run) as results:
        if results:
            show(table(results), {"cells": cells(results)}, as_json=options["as_json"])


@dataclass(frozen=True, slots=True)
class Spec:
    """The description of one run."""

    clients: int
    seed: int
    name: str
    minutes: float


@dataclass(slots=True)
class Counted:
    """The tokens of the calls that ended during the measurement. ``first_s`` has the seconds of the
    first tokens that arrived during the measurement. ``still_s`` has the seconds for which the
    calls without a first token had waited when the run ended.
    """

    seconds: float
    prompt: int = 0
    output: int = 0
    cached: int = 0
    first_s: list[float] = field(default_factory=list)
    still_s: list[float] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, float]:
        """Tokens per second and GPU, the share of prefix cache hits, and the seconds to the first
        token. The median is over the first tokens that arrived; the P95 and the maximum include the
        calls that still waited at the end. Without a call, the hits and the seconds are NaN.
        """
        waits, all_waits = sorted(self.first_s), sorted([*self.first_s, *self.still_s])
        return {
            "tokens": (self.prompt + self.output) / self.seconds / GPUS,
            "hits": self.cached / self.prompt if self.prompt else float("nan"),
            "ttft_p50_s": quantile(waits, 0.5) if waits else float("nan"),
            "ttft_p95_s": quantile(all_waits, 0.95) if all_waits else float("nan"),
            "longest_s": all_waits[-1] if all_waits else float("nan"),
            "calls": len(waits),
        }


class Session:
    """A coding agent's session: a context that grows with each turn. The client does not report the
    end of a session.
    """

    def __init__(self, rng: Random, name: str, turns: int) -> None:
        self.name = name
        self.turns = turns
        self.turn = 0
        self.output = 0
        self._rng = rng
        self.prompt = [*_SYSTEM_TOKENS, *self._tokens(FIRST.draw(rng))]

    def _tokens(self, count: int) -> list[int]:
        return self._rng.choices(_VOCABULARY, k=count)

    def skip(self, turns: int) -> None:
        """Take turns of which the engine sees nothing, and stop at the session's last turn."""
        for _ in range(turns):
            before = self.prompt
            self.output = OUTPUT.draw(self._rng)
            if not self.advance():
                self.prompt = before
                return

    def send(self) -> tuple[str, list[int], int]:
        """Begin a turn. Return the call's id, its prompt and its number of output tokens."""
        self.output = OUTPUT.draw(self._rng)
        return f"{self.name}/{self.turn}", self.prompt, self.output

    def advance(self) -> bool:
        """End the turn. Return whether the session has another turn."""
        self.turn += 1
        self.prompt = [
            *self.prompt,
            *[TOKEN] * self.output,
            *self._tokens(ADDED.draw(self._rng)),
        ]
        return self.turn < self.turns and len(self.prompt) + OUTPUT.high < LONGEST


_VOCABULARY = range(1_000, 120_000)
_SYSTEM_TOKENS = Random("system").choices(_VOCABULARY, k=SYSTEM)


def first_session(rng: Random, name: str) -> Session:
    """Return a session in progress, like a client's session at a random time: the probability of a
    session is proportional to its length, and all its turns are equally likely.
    """
    lengths = [TURNS.draw(rng) for _ in range(_AT_START)]
    (turns,) = rng.choices(lengths, lengths)
    session = Session(rng, name, turns)
    session.skip(rng.randrange(turns))
    return session


@dataclass(slots=True)
class _Engine(HeadlessEngine):
    """An engine that notes how many tokens were cached when each call first ran."""

    cached: dict[str, int] = field(default_factory=dict)

    def _scheduled(self, output: Any) -> None:
        from agentrt.executors.vllm._compat.scheduling import computed_before

        for call_id, tokens in computed_before(output).items():
            self.cached.setdefault(call_id, tokens)


def run(spec: Spec) -> dict[str, float]:
    """Run the clients under one scheduler, and return the figures."""
    from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler

    config = contender(spec.name).config
    scheduler = make_scheduler(
        stock_scheduler() if config is None else ProgramScheduler,
        max_num_seqs=SLOTS,
        blocks=POOL // BLOCK,
        block_size=BLOCK,
        max_model_len=LONGEST,
        max_num_batched_tokens=STEP_TOKENS,
        settings={} if config is None else config.to_dict(),
    )
    engine = _Engine(scheduler, step_s=STEPS.seconds)
    measured_s = spec.minutes * 60.0
    begin_s, counted = measured_s / 3.0, Counted(measured_s)
    draws = [Random(f"cliff/{spec.seed}/{client}") for client in range(spec.clients)]
    sessions = [first_session(draw, f"{client}-0") for client, draw in enumerate(draws)]
    begun = [0] * spec.clients
    due = [(float(client), client) for client in range(spec.clients)]
    calls: dict[str, tuple[int, Any]] = {}
    silent: dict[str, float] = {}

    def send(client: int) -> None:
        session = sessions[client]
        call_id, prompt, output = session.send()
        identity = Identity(call_id, session.name, "agent")
        extra = None if config is None else to_extra_args(identity)
        engine.add(call_id, prompt, output, extra)
        calls[call_id] = client, engine.requests[call_id]
        silent[call_id] = engine.now

    def end(call_id: str) -> None:
        client, _ = calls.pop(call_id)
        cached = engine.cached.pop(call_id)
        session, draw = sessions[client], draws[client]
        if engine.now > begin_s:
            counted.prompt += len(session.prompt)
            counted.output += session.output
            counted.cached += cached
        if not session.advance():
            begun[client] += 1
            sessions[client] = Session(draw, f"{client}-{begun[client]}", TURNS.draw(draw))
        gap_s = min(_GAP[0] * draw.lognormvariate(0.0, _GAP[1]), _LONGEST_GAP_S)
        heapq.heappush(due, (engine.now + gap_s, client))

    while engine.now < begin_s + measured_s:
        while due and due[0][0] <= engine.now:
            send(heapq.heappop(due)[1])
        if not engine.requests:
            engine.now = due[0][0]
            continue
        step = engine.step()
        for call_id in [name for name in step.scheduled if name in silent]:
            if calls[call_id][1].num_output_tokens:
                waited_s = engine.now - silent.pop(call_id)
                if engine.now > begin_s:
                    counted.first_s.append(waited_s)
        for call_id in step.finished:
            end(call_id)
    counted.still_s += [engine.now - since for since in silent.values()]
    return counted.figures


# -- results -------------------------------------------------------------------------------


def medians(results: Mapping[Spec, Mapping[str, float]]) -> dict[tuple[int, str], dict[str, float]]:
    """Return the median of each figure over the seeds, by number of clients and scheduler."""
    groups: dict[tuple[int, str], list[Mapping[str, float]]] = {}
    for spec, figures in results.items():
        groups.setdefault((spec.clients, spec.name), []).append(figures)
    return {
        key: {name: median(seed[name] for seed in seeds) for name in seeds[0]}
        for key, seeds in groups.items()
    }


def table(results: Mapping[Spec, Mapping[str, float]]) -> str:
    """Return a table with a row for each number of clients: the published measurement, then the
    prediction for each scheduler.
    """
    cells_of = medians(results)
    names = [*dict.fromkeys(name for _, name in cells_of)]
    rows: list[Sequence[str]] = []
    for clients in dict.fromkeys(number for number, _ in cells_of):
        theirs = MEASURED.get(clients)
        shown = _shown(theirs.tokens, theirs.hits, theirs.ttft_s) if theirs else ""
        row = [str(clients), shown]
        for name in names:
            mine = cells_of.get((clients, name))
            row.append(_cell(mine) if mine else "")
        rows.append(row)
    return markdown(["sessions", "measured", *names], rows)


def _cell(mine: Mapping[str, float]) -> str:
    shown = _shown(mine["tokens"], mine["hits"], mine["ttft_p50_s"])
    return f"{shown} / {mine['ttft_p95_s']:.1f}"


def _shown(tokens: float, hits: float, ttft_s: float) -> str:
    return f"{tokens:,.0f} / {hits:.2f} / {ttft_s:.1f}"


def cells(results: Mapping[Spec, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return all runs as JSON values."""
    return [
        {"clients": spec.clients, "scheduler": spec.name, "seed": spec.seed, **figures}
        for spec, figures in results.items()
    ]
