"""The commands that install what is missing."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import metadata
from pathlib import Path

import pytest

from agentrt.extras import install_command, install_vllm


def test_a_checkout_is_named_by_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my agents"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    words = shlex.split(install_command("mqtt", checkout=folder))
    assert words == ["pip", "install", "-e", f"{folder}[mqtt]"]
    assert shlex.split(install_command(checkout=folder))[-1] == str(folder)


def test_outside_of_a_checkout_no_published_package_is_named(tmp_path: Path) -> None:
    assert install_command("mqtt", checkout=tmp_path) == (
        "pip install '.[mqtt]' in a checkout of agentrt"
    )
    assert install_command(checkout=tmp_path) == "pip install . in a checkout of agentrt"


def test_each_extra_that_the_code_names_exists() -> None:
    package = metadata("agentrt")
    code = "\n".join(path.read_text() for path in Path("agentrt").rglob("*.py"))
    names = re.findall(r"install_command\([\"']([\w-]+)[\"']\)", code)
    assert len(names) > 8
    assert {*names} <= {*(package.get_all("Provides-Extra") or ())}
    assert "agentrt[" not in code


@pytest.mark.parametrize("words", ["with a GPU, run: ", "without a GPU, run: make setup"])
def test_vllm_is_installed_with_and_without_a_gpu(words: str) -> None:
    assert words in install_vllm()
