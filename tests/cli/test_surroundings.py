"""Commands where the machine lacks something: a home folder, UTF-8, a folder, a GPU's driver."""

from __future__ import annotations

import errno
import json
import os
import ssl
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentrt.cli import doctor
from agentrt.cli.app import call
from agentrt.cli.doctor import MISSING, WARNING
from agentrt.engines import EngineOptions
from agentrt.errors import ModelLoadError
from agentrt.executors.vllm.lifetime import import_vllm
from agentrt.executors.vllm.options import config_fault, prepare_environment
from tests.cli.conftest import ROOT, Run, Write, python

BARE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
SPEAKS = """
@program
async def speaks(ctx, given):
    print("höre ✓ 漢")
    return given + "✓"
"""
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


# -- locales ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        (BARE, "höre ✓ 漢\nGrüße✓\n"),
        ({"PYTHONIOENCODING": "ascii"}, "h?re ? ?\n"),
        ({"PYTHONIOENCODING": "ascii:backslashreplace"}, "h\\xf6re \\u2713 \\u6f22\n"),
    ],
)
def test_a_program_and_our_tables_speak_in_any_locale(
    write: Write, environment: dict[str, str], shown: str
) -> None:
    arguments = ("run", write(SPEAKS), "--engine", "simulated", "--input", "Grüße")
    done = python("-m", "agentrt.cli", *arguments, cwd=ROOT, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(shown)


def test_doctor_speaks_in_any_locale() -> None:
    for environment in (BARE, {"PYTHONIOENCODING": "ascii"}):
        done = python("-m", "agentrt.cli", "doctor", cwd=ROOT, **environment)
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1)
        assert "LangGraph" in done.stdout


# -- no home folder --------------------------------------------------------------------


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME, of whom the system knows nothing."""
    for name in ("HOME", "AGENTRT_CACHE", "AGENTRT_DATA", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)

    def getpwuid(number: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr("pwd.getpwuid", getpwuid)


@needs_vllm
@pytest.mark.usefixtures("homeless")
def test_without_a_home_folder_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from agentrt.executors.vllm.default_model import models_folder

    with pytest.raises(
        ModelLoadError, match="no home folder; set AGENTRT_CACHE to a writable folder"
    ):
        models_folder()
    monkeypatch.setenv("AGENTRT_CACHE", "~/models")
    with pytest.raises(ModelLoadError, match="AGENTRT_CACHE='~/models': this user has no home"):
        models_folder()
    monkeypatch.setenv("AGENTRT_CACHE", str(tmp_path))
    assert models_folder() == tmp_path / "models"
    for name in ("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    prepare_environment(EngineOptions())
    assert os.environ["HF_HOME"] == str(tmp_path / "huggingface")
    assert os.environ["VLLM_CACHE_ROOT"] == str(tmp_path / "vllm")


@needs_vllm
@pytest.mark.usefixtures("homeless")
def test_doctor_names_the_variable_too() -> None:
    with pytest.raises(ModelLoadError, match="no home folder; set AGENTRT_CACHE"):
        doctor.CHECKS["model cache"]({})


# -- folders that cannot be written ----------------------------------------------------


@needs_vllm
def test_a_cache_that_cannot_be_written_is_no_cache_without_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("AGENTRT_CACHE", str(file))
    finding = doctor.CHECKS["model cache"]({})
    assert finding is not None
    assert finding.state == WARNING
    assert f"{file}/models, cannot be written" in finding.observation
    assert finding.advice.startswith("set AGENTRT_CACHE ")
    assert "0.0 GiB" not in finding.observation


LET = "give this user permission to read and write it, or choose another place"


def test_shared_memory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.cli.doctor._room", lambda place: None)
    finding = doctor.CHECKS["shared memory"]({})
    assert finding is not None
    assert (finding.state, finding.observation) == (MISSING, "/dev/shm cannot be written")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/srv/x"),
            f"error: cannot open or write /srv/x: permission denied; {LET}",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "/srv/x"),
            f"error: cannot open or write /srv/x: read-only file system; {LET}",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
            "error: no folder for temporary files is writable; set TMPDIR to a writable folder",
        ),
    ],
)
def test_what_a_command_cannot_write_is_one_line(
    command: Run, write: Write, monkeypatch: pytest.MonkeyPatch, error: OSError, line: str
) -> None:
    def closed(*words: object, **options: object) -> Any:
        raise error

    monkeypatch.setattr("agentrt.cli.engine_log.tempfile.TemporaryFile", closed)
    ran = command("run", write(SPEAKS), "--engine", "simulated", "--input", "x")
    assert (ran.code, ran.said) == (1, line)
    assert "Traceback" not in ran.err


def test_a_file_for_tls_keys_that_cannot_be_written_is_one_line(
    command: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python opens it wherever a TLS context is made."""
    monkeypatch.setenv("SSLKEYLOGFILE", "/nonexistent/keys")
    monkeypatch.setattr(
        "agentrt.cli.engine_log.tempfile.TemporaryFile",
        lambda *words, **options: ssl.create_default_context(),
    )
    ran = command("run", write(SPEAKS), "--engine", "simulated", "--input", "x")
    said = "SSLKEYLOGFILE='/nonexistent/keys': no such file or directory; name a file that can be"
    assert (ran.code, ran.said) == (2, f"error: {said} written, or unset SSLKEYLOGFILE")


