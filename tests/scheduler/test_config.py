"""The scheduler's settings: what is taken, what is refused, and how they travel."""

from __future__ import annotations

import json
import math

import pytest

from agentrt.errors import ConfigError
from agentrt.scheduler import SchedulerConfig


@pytest.mark.parametrize("beta", [math.inf, 2.5])
def test_settings_survive_json(beta: float) -> None:
    config = SchedulerConfig(policy="plas", quanta=(1, 2.5), beta=beta)
    told = json.dumps(config.to_dict(), allow_nan=False)
    assert SchedulerConfig.from_dict(json.loads(told)) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quanta": (1, 0)}, "quanta must be positive"),
        ({"beta": 0}, "beta must be a positive number"),
        ({"lane": -0.01}, "lane must be a share of the batch, at least 0 and below 1, got -0.01"),
        ({"lane": 1.0}, "lane must be a share of the batch, at least 0 and below 1, got 1.0"),
        ({"max_promoted": -1}, "max_promoted must not be negative"),
        ({"stale_after_s": 0}, "stale_after_s must be positive"),
    ],
)
def test_bad_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        # The wrong types are the point.
        SchedulerConfig(**values)  # type: ignore[arg-type]


def test_minimum_settings_are_accepted() -> None:
    least = SchedulerConfig(lane=0, admission_cap=1, ttft_target=0.001, max_promoted=0)
    assert (least.admission_cap, least.ttft_target) == (1, 0.001)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"setting 'colour'; available: admission, admission_cap, "
    ):
        SchedulerConfig.from_dict({"colour": 1})
    with pytest.raises(ConfigError, match=r"scheduler setting quanta=1: .*int"):
        SchedulerConfig.from_dict({"quanta": 1})
    with pytest.raises(ConfigError, match=r"scheduler setting quanta=\['soon'\]: .*'soon'"):
        SchedulerConfig.from_dict({"quanta": ["soon"]})
    with pytest.raises(ConfigError, match=r"scheduler setting lane='half': "):
        SchedulerConfig.from_dict({"policy": "plas", "lane": "half", "beta": 2.0})
    assert SchedulerConfig.from_dict({"policy": "plas"}) == SchedulerConfig(policy="plas")


def test_the_former_name_of_a_setting_still_works() -> None:
    """Journals of older versions have it; code that uses it is warned."""
    config = SchedulerConfig(min_running_steps=7)
    assert SchedulerConfig.from_dict({"min_residency_steps": 7}) == config
    with pytest.warns(DeprecationWarning, match=r"min_residency_steps=….* is now min_running_step"):
        assert SchedulerConfig(min_residency_steps=7) == config  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="is now min_running_steps"):
        assert config.min_residency_steps == 7  # type: ignore[attr-defined]


def test_levels_end_at_the_running_sum() -> None:
    config = SchedulerConfig(quanta=(1, 2, 4))
    assert config.level_ends == (1, 3, 7, math.inf)
    assert config.level_quanta == (1, 2, 4, math.inf)
