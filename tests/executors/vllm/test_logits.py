"""Which logits processors programs may name, and which error the others give."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.vllm import options as module
from agentrt.executors.vllm._compat.sampling import interface_of
from agentrt.executors.vllm.options import ENTRY_POINT_GROUP, offer_processors

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine


class First(interface_of("V1")):  # type: ignore[misc]
    """A processor for model runner V1."""


class Own:
    First = First


class Second(interface_of("V2")):  # type: ignore[misc]
    """A processor for model runner V2."""


def installed(**named: str) -> list[EntryPoint]:
    return [
        EntryPoint(name.rstrip("_"), f"{__name__}:{value}", ENTRY_POINT_GROUP)
        for name, value in named.items()
    ]


def config(*, v2: bool = False, flag: tuple[Any, ...] = (), **others: Any) -> Any:
    model = SimpleNamespace(logits_processors=list(flag) or None, runner_type="generate")
    settings = {"use_v2_model_runner": v2, "speculative_config": None, **others}
    return SimpleNamespace(model_config=model, **settings)


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    found = installed(green="First", green_="Second", bias="Second", gone="Missing")
    monkeypatch.setattr(module, "entry_points", lambda group: found)
    return found


@pytest.mark.usefixtures("points")
def test_a_runner_loads_what_is_written_for_it_and_says_why_not_the_rest() -> None:
    first, second = config(), config(v2=True)
    offered = offer_processors(first)
    assert first.model_config.logits_processors == [f"{__name__}:First"]
    assert offered["green"] == ""
    assert "bias" in offered
    assert "not written for vLLM's model runner V1" in offered["bias"]
    assert "cannot be imported" in offered["gone"]
    offered = offer_processors(second)
    assert second.model_config.logits_processors == [f"{__name__}:Second"] * 2
    assert (offered["green"], offered["bias"]) == ("", "")


@pytest.mark.usefixtures("points")
def test_those_of_the_flag_go_by_their_classes_and_come_first() -> None:
    given = config(flag=(f"{__name__}:Own.First", First))
    offered = offer_processors(given)
    assert (offered["First"], offered["green"]) == ("", "")
    assert given.model_config.logits_processors[:2] == [f"{__name__}:Own.First", First]


@pytest.mark.parametrize(
    ("processor", "why"),
    [
        ("nowhere:Any", "nowhere:Any cannot be imported"),
        (f"{__name__}:Missing", "cannot be imported"),
        (f"{__name__}:Second", "not written for vLLM's model runner V1"),
        (f"{__name__}:ENTRY_POINT_GROUP", "not written for vLLM's model runner V1"),
    ],
)
def test_one_of_the_flag_that_does_not_load_is_refused(processor: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"--logits-processors: .*{why}"):
        offer_processors(config(flag=(processor,)))


@pytest.mark.usefixtures("points")
def test_an_engine_that_takes_none_says_why() -> None:
    speculating = config(speculative_config=object())
    assert "speculative decoding" in offer_processors(speculating)["green"]
    embedding = config()
    embedding.model_config.runner_type = "pooling"
    assert "embeddings" in offer_processors(embedding)["green"]
    assert embedding.model_config.logits_processors is None
    with pytest.raises(
        ConfigError, match=r"--logits-processors: .*First.* cannot run in this engine"
    ):
        offer_processors(config(flag=(First,), speculative_config=object()))


def test_a_name_that_cannot_be_used_is_refused_with_what_can() -> None:
    info = ExecutorInfo(logits=(("green", ""), ("bias", "it is not written for it")))
    info.check_logits(["green"])
    info.check_logits([])
    with pytest.raises(ConfigError, match=r"unknown logits processor 'grean' \(available: green\)"):
        info.check_logits(["green", "grean"])
    with pytest.raises(ConfigError, match="cannot run logits processor 'bias': it is not written"):
        info.check_logits(["bias"])
    with pytest.raises(ConfigError, match=r"available: none.*--logits-processors"):
        ExecutorInfo().check_logits(["green"])
