"""What of the learned survives in a file's values, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.executors.history import load, saved
from agentrt.scheduler import learned as module
from agentrt.scheduler.learned import LONGEST_S, WINDOW, Learned

GREP = ("acme", "agent", "grep")


def test_what_was_learned_survives_json() -> None:
    learned, other = Learned(), Learned()
    for index in range(8):
        learned.service.learn(("t/ü", "agent", f"turn {index % 3}"), index / 2)
        learned.gaps.learn(GREP, 0.1 * index, well=index % 3 > 0)
    text = json.dumps(saved(learned))
    load(other, json.loads(text))
    assert json.dumps(saved(other)) == text
    assert other.gaps.expect([GREP], 0.2) == learned.gaps.expect([GREP], 0.2)
    assert other.service.expect([("t/ü", "agent", "turn 1")], 1.0).seconds != 1.0


def row(**changes: Any) -> list[Any]:
    values = {"tenant": "d", "type": "t", "what": "", "age": 1, "n": 1.0, "mean": 1.0}
    return list({**values, "ends": 2.0, "share": 0.5, **changes}.values())


def values_of(where: str = "gaps", *rows: Any) -> dict[str, Any]:
    return {"version": 3, "service": [], "gaps": [], where: list(rows)}


@pytest.mark.parametrize("where", ["gaps", "service"])
@pytest.mark.parametrize(
    "good", [row(), row(n=0.0, mean=0.0, share=0.0), row(n=WINDOW, mean=LONGEST_S, share=1.0)]
)
def test_good_rows_are_taken(where: str, good: list[Any]) -> None:
    learned = Learned()
    load(learned, values_of(where, good))
    assert saved(learned) == values_of(where, good)


BAD_ROWS = [
    7,
    row()[:-1],
    [*row(), 1.0],
    row(tenant=None),
    row(type=["t"]),
    row(what=7),
    row(age="high"),
    row(age=math.inf),
    row(age=math.nan),
    *(row(**{name: value}) for name in ("n", "ends") for value in (-1.0, math.nan, 257.0, "x")),
    *(row(mean=value) for value in ("long", -1.0, math.nan, math.inf, 1e300)),
    *(row(share=value) for value in (-0.1, 1.1, math.nan, None)),
]


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "history",
        {},
        {"version": 3},
        {"version": 3, "service": [], "gaps": 7},
        *(values_of(where, bad) for where in ("service", "gaps") for bad in BAD_ROWS),
    ],
)
def test_what_was_never_learned_is_refused_and_changes_nothing(values: Any) -> None:
    learned = Learned()
    learned.gaps.learn(GREP, 3.0)
    before = saved(learned)
    with pytest.raises(ConfigError, match=r"^this is not a history of programs: "):
        load(learned, values)
    assert saved(learned) == before


@pytest.mark.parametrize("version", [0, 2, "one", None])
def test_another_version_is_refused_whatever_is_in_it(version: Any) -> None:
    with pytest.raises(ConfigError, match=f"version {version}, not 3: delete it$"):
        load(Learned(), {"version": version, "rows": []})


def test_of_too_many_kinds_the_first_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KINDS", 3)
    learned, rows = Learned(), [row(what=name) for name in "abcd"]
    load(learned, values_of("service", *rows))
    assert saved(learned) == values_of("service", *rows[1:])
