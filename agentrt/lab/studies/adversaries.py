"""Ways to game the scheduler: what a tenant's programs do, and what it says of them.

A fourth of the programs of each type belongs to one tenant, the gamer. A `Scenario` says
what work the programs do, honestly described, and which lie the gamer tells about it.
`agentrt.lab.studies.gaming` measures what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean

from agentrt.errors import ConfigError
from agentrt.lab.workloads.generate import generate
from agentrt.lab.workloads.shape import CallShape, ProgramShape, with_hints

OTHERS, GAMER = "others", "gamer"
"""The two tenants."""
ONE_OF = 4
"""One of so many programs of each type is the gamer's."""
_FIRST_RUNG_S, _RUNGS, _TRUE_RUNGS = 9.05, 8, 10
"""Of `nearly-done`: the least service at which its programs end (seconds); how many sizes,
each the root of two of the one before, most of its programs have; and how far the long
ones go. The sizes lie just above the edges of `History`'s bins: the gamer knows them."""
_TOKEN_S = 0.025
"""Seconds for which the gamer takes a token: those of a step of `Machine`, unless told."""
_BAIT, _ODD = 0.6, 12
"""Of `nearly-done`: the share of the programs that set the bait, and one of how many
of those is long all the same, so that an honest scheduler knows what long ones are."""
_SMALL, _LARGE = 0.5, 5.0
"""Of `grows` and `shrinks`: sizes before and after, in those of a chat."""

Programs = Sequence[ProgramShape]
Change = Callable[[Programs, int], Programs]
"""What a seed makes of programs: as many, in the same order."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way to game: which ``work`` the programs do, and the ``lie`` told about it.

    ``parts``: the gamer runs each program as so many, one after another. In a scenario that
    is ``everyone``'s all programs are described badly, and nobody gains by it.
    """

    name: str
    text: str
    lie: Change = field(default=lambda programs, seed: programs)
    work: Change = field(default=lambda programs, seed: programs)
    parts: int = 1
    everyone: bool = False


def population(n: int, seed: int) -> list[ProgramShape]:
    """``n`` programs of the mixed workload, each of a tenant. Raises `ConfigError` if too few."""
    if n < 3 * ONE_OF:
        raise ConfigError(f"{n} programs have no gamer of each type; give {3 * ONE_OF} or more")
    seen: dict[str, int] = {}
    programs = []
    for program in generate("mixed", n, seed):
        seen[program.type] = seen.get(program.type, 0) + 1
        tenant = OTHERS if seen[program.type] % ONE_OF else GAMER
        programs.append(replace(program, tenant=tenant))
    return programs


def _gamers(change: Callable[[ProgramShape, float], ProgramShape]) -> Change:
    """A change of the gamer's programs alone, told how far through its own each is (0 to 1)."""

    def changed(programs: Programs, seed: int) -> Programs:
        total = sum(program.tenant == GAMER for program in programs)
        shares = (index / total for index in range(total))
        return [change(p, next(shares)) if p.tenant == GAMER else p for p in programs]

    return changed


def _typed(program: ProgramShape, name: str) -> ProgramShape:
    return replace(program, type=name)


def _as_shortest(programs: Programs, seed: int) -> Programs:
    """The gamer's programs under the name of the type that is shortest on average."""
    sizes: dict[str, list[int]] = {}
    for program in programs:
        sizes.setdefault(program.type, []).append(program.output_tokens)
    shortest = min(sizes, key=lambda name: fmean(sizes[name]))
    return _gamers(lambda program, share: _typed(program, shortest))(programs, seed)


def _all_new(programs: Programs, seed: int) -> Programs:
    return [_typed(program, program.program_id) for program in programs]


def _all_random(programs: Programs, seed: int) -> Programs:
    names = sorted({program.type for program in programs})
    rng = Random(f"types/{seed}")
    return [_typed(program, rng.choice(names)) for program in programs]


def _baits_and_hooks(programs: Programs, seed: int) -> Programs:
    """First programs that end at the rungs of a ladder, at each half as many as at that below;
    then programs that climb on, by the same calls. Honestly, the two are two types.
    """
    rungs = [round(_FIRST_RUNG_S * 1.04 * 2 ** (k / 2) / _TOKEN_S) for k in range(_TRUE_RUNGS)]
    numbers = iter(range(1, len(programs) + 1))

    def made(program: ProgramShape, share: float) -> ProgramShape:
        number = next(numbers)
        bait = share < _BAIT and number % _ODD > 0
        ruler = (number & -number).bit_length()  # 1 2 1 3 1 2 1 4 …
        climbed = rungs[: min(ruler, _RUNGS)] if bait else rungs
        calls = tuple(
            CallShape(up - low, after=(k - 1,) if k else ())
            for k, (low, up) in enumerate(zip([0, *climbed], climbed, strict=False))
        )
        return replace(program, type="bait" if bait else "hook", calls=calls)

    return _gamers(made)(programs, seed)


def _resized(early: float, late: float) -> Change:
    """The gamer's programs become chats of other sizes, the later half's being another type."""

    def work(programs: Programs, seed: int) -> Programs:
        chats = iter(generate("chat", len(programs), seed + 1_000))

        def made(program: ProgramShape, share: float) -> ProgramShape:
            scale, name = (early, "early") if share < 0.5 else (late, "late")
            calls = tuple(
                replace(call, output_tokens=max(1, round(call.output_tokens * scale)))
                for call in next(chats).calls
            )
            return replace(program, type=name, calls=calls)

        return _gamers(made)(programs, seed)

    return work


def _hinted(programs: Programs, seed: int) -> Programs:
    return with_hints(programs, 0.5, seed)


_ONE_TYPE = _gamers(lambda program, share: _typed(program, "task"))

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("split-2", "each program is cut in two, to look short", parts=2),
        Scenario("split-4", "each program is cut in four", parts=4),
        Scenario("short-name", "all carry the name of the shortest honest type", lie=_as_shortest),
        Scenario(
            "new-names",
            "each program is of a type of its own",
            lie=_gamers(lambda program, share: _typed(program, program.program_id)),
        ),
        Scenario(
            "all-new", "everyone's programs are of unknown types", lie=_all_new, everyone=True
        ),
        Scenario(
            "all-random",
            "everyone's programs carry random ones of the types' names",
            lie=_all_random,
            everyone=True,
        ),
        Scenario(
            "nearly-done",
            "many programs end just after a size that the scheduler tells apart; then long ones "
            "of the same type climb past those sizes",
            lie=_ONE_TYPE,
            work=_baits_and_hooks,
        ),
        Scenario(
            "grows",
            "a type's programs become ten times as large halfway",
            lie=_ONE_TYPE,
            work=_resized(_SMALL, _LARGE),
        ),
        Scenario(
            "shrinks",
            "a type's programs become a tenth as large halfway",
            lie=_ONE_TYPE,
            work=_resized(_LARGE, _SMALL),
        ),
        Scenario(
            "tiny-hints",
            "its sizes are guessed as one token; honest guesses correlate with the truth by 0.5",
            lie=_gamers(lambda program, share: replace(program, hint_tokens=1.0)),
            work=_hinted,
        ),
    )
}
"""By name, those of the same work side by side. What is ``everyone``'s says what the types'
names are worth."""
