"""Each documented option changes something under the default, or is refused with a reason."""

from __future__ import annotations

import pytest

from agentrt.errors import ConfigError
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.policies import check_settings, policy_names

DEFAULT = SchedulerConfig()


@pytest.mark.parametrize("name", ["quanta", "lane", "ttft_target"])
def test_the_default_takes_the_options_that_it_reads(name: str) -> None:
    check_settings(DEFAULT, [name])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("beta", "--beta .* --policy adaptive; .* atlas, "),
        ("max_promoted", "--max-promoted .* --policy adaptive; .* atlas, "),
        ("retention_ttl", "--retention-ttl .* only with --retention ttl, .* cost now"),
        ("admission_cap", "--admission-cap .* only with --admission cap, .* memory now"),
    ],
)
def test_an_option_without_effect_under_the_default_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_settings(DEFAULT, ["quanta", name])


def test_every_policy_says_which_settings_it_reads() -> None:
    reads: dict[str, set[str]] = {}
    for policy in policy_names():
        reads[policy] = set()
        for name in ("quanta", "beta", "max_promoted", "lane"):
            try:
                check_settings(SchedulerConfig(policy=policy), [name])
            except ConfigError:
                continue
            reads[policy].add(name)
    attained = {"quanta", "beta", "max_promoted"}
    assert reads == {
        "atlas": attained,
        "adaptive": {"quanta", "lane"},
        "longest-remaining": {"quanta"},
        "atlas-scalar": attained,
        "plas": attained,
        "mlfq": attained,
        "round-robin": {"quanta"},
        "program-fcfs": set(),
        "srtf": set(),
        "two-level": set(),
        "fcfs": set(),
    }
