"""Random cases, each drawn from one number: an engine, its settings, its clients and disturbances.

A plan has the results of all random decisions about the engine and its clients, so that engines
that schedule differently serve the same clients. Only the transfers and copies of KV cache are
drawn while a case runs. Times are seconds of virtual time; sizes are tokens or blocks.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count, product
from typing import Any

from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.scheduler.config import ADMISSIONS, RETENTIONS, SchedulerConfig
from agentrt.scheduler.policies import BUILT_IN

COMBINATIONS = tuple(product(BUILT_IN, RETENTIONS, ADMISSIONS))
"""All combinations of policy, retention and admission. Consecutive cases have consecutive
combinations.
"""
LAYERS = {"full": 1, "sliding": 1, "hybrid": 3, "mamba": 2}
"""Kinds of KV cache, and the number of layer groups of each kind. Each group has its own blocks."""
HEAD = 32
"""The number of tokens with which all programs of a type begin."""
WINDOW = 40
"""Tokens of context that a sliding layer attends to."""
FEATURES = (
    *("grammar", "pooling", "stream", "lora", "connector", "drafts", "large", "priority", "salts"),
    *("pauses", "resets", "aborts", "stall", "messages", "offload"),
)
"""Kinds of requests and of disturbances. Each kind occurs only in a part of the cases."""
OFFLOAD, CONNECTOR = "offload", "connector"
"""Two features that exclude each other, because an engine has at most one KV connector."""
_SOMETIMES = 0.25
"""The probability that a case has a given feature."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The sizes of an engine, and the time that its steps take.

    ``connector`` says what happens to a call whose KV cache fails to arrive (``fail`` or
    ``recompute``); None means that the engine has no connector. ``host`` is the number of blocks in
    host memory, to which vLLM offloads KV cache; 0 means that nothing is offloaded. ``host_fails``
    says what happens to a call whose load from host memory fails (``fail`` or ``recompute``); None
    means that no load fails. ``stalled`` is the number of a step that takes a minute longer.
    ``active_slots`` is the number of batch slots that calls may hold; None means all slots.
    """

    slots: int
    blocks: int
    step_tokens: int
    max_model_len: int
    in_flight: int = 1
    layers: str = "full"
    prefix_cache: bool = True
    order: str = "fcfs"
    long_prefill: int = 0
    whole_prompt_fits: bool = True
    drafts: int = 0
    connector: str | None = None
    host: int = 0
    host_fails: str | None = None
    loras: int = 0
    base_s: float = 0.02
    token_s: float = 1e-4
    stalled: int | None = None
    kv_events: bool = False
    active_slots: int | None = None

    @property
    def places(self) -> int:
        """The number of calls that may run at a time, or wait for input as streaming sessions."""
        return self.slots if self.active_slots is None else self.active_slots

    @property
    def longest(self) -> int:
        """The number of tokens of the longest call that fits into the block pool if it is alone."""
        blocks = (self.blocks - 1) // LAYERS[self.layers] - 2
        return min(blocks * BLOCK_SIZE, self.max_model_len) - 4 * (1 + self.drafts)

    @property
    def too_large(self) -> bool:
        """Whether the model accepts prompts that do not fit into the pool."""
        return self.max_model_len - 20 > self.blocks * BLOCK_SIZE

    def alone_s(self, prompt: int, output: int) -> float:
        """Return the seconds of a call that is alone on the engine, with nothing in the prefix
        cache.
        """
        steps = -(-prompt // min(self.step_tokens, self.long_prefill or prompt or 1)) + output
        return steps * self.base_s + prompt * self.token_s


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One call, or one streaming session. ``turns`` has the later turns of a session, each as a
    tuple: the pause before the turn, the new tokens and the output tokens.

    The call's prompt repeats the beginning of its program's context (the share ``keeps`` of it),
    and then has ``fresh`` tokens of its own. ``stops_at`` is the index of the output token that
    stops the call, if this index is below the limit ``output``. The client aborts the call
    ``gives_up_s`` seconds after the call was submitted (None: never). A grammar takes ``grammar_s``
    seconds to compile (None: for ever); ``grammar_ends`` says whether the grammar then has an error
    or rejects the output.
    """

    name: str
    kind: str = "plain"
    keeps: float = 1.0
    fresh: int = 20
    output: int = 8
    stops_at: int | None = None
    priority: int = 0
    salt: str | None = None
    lora: int = 0
    node: str = ""
    size_hint: float | None = None
    gives_up_s: float | None = None
    grammar_s: float | None = 0.0
    grammar_ends: str = ""
    turns: tuple[tuple[float, int, int], ...] = ()
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """Time that a program spends outside the engine.

    ``kind`` is ``tool`` or ``human``. If the gap is not ``reported``, the client does not report it
    to the engine.
    """

    kind: str
    name: str
    seconds: float
    reported: bool = True