def test_the_hubs_cache_that_cannot_be_written() -> None:
    error = RuntimeError("cannot load")
    error.__cause__ = PermissionError(errno.EACCES, "Permission denied", "/srv/hub")
    fault = str(config_fault("lab/model", error))
    assert fault.endswith(
        "/srv/hub: permission denied; set HF_HOME to a writable folder with enough space"
    )
    assert "HF_HOME" not in str(config_fault("./model", error))


# -- variables and drivers -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks://127.0.0.1:9/"),
        ("SSL_CERT_FILE", "/nonexistent"),
        ("NO_PROXY", "[::1]"),
    ],
)
def test_a_variable_that_keeps_the_hub_away_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    error = OSError("We couldn't connect to 'https://huggingface.co'")
    monkeypatch.setenv(name, value)
    assert f"{name}={value!r}: " in str(config_fault("lab/model", error))
    assert name not in str(config_fault("./model", error))


DEVICELESS = f"""
import json
import os
import sys
sys.path.insert(0, {str(ROOT)!r})
import vllm.platforms
vllm.platforms.builtin_platform_plugins["cpu"] = lambda: None
import vllm.v1.engine.async_llm
from agentrt.cli.app import call
for command in json.loads(sys.argv[1]):
    pid = os.fork()
    if not pid:
        os._exit(call(command))
    print("exit code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=sys.stderr)
"""


@needs_vllm
@pytest.mark.engine
def test_vllm_for_gpus_without_a_driver(write: Write) -> None:
    """Both commands are forks of a process that has imported vLLM, which takes ten seconds."""
    command = ["run", str(write(SPEAKS)), "--engine", "vllm", "--input", "x"]
    flags = ["--", "--max-model-len", "512"]
    done = python("-c", DEVICELESS, json.dumps([command, command + flags]))
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    ends = [number for number, line in enumerate(lines) if line.startswith("exit code")]
    assert [lines[end] for end in ends] == ["exit code 2"] * 2
    for end in ends:
        said = lines[end - 1]
        assert said.startswith("error: vLLM finds no device to run on: this vLLM is built for GPUs")
        assert "repair the driver until nvidia-smi (or rocm-smi) lists the GPU" in said
    assert "Traceback" not in done.stderr


@needs_vllm
def test_libraries_of_a_driver_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lacks:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "vllm.v1.engine.async_llm":
                raise ImportError("libcuda.so.1: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "vllm.v1.engine.async_llm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Lacks(), *sys.meta_path])
    with pytest.raises(ModelLoadError, match=r"libcuda\.so\.1.*there is no GPU driver"):
        import_vllm()


# -- a server of this machine's behind variables for others ----------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks://127.0.0.1:9/"),
        ("NO_PROXY", "[::1]"),
        ("HTTP_PROXY", "http://127.0.0.1:9"),
        ("SSL_CERT_FILE", "/nonexistent"),
    ],
)
def test_questions_says_what_it_would_say_without_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    def said() -> tuple[int, str]:
        code = call(["questions", "--url", "http://127.0.0.1:9"])
        return code, capsys.readouterr().err

    before = said()
    monkeypatch.setenv(name, value)
    assert said() == before
    assert before[1].startswith("error: no server answers at http://127.0.0.1:9")


def test_questions_names_a_proxy_that_a_far_server_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9/")
    assert call(["questions", "--url", "http://203.0.113.7"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ALL_PROXY='socks://127.0.0.1:9/': a proxy's URL must begin with")
