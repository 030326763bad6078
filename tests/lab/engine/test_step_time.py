"""The line through measured steps: it finds the coefficients that made them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agentrt.errors import ConfigError
from agentrt.lab.engine.step_time import Sample, StepTimeModel, StepWork, fit, step_time

pytest.importorskip("numpy")

TRUE = StepTimeModel(0.05, 8e-4, 2e-3, 1e-6)


def steps(model: StepTimeModel, count: int, noise: float, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        prefill = rng.choice([0, 0, rng.randint(2, 2000)])
        decode = rng.randint(0 if prefill else 1, 16)
        work = StepWork(prefill, decode, prefill + decode * rng.randint(1, 4000))
        made.append(Sample(work, model.seconds(work) * (1 + rng.uniform(-noise, noise))))
    return made


def test_what_a_step_computes() -> None:
    """One call decodes at 40 tokens, one computes 64 of its prompt after 32 that were cached."""
    work = StepWork.of({"a": 1, "b": 64}, {"a": 40, "b": 32})
    assert work == StepWork(prefill_tokens=64, decode_calls=1, context_tokens=41 + 96)
    assert StepWork.of({}, {}).empty


def test_the_fit_recovers_known_coefficients() -> None:
    model = fit(steps(TRUE, 200, noise=0.0), model="m", hardware="h")
    assert model.coefficients == pytest.approx(TRUE.coefficients, rel=1e-6)
    assert model.error == pytest.approx(0, abs=1e-9)
    assert (model.samples, model.model, model.hardware) == (200, "m", "h")


def test_noise_and_disturbed_steps_do_not_mislead_it() -> None:
    samples = steps(TRUE, 400, noise=0.1)
    disturbed = [Sample(s.work, s.seconds * 8) for s in samples[::20]]
    model = fit([*samples, *disturbed])
    assert model.coefficients == pytest.approx(TRUE.coefficients, rel=0.2)
    assert model.error is not None
    assert 0.02 < model.error < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_no_coefficient_is_negative(seed: int) -> None:
    """A cost that is not there is 0, however the noise falls."""
    flat = StepTimeModel(0.01, 0.0, 0.0, 0.0)
    model = fit(steps(flat, 60, noise=0.3, seed=seed))
    assert min(model.coefficients) >= 0
    assert model.base_s == pytest.approx(0.01, rel=0.2)


def test_a_journal_may_have_any_number_of_steps() -> None:
    """Calls of two servers, of which the second counts its steps from 10**12 on."""
    rng = random.Random(0)
    first = [
        {
            "finished_step": rng.randint(50, 400),
            "prompt_tokens": rng.randint(10, 900),
            "output_tokens": (output := rng.randint(1, 40)),
            "steps": output,
            "service_s": output * rng.uniform(0.05, 0.06),
        }
        for _ in range(60)
    ]
    second = [{**call, "finished_step": call["finished_step"] + 10**12} for call in first]
    single, both = step_time(first), step_time([*first, *second])
    assert single is not None
    assert both is not None
    assert both.coefficients == pytest.approx(single.coefficients)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 measured steps are too few"):
        fit(steps(TRUE, 3, noise=0.0))


def test_a_call_alone_takes_what_its_steps_take() -> None:
    cached, prompt, output, chunk = 100, 1000, 20, 256
    seconds, done = 0.0, cached
    while done < prompt:
        count = min(chunk, prompt - done)
        seconds += TRUE.seconds(StepWork(count, 0, done + count))
        done += count
    seconds += sum(TRUE.seconds(StepWork(0, 1, prompt + k)) for k in range(1, output))
    assert TRUE.alone_s(cached, prompt, output, chunk) == pytest.approx(seconds)


def test_it_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    model = fit(steps(TRUE, 50, noise=0.0), model="m", hardware="h", engine="vLLM 0.32.0")
    path.write_text(model.as_text())
    assert StepTimeModel.load(path) == model


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"base_s": "a lot"}', "null", TRUE.as_text().replace("0.05", "-1")],
)
def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"steps\.json.* is not a step-time file"):
        StepTimeModel.load(path)
    with pytest.raises(ConfigError, match="is not a step-time file"):
        StepTimeModel.load(tmp_path / "absent.json")


@pytest.mark.parametrize("values", [(-1.0, 0, 0, 0), (0, 0, 0, 1e-9), (float("nan"), 1, 1, 1)])
def test_impossible_coefficients_are_refused(values: tuple[float, float, float, float]) -> None:
    with pytest.raises(ConfigError, match="coefficients of at least 0"):
        StepTimeModel(*values)
