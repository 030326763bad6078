"""What tests of several rooms share."""

from __future__ import annotations

import gc
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import certifi
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, settings

from agentrt import Runtime
from tests.engine.early import needs_of_core
from tests.engine.forked import ForkedCore, loading_in

# The same examples in every run, so that a change is judged by what it changes, and none is
# judged by how busy the machine is.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# `make mutate` only asks whether a test fails, not for the shortest story in which it does.
settings.register_profile(
    "mutate", settings.get_profile("same"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("same")

# Threads of torch that wait for each other spin, and tests share few cores with other processes:
# a forward of a tiny model takes three times the processor time with two threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A fifth of the time that it takes to load all tests would go into collections that find nothing.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# What is learned in one test must not decide what another one sees, and the user's own folder for
# data is not the tests'. Tests of what is kept name a file, or a folder of their own.
os.environ["AGENTRT_HISTORY"] = "none"
os.environ["AGENTRT_DATA"] = "/dev/null/not-the-users"


@pytest.fixture(autouse=True, scope="session")
def _not_in_the_background() -> None:
    """Commands leave ignored what was; their tests may themselves run under nohup, or as a shell's
    background job, which ignores SIGINT.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def _short_collections() -> Iterator[None]:
    """Keep what is alive after a file's tests out of later garbage collections.

    What a whole run imports and remembers makes each full one take a second, and some tests ask
    for dozens.
    """
    yield
    gc.collect(1)
    gc.freeze()


@pytest.fixture(autouse=True)
def _other_children_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command ends all processes below its own when it ends; run in the process of the tests,
    it has engines beside it that other tests continue with.
    """
    monkeypatch.setattr("agentrt.cli.signals.end_descendants", lambda: 0)


@pytest.fixture(autouse=True, scope="session")
def _cores_are_forked() -> Iterator[None]:
    """Engines of this process start in two seconds of a core's time; those of commands in nine."""
    with loading_in(lambda: ForkedCore(*needs_of_core(on_gpu=False))):
        yield


@pytest.fixture(autouse=True, scope="session")
def _authorities_are_read_once() -> Iterator[None]:
    """Each client of httpx reads the certificates of all authorities: 20 ms of a core. Tests make
    thousands of clients, which reach this machine alone.
    """
    ordinary = ssl.create_default_context
    usual = {certifi.where(), os.environ.get("SSL_CERT_FILE", "")}
    shared = cache(lambda file: ordinary(cafile=file))

    def create(*args: Any, **options: Any) -> ssl.SSLContext:
        is_usual = not args and options.keys() == {"cafile"} and options["cafile"] in usual
        return shared(options["cafile"]) if is_usual else ordinary(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", create)
        yield


@pytest.fixture
def clean_imports() -> Iterator[None]:
    """What a test imports from a folder that it adds to the path is gone after it."""
    path, before = list(sys.path), set(sys.modules)
    yield
    added = {Path(folder) for folder in sys.path} - {Path(folder) for folder in path}
    sys.path[:] = path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if name.startswith("agentrt_program_") or (file and Path(file).parent in added):
            del sys.modules[name]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def token_runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    """A runtime on one real engine for all tests of contexts and of techniques, in float32.

    Its model loads in a second and says what is no language. A block has 32 tokens, and the cache
    8,192; a prompt and its output have up to 2,048. Its scheduler can be watched.
    """
    pytest.importorskip("vllm")
    from agentrt.engines import EngineOptions
    from agentrt.lab.engine.engines import LabEngine
    from tests.doubles.tinymodel import tiny_model

    model = str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
    flags = (
        *("--dtype", "float32", "--max-model-len", "2048"),
        *("--block-size", "32", "--num-gpu-blocks-override", "257"),
        *("--logits-processors", "green_list:GreenList"),
    )
    async with Runtime(LabEngine(EngineOptions(model, 32, flags=flags))) as runtime:
        yield runtime
