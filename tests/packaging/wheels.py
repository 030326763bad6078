"""Wheels of this tree, and environments that have nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCHEDULER = Path("packages", "agentrt-scheduler")
_SETTINGS = 'source .ci/pip-settings; hand_on_pip_settings "$0"; env -0'


@cache
def settings() -> Mapping[str, str]:
    """The variables with the index and the wheels of the set-up. To ask pip takes a second."""
    told = subprocess.check_output(["bash", "-c", _SETTINGS, sys.executable], cwd=ROOT, text=True)
    return dict(one.split("=", 1) for one in told.split("\0") if one)


def uv(*arguments: str | Path) -> str:
    """Run uv as the set-up does. Its words, for a message."""
    command = [str(Path(sys.executable).with_name("uv")), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env=settings(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def build(project: Path, folder: Path) -> Path:
    """The wheel of a project of this tree, made from its source distribution, as others get it."""
    tree = folder / "tree"
    if not tree.exists():  # a build leaves files in its tree
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        for name in ("agentrt", "packages"):
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tree)
    made = folder / "dist" / project.name
    uv("build", "--quiet", "--out-dir", made, tree / project)
    [wheel] = made.glob("*.whl")
    return wheel


def environment(folder: Path, *packages: str | Path, beside: bool = False) -> Path:
    """The Python of a fresh environment with these packages, in the versions that the tests have.

    With ``beside``, the packages of the tests' own environment are there, too, but this tree, which
    is found there by a .pth file, is not.
    """
    uv("venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    held = folder / "constraints.txt"
    frozen = uv("pip", "freeze", "--python", sys.executable, "--exclude-editable").splitlines()
    held.write_text("\n".join(line for line in frozen if "==" in line), encoding="utf-8")
    uv("pip", "install", "--quiet", "--python", python, "--constraints", held, *packages)
    if beside:
        [site] = (folder / "lib").glob("python*/site-packages")
        (site / "beside.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return python


def bare_variables(home: Path) -> dict[str, str]:
    """The variables of a newcomer's shell."""
    return {"HOME": str(home), "PATH": os.defpath, "LANG": "C.UTF-8"}