@dataclass(frozen=True, slots=True)
class Branches:
    """Lists of stages that run in parallel. A call that fails ends its own list. The program
    continues when all lists have ended.
    """

    branches: tuple[tuple[Stage, ...], ...]


Stage = CallPlan | Gap | Branches


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A program: its arrival time, its stages, and the way in which its client reports the end.

    ``says`` is the way in which its calls name the program: ``nested`` or ``flat`` values, vLLM's
    ``session`` id, or ``nothing``, so that each call is a program of its own. ``end`` is the way in
    which the client reports the end: ``ends`` (once), ``twice``, ``early`` (while the last call
    runs, and again at the end), or ``silent`` (never). ``cancelled_s`` seconds after the program's
    arrival, the client aborts the program's running calls and makes no further calls (None: the
    client never does this).
    """

    name: str
    type: str
    stages: tuple[Stage, ...]
    arrives: float = 0.0
    tenant: str = "default"
    session: str | None = None
    says: str = "nested"
    end: str = "ends"
    cancelled_s: float | None = None

    @property
    def calls(self) -> Iterator[CallPlan]:
        """All calls of the program."""
        return _calls(self.stages)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """An event that affects the whole engine.

    ``kind`` is ``new`` or ``all`` (a pause of new calls, or of all, for ``seconds``), ``drain`` (a
    pause of new calls until the running calls have ended, and then for ``seconds``), ``reset`` (of
    the prefix cache), ``restart`` (the same, and running calls start again), ``messages`` (about
    unknown programs, and queries), or ``configure`` (the same settings again, which an engine
    refuses while it has calls).
    """

    at: float
    kind: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CasePlan:
    """A case: an engine, its settings, the programs and the disturbances."""

    seed: int
    engine: EnginePlan
    settings: dict[str, Any]
    programs: tuple[ProgramPlan, ...]
    disturbances: tuple[Disturbance, ...] = ()

    @property
    def policy(self) -> str:
        """The names of the policy, the retention and the admission, with a plus between them."""
        names = ("policy", "retention", "admission")
        return "+".join(str(self.settings.get(name)) for name in names)


def _calls(stages: tuple[Stage, ...]) -> Iterator[CallPlan]:
    for stage in stages:
        if isinstance(stage, CallPlan):
            yield stage
        elif isinstance(stage, Branches):
            for branch in stage.branches:
                yield from _calls(branch)


def describe(plan: CasePlan) -> list[str]:
    """Return a line for each program and disturbance of a case, in the order of their times."""
    lines = [(program.arrives, _program_line(program)) for program in plan.programs]
    lines += [(event.at, f"{event.kind} for {event.seconds:.2f} s") for event in plan.disturbances]
    return [f"{at:.3f} s: {line}" for at, line in sorted(lines)]


def _program_line(program: ProgramPlan) -> str:
    about = f"{program.type}, {program.says}, session {program.session}, {program.end}"
    cancelled = (
        "" if program.cancelled_s is None else f", cancelled after {program.cancelled_s:.2f} s"
    )
    return f"{program.name} ({about}{cancelled}): {_stages_line(program.stages)}"


def _stages_line(stages: tuple[Stage, ...]) -> str:
    parts = []
    for stage in stages:
        if isinstance(stage, CallPlan):
            parts.append(_call_line(stage))
        elif isinstance(stage, Gap):
            silent = "" if stage.reported else " unreported"
            parts.append(f"{stage.kind} {stage.seconds:.2f} s{silent}")
        else:
            parts.append(f"[{' | '.join(map(_stages_line, stage.branches))}]")
    return ", ".join(parts)


def _call_line(call: CallPlan) -> str:
    """Return the sizes of a call, and the fields that differ from a plain call."""
    plain = CallPlan(call.name)
    names = ["keeps", "stops_at", "priority", "salt", "lora", "gives_up_s", "turns"]
    names += ["grammar_s", "grammar_ends"] if call.kind == "grammar" else []
    unusual = [
        f" {name}={getattr(call, name)}"
        for name in names
        if getattr(call, name) != getattr(plain, name)
    ]
    return f"{call.name} {call.fresh}+{call.output}{''.join(unusual)}"


# -- random cases ----------------------------------------------------------------------


def draw_case(seed: int, without: Collection[str] = (), always: Collection[str] = ()) -> CasePlan:
    """Draw the case of a seed. The case has no feature of ``without``, and all features of
    ``always``. Both are subsets of `FEATURES`.

    Consecutive seeds have consecutive combinations of settings.
    """
    return _Draw(seed, without, always).case()


class _Draw:
    """The draw of a case. Each kind of request and disturbance occurs only in a part of the cases,
    so that a failed case has few kinds.
    """

    def __init__(self, seed: int, without: Collection[str], always: Collection[str]) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"case {seed}")
        # Host memory has random numbers of its own. So cases without host memory are the same as
        # before host memory was added.
        self._host = random.Random(f"host {seed}")
        drawn = {
            feature for feature in FEATURES if feature != OFFLOAD and rng.random() < _SOMETIMES
        }
        if self._host.random() < _SOMETIMES and CONNECTOR not in drawn:
            drawn.add(OFFLOAD)
        if OFFLOAD in always:
            drawn.discard(CONNECTOR)
        elif CONNECTOR in always:
            drawn.discard(OFFLOAD)
        self.has = (drawn | set(always)) - set(without)
        self.engine = self._engine()
        self._numbers = count(1)
        self._types = [f"type{n}" for n in range(rng.randint(1, 3))]
        self._streams = 0

    def case(self) -> CasePlan:
        programs = tuple(self._program(n) for n in range(self.rng.randint(3, 9)))
        policy, retention, admission = COMBINATIONS[self.seed % len(COMBINATIONS)]
        settings = {
            "policy": policy,
            "retention": retention,
            "admission": admission,
            **self._settings(),
        }
        SchedulerConfig.from_dict(settings)
        return CasePlan(self.seed, self.engine, settings, programs, self._disturbances())

    def _engine(self) -> EnginePlan:
        rng, has = self.rng, self.has
        layers = rng.choice(("full", "full", "full", "sliding", "hybrid", "mamba"))
        if "connector" in has:  # the connector `Elsewhere` supports only one layer group
            layers = "full"
        groups = LAYERS[layers]
        order = "priority" if "priority" in has and rng.random() < 0.5 else "fcfs"
        base_s = rng.choice((0.005, 0.02, 0.1, 0.4))
        slots = rng.randint(1, 6)
        blocks = groups * rng.choice((rng.randint(9, 16), rng.randint(12, 40), 120)) + 1
        return EnginePlan(
            slots=slots,
            blocks=blocks,
            step_tokens=rng.choice((48, 64, 128, 2048)),
            max_model_len=rng.choice((256, 512)),
            in_flight=rng.choice((1, 2)),
            layers=layers,
            # In vLLM's order of priorities, a call that is preempted in the step in which it was
            # scheduled leaves blocks in the prefix cache that were never computed. And prompts that
            # need not fit as a whole preempt each other for ever, also under stock's scheduler.
            prefix_cache=rng.random() < 0.75 and order == "fcfs",
            whole_prompt_fits=rng.random() < 0.8 or order == "priority",
            order=order,
            long_prefill=rng.choice((0, 0, 0, 32)),
            drafts=rng.randint(1, 3) if "drafts" in has else 0,
            connector=rng.choice(("fail", "recompute")) if "connector" in has else None,
            host=round(blocks * self._host.choice((0.2, 1.0, 4.0))) if OFFLOAD in has else 0,
            host_fails=self._host.choice((None, None, "fail", "recompute")),
            loras=rng.randint(1, 2) if "lora" in has else 0,
            base_s=base_s,
            token_s=base_s * rng.choice((0.002, 0.01, 0.05)),
            stalled=rng.randint(2, 60) if "stall" in has else None,
            kv_events=rng.random() < 0.1,
            active_slots=rng.randint(1, slots) if rng.random() < 0.1 else None,
        )

    def _settings(self) -> dict[str, Any]:
        rng = self.rng
        settings: dict[str, Any] = {"admission_cap": rng.randint(1, 5)}
        if rng.random() < 0.3:
            settings["ttft_target"] = rng.choice((0.5, 5.0))
        if rng.random() < 0.3:
            settings["retention_ttl"] = rng.choice((0.5, 5.0))
        if rng.random() < 0.5:  # half of the cases have the defaults
            return settings
        first_s = self.engine.base_s * rng.choice((1, 4, 16))
        return settings | {
            "quanta": [first_s * 2**n for n in range(rng.randint(1, 5))],
            "beta": rng.choice((0.5, 2.0, 8.0)),
            "max_promoted": rng.randint(1, 4),
            "lane": rng.choice((0.0, 0.05, 0.3, 0.8)),
            "preemption": rng.random() < 0.9,
            "min_running_steps": rng.choice((0, 1, 4)),
            "min_remaining_tokens": rng.choice((0, 4)),
            "max_preemptions_per_step": rng.choice((1, 2, 8)),
            "stale_after_s": rng.choice((100.0, 3600.0)),
        }

    # -- programs ----------------------------------------------------------------------

    def _program(self, number: int) -> ProgramPlan:
        rng = self.rng
        stages: list[Stage] = []
        for _ in range(rng.randint(1, 4)):
            stages += self._branches() if rng.random() < 0.2 else self._turn()
        says = rng.choices(("nested", "flat", "session", "nothing"), (8, 1, 1, 1))[0]
        end = rng.choices(("ends", "twice", "early", "silent"), (8, 1, 1, 3))[0]
        return ProgramPlan(
            f"p{number}",
            rng.choice(self._types),
            tuple(stages),
            arrives=rng.choice((0.0, rng.uniform(0, 20 * self.engine.base_s), rng.uniform(0, 5))),
            tenant=rng.choice(("default", "other")),
            session=rng.choice((None, None, "s1", "s2")),
            says=says,
            end=end,
            cancelled_s=rng.uniform(0, 40 * self.engine.base_s)
            if "aborts" in self.has and rng.random() < 0.3
            else None,
        )

    def _turn(self) -> list[Stage]:
        stages: list[Stage] = [self._call()]
        if self.rng.random() < 0.5:
            stages.append(self._gap())
        return stages

    def _branches(self) -> list[Stage]:
        rng = self.rng
        branches = [
            tuple(stage for _ in range(rng.randint(1, 2)) for stage in self._turn())
            for _ in range(rng.randint(2, 3))
        ]
        return [Branches(tuple(branches))]

    def _gap(self) -> Gap:
        rng = self.rng
        human = rng.random() < 0.2
        seconds = rng.uniform(1, 60) if human else rng.uniform(0, 60 * self.engine.base_s)
        name = "" if human else rng.choice(("shell", "web", ""))
        return Gap("human" if human else "tool", name, seconds, rng.random() < 0.8)

    def _call(self) -> CallPlan:
        rng, has, engine = self.rng, self.has, self.engine
        kinds = ["plain"] * 4 + [kind for kind in ("grammar", "pooling") if kind in has]
        kinds += ["load", "wait", "send"] if engine.connector else []
        if "stream" in has and self._streams < 2 and engine.longest > 150:
            kinds.append("stream")
        kind, number = rng.choice(kinds), next(self._numbers)
        if "large" in has and engine.too_large and rng.random() < 0.2:
            return self._oversized(f"large-{number}")
        name = f"{kind}-{number}"
        if kind == "grammar":
            return self._grammar(name)
        if kind == "stream":
            return self._stream(name)
        output, longest = rng.randint(1, 16), engine.longest
        return CallPlan(
            name,
            kind,
            keeps=rng.choice((1.0, 1.0, 1.0, 0.5, 0.0)),
            fresh=rng.choice((rng.randint(1, 40), rng.randint(1, max(2, longest - output - 1)))),
            output=output,
            stops_at=rng.randint(0, output) if rng.random() < 0.2 else None,
            priority=rng.randint(0, 2) if "priority" in has else 0,
            salt=rng.choice((None, "a")) if "salts" in has else None,
            lora=rng.randint(0, 3) if engine.loras else 0,
            node=rng.choice(("", "plan", "act")),
            size_hint=rng.choice((None, None, None, 10.0, 1000.0)),
            gives_up_s=self._patience(),
        )

    def _oversized(self, name: str) -> CallPlan:
        """Draw a call whose prompt is larger than the KV cache. The call waits until its client
        aborts it.
        """
        fresh = self.rng.randint(self.engine.blocks * BLOCK_SIZE, self.engine.max_model_len - 18)
        gives_up_s = self.rng.uniform(1, 100) * self.engine.base_s
        return CallPlan(name, fresh=fresh, gives_up_s=gives_up_s, too_large=True)

    def _grammar(self, name: str) -> CallPlan:
        """Draw a call that waits for its grammar, possibly until its client aborts it."""
        rng, base_s = self.rng, self.engine.base_s
        never = rng.random() < 0.2
        return CallPlan(
            name,
            "grammar",
            fresh=rng.randint(1, 40),
            output=rng.randint(1, 16),
            grammar_s=None if never else rng.choice((0.0, rng.uniform(0, 100) * base_s)),
            grammar_ends=rng.choice(("", "", "", "error", "rejects")),
            gives_up_s=rng.uniform(20, 300) * base_s if never else self._patience(),
        )

    def _patience(self) -> float | None:
        impatient = "aborts" in self.has and self.rng.random() < 0.15
        return self.rng.uniform(0, 60) * self.engine.base_s if impatient else None

    def _stream(self, name: str) -> CallPlan:
        """Draw a streaming session. A case has at most two sessions, because a session holds its KV
        cache while it waits.
        """
        rng = self.rng
        self._streams += 1
        turns = tuple(
            (rng.choice((0.0, rng.uniform(0, 60 * self.engine.base_s))), rng.randint(1, 10), 4)
            for _ in range(rng.randint(1, 3))
        )
        return CallPlan(
            name,
            "stream",
            keeps=0.0,
            fresh=rng.randint(1, 16),
            output=rng.randint(1, 4),
            turns=turns,
            gives_up_s=rng.uniform(0, 60) * self.engine.base_s if rng.random() < 0.2 else None,
        )

    # -- disturbances ------------------------------------------------------------------

    def _disturbances(self) -> tuple[Disturbance, ...]:
        rng, base_s = self.rng, self.engine.base_s
        drawn: list[Disturbance] = []
        kinds = [("pauses", ("new", "all", "drain")), ("messages", ("messages", "configure"))]
        # vLLM cannot restart running calls while steps or transfers of KV cache are in flight.
        whole = self.engine.in_flight == 1 and not (self.engine.connector or self.engine.host)
        kinds.append(("resets", ("reset", "restart") if whole else ("reset",)))
        for feature, names in kinds:
            if feature in self.has:
                drawn += [
                    Disturbance(
                        rng.uniform(0, 150 * base_s), rng.choice(names), rng.uniform(0, 40 * base_s)
                    )
                    for _ in range(rng.randint(1, 4))
                ]
        return tuple(sorted(drawn, key=lambda event: event.at))
