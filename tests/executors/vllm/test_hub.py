"""A wrong name of a model is refused before vLLM is imported."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentrt.errors import ModelLoadError
from agentrt.executors.vllm.lifetime import check_on_hub

constants: Any = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


@contextmanager
def hub(status: int, code: str | None = None) -> Iterator[str]:
    """A hub that gives this answer to each request."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if code is not None:
                self.send_header("X-Error-Code", code)
            body = b'{"id": "some/model"}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (
            404,
            "RepoNotFound",
            ["'some/model' is not on the hub", "set HF_TOKEN if"],
        ),
        (401, "RepoNotFound", ["'some/model' is not on the hub"]),
        (403, "GatedRepo", ["'some/model' is gated", "accept its terms"]),
    ],
)
def test_the_hub_refuses(status: int, code: str, words: list[str]) -> None:
    with hub(status, code) as address, pytest.raises(ModelLoadError) as refused:
        check_on_hub("some/model", address)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize("status", [200, 400, 500])
def test_vllm_decides_if_the_hub_has_the_model_or_an_error_of_its_own(status: int) -> None:
    with hub(status) as address:
        check_on_hub("some/model", address)


def test_a_hub_that_cannot_be_reached(cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ModelLoadError, match="cannot be reached") as refused:
        check_on_hub("some/model", f"http://127.0.0.1:{port}")
    assert str(cache) in str(refused.value)


def test_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="HF_HUB_OFFLINE is set; unset it"):
        check_on_hub("some/model")


@pytest.mark.parametrize(
    "model",
    ["./folder", "/nowhere", "s3://bucket/model", "some/model:Q4_K", "some/model/file.gguf"],
)
def test_only_names_of_the_hub_are_checked(model: str) -> None:
    with hub(404, "RepoNotFound") as address:
        check_on_hub(model, address)


def test_a_model_in_the_cache_needs_no_hub(cache: Path) -> None:
    (cache / "models--some--model" / "snapshots" / "abc").mkdir(parents=True)
    with hub(404, "RepoNotFound") as address:
        check_on_hub("some/model", address)


def test_a_folder_whose_name_looks_like_one_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "some" / "model").mkdir(parents=True)
    with hub(404, "RepoNotFound") as address:
        check_on_hub("some/model", address)


def test_a_path_of_several_folders_that_does_not_exist_is_no_name_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match="'some/small/model': no such folder, and no name of"):
        check_on_hub("some/small/model")
    Path("some/small/model").mkdir(parents=True)
    check_on_hub("some/small/model")


@pytest.mark.parametrize("model", ["some/model", "some/small/model"])
def test_vllm_decides_about_models_that_it_redirects(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_MODEL_REDIRECT_PATH", "/redirects")
    with hub(401, "RepoNotFound") as address:
        check_on_hub(model, address)
