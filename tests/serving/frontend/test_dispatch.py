"""Several models: a request goes to the front end of its model, a response to its maker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import pytest_asyncio
from anthropic.types import ModelInfo
from fastapi import FastAPI, Form, Request
from fastapi.responses import StreamingResponse

from agentrt import Runtime
from agentrt.engines import ReplicaSet
from agentrt.errors import NotServedError
from agentrt.executors.chat_api import FrontProfile
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.router import make_router
from agentrt.serving.chat import api as chat_page
from agentrt.serving.frontend.dispatch import FrontendApp, fronts_of
from agentrt.serving.frontend.responses import CURRENT_REQUEST
from agentrt.serving.programs.api import api as programs
from agentrt.serving.server import Server
from agentrt.serving.tenants import Tenants
from tests.doubles.scripted import ScriptedExecutor
from tests.doubles.scripted_engine import ScriptedEngine
from tests.serving.watchdog import opened_app


class Listed:
    """The part of vLLM's registry of models that the dispatch uses."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    async def show_available_models(self) -> Any:
        data = [{"id": name, "root": f"/var/models/{name}"} for name in self._names]
        return SimpleNamespace(model_dump=lambda: {"data": data})


@dataclass
class Front:
    """A front end that answers with its first name."""

    app: FastAPI
    names: tuple[str, ...]
    args: Any = None
    max_model_len: int = 4096
    reminders: bool = True
    budgets: bool = True
    images: bool = False

    def profile(self, model: str | None = None) -> FrontProfile:
        return FrontProfile(self.names[0])

    def served_as(self, model: str | None) -> str:
        if model not in (None, *self.names, f"/var/models/{self.names[0]}"):
            raise NotServedError(f"not served: {model}")
        return self.names[0]

    @classmethod
    def of(cls, *names: str) -> Front:
        app = FastAPI()
        responses = SimpleNamespace(background_tasks={}, use_harmony=False)
        app.state.openai_serving_responses = responses
        app.state.openai_serving_models = Listed(names)

        @app.post("/v1/chat/completions")
        @app.post("/v1/embeddings")
        async def chat(request: Request) -> Any:
            body = await request.json()
            asked = request.headers["x-request-id"], CURRENT_REQUEST.get().tenant
            return {"front": names[0], "body": body, "asked": asked, "choices": []}

        @app.post("/rerank")
        @app.post("/sleep")
        async def rerank() -> Any:
            return {"front": names[0]}

        @app.post("/v1/responses")
        async def respond(request: Request) -> Any:
            responses.response_store["resp-1"] = names[0]
            return {"id": "resp-1", "output": [], "front": names[0]}

        @app.get("/v1/responses/{name}")
        @app.post("/v1/responses/{name}/cancel")
        async def retrieve(name: str) -> Any:
            return {"front": names[0], "kept": responses.response_store.get(name)}

        @app.post("/v1/audio/transcriptions")
        async def transcribe(model: str = Form(), stream: bool = Form(False)) -> Any:
            if stream:
                await may_transcribe.wait()
                return StreamingResponse(iter(TRANSCRIPT), media_type="text/event-stream")
            return {"front": names[0], "model": model}

        return cls(app, names)


TRANSCRIPT = [
    f'data: {{"id":"a","object":"transcription.chunk","created":1,"model":"small","choices":'
    f'[{{"delta":{{"content":"{text}"}},"finish_reason":{end},"stop_reason":null}}]}}\n\n'
    for text, end in (("one ", "null"), ("two", '"stop"'), ("three ", "null"), ("four", '"stop"'))
]
"""vLLM's stream of an audio of two parts. Its choices have no index."""
TRANSCRIPT.append("data: [DONE]\n\n")
may_transcribe = asyncio.Event()
may_transcribe.set()


@asynccontextmanager
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("big", "small"), tenants=Tenants(time.monotonic))
        fronts = [Front.of("big", "big-adapter"), Front.of("small")]
        assert fronts_of(await runtime.frontend()) == ()
        async with (
            opened_app(server, [programs, chat_page], FrontendApp(server, fronts)) as app,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost"
            ) as client,
        ):
            yield client


async def test_a_request_goes_to_the_front_end_of_its_model() -> None:
    async with client() as http:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            for model, front in (
                ("small", "small"),
                ("big", "big"),
                ("big-adapter", "big"),
                ("/var/models/small", "small"),
                (None, "big"),
            ):
                body = {"model": model, "messages": [{"role": "user", "content": "x" * 70_000}]}
                said = {"x-request-id": "mine", "x-agentrt-tenant": "a"}
                answer = (await http.post(path, json=body, headers=said)).json()
                assert (answer["front"], answer["body"]) == (front, body)
                assert answer["asked"] == ["mine", "a"]
            refused = await http.post(path, json={"model": "other"})
            assert refused.status_code == 404
            assert "it serves big, big-adapter, small" in refused.json()["error"]["message"]


@pytest_asyncio.fixture
async def loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[httpx.AsyncClient, list[tuple[str, str]]]]:
    """A client of two models into which adapters can be loaded, and the loads of adapters."""
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    loaded: list[tuple[str, str]] = []

    class Loading(ScriptedEngine):
        async def add_adapter(self, model: str, adapter: Any) -> None:
            loaded.append((Path(model).name, adapter.lora_name))

    model = embedded_model(lambda message: None)
    for name in ("big", "small"):
        (tmp_path / name).symlink_to(model, target_is_directory=True)
    engines = [
        Loading(lambda call: "", str(tmp_path / name), ("--enable-lora",))
        for name in ("big", "small")
    ]
    replicas = ReplicaSet(lambda index: engines[index], 2, make_router("least-used"))
    async with Runtime(replicas) as runtime:
        server = Server(runtime, ("big", "small"), tenants=Tenants(time.monotonic))
        fronts = fronts_of(await runtime.frontend())
        async with (
            opened_app(server, [programs], FrontendApp(server, fronts)) as app,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost"
            ) as client,
        ):
            yield client, loaded


@pytest.mark.engine
async def test_an_adapter_is_loaded_into_the_model_that_the_request_names(
    loads: tuple[httpx.AsyncClient, list[tuple[str, str]]],
) -> None:
    http, loaded = loads

    async def load(name: str, **fields: Any) -> httpx.Response:
        return await http.post(
            "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": "/adapter", **fields}
        )

    assert (await load("sql")).status_code == 200, "without a name, into the first model"
    assert (await load("art", base_model_name="small")).status_code == 200
    assert (await load("law", model="small")).status_code == 200
    assert (await load("art", load_inplace=True)).status_code == 200
    small = [("small", "art"), ("small", "law"), ("small", "art")]
    assert loaded == [("big", "sql"), *small]
    unknown = await load("new", base_model_name="other")
    assert unknown.status_code == 404
    assert "'other'" in unknown.json()["error"]["message"]
    cards = (await http.get("/v1/models")).json()["data"]
    parents = {card["id"]: card["parent"] for card in cards}
    assert parents == {"big": None, "sql": "big", "small": None, "art": "small", "law": "small"}
    for name in ("art", "law"):
        gone = await http.post("/v1/unload_lora_adapter", json={"lora_name": name})
        assert gone.status_code == 200, gone.text
    assert [card["id"] for card in (await http.get("/v1/models")).json()["data"]] == [
        *("big", "sql", "small")
    ]


@pytest.mark.engine
async def test_an_adapter_cannot_take_the_name_of_another_model(
    loads: tuple[httpx.AsyncClient, list[tuple[str, str]]],
) -> None:
    http, loaded = loads
    for fields in (
        {"lora_name": "small"},
        {"lora_name": "small", "base_model_name": "big"},
        {"lora_name": "big", "model": "small", "load_inplace": True},
    ):
        body = {"lora_path": "/adapter", **fields}
        refused = await http.post("/v1/load_lora_adapter", json=body)
        assert refused.status_code == 400, refused.text
        assert repr(fields["lora_name"]) in refused.json()["error"]["message"]
    bodies = [
        {"lora_name": "sql", "lora_path": "/adapter", "base_model_name": base}
        for base in ("big", "small")
    ]
    answers = await asyncio.gather(*(http.post("/v1/load_lora_adapter", json=b) for b in bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 400]
    assert len(loaded) == 1


async def test_models_of_all_front_ends_are_listed() -> None:
    async with client() as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["big", "big-adapter", "small"]
        assert [model["root"] for model in listed] == ["big", "big-adapter", "small"], "no folder"
        small = (await http.get("/v1/models/small")).json()
        assert (small["id"], small["root"]) == ("small", "small")


async def test_a_model_is_found_under_each_name_that_requests_may_use() -> None:
    """A slash at the beginning is part of a name, such as a folder's, and is sent encoded."""
    async with client() as http:
        for name in ("%2Fvar%2Fmodels%2Fsmall", "/var/models/small", "small/"):
            assert (await http.get(f"/v1/models/{name}")).json()["id"] == "small"
        other = await http.get("/v1/models/%2Fvar%2Fmodels%2Fother")
        assert other.status_code == 404
        assert "'/var/models/other'" in other.json()["error"]["message"]


async def test_a_slash_at_the_end_of_a_path_is_redirected_as_by_vllm() -> None:
    async with client() as http:
        for path in ("/v1/chat/completions", "/rerank", "/v1/embeddings"):
            answer = await http.post(f"{path}/?a=b", json={"model": "small"})
            assert answer.status_code == 307
            assert answer.headers["location"] == f"http://localhost{path}?a=b"
            assert "x-agentrt-run" not in answer.headers, "no call of a program"
            followed = await http.post(f"{path}/", json={"model": "small"}, follow_redirects=True)
            assert followed.json()["front"] == "small"
        for path in ("/v1/poems/", "/poems/", "/sleep/"):
            assert (await http.post(path, json={})).status_code == 404


async def test_models_say_their_windows_to_clients_of_every_api() -> None:
    async with client() as http:
        page = (await http.get("/v1/models")).json()
        names = ("max_model_len", "context_window", "context_length", "max_input_tokens")
        for model in [*page["data"], (await http.get("/v1/models/big-adapter")).json()]:
            assert {model[name] for name in (*names, "max_tokens")} == {4096}
            known = ModelInfo.model_validate(model)
            assert (known.type, known.display_name) == ("model", model["id"])
        assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "big", "small")


async def test_a_form_names_its_model_too() -> None:
    async with client() as http:
        files = {"file": ("a.wav", b"RIFF")}
        at = "/v1/audio/transcriptions"
        sent = await http.post(at, data={"model": "small"}, files=files)
        assert sent.json() == {"front": "small", "model": "small"}


async def test_a_transcript_is_streamed_to_its_end() -> None:
    async with client() as http:
        fields = {"model": "small", "stream": "True"}
        files = {"file": ("a.wav", b"RIFF")}
        sent = await http.post("/v1/audio/transcriptions", data=fields, files=files)
        assert sent.text == "".join(TRANSCRIPT)


async def test_a_streamed_transcript_that_waits_begins_as_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A form says that it wants a stream, too: the head is not that of early JSON."""
    held = asyncio.Event()
    monkeypatch.setattr(f"{__name__}.may_transcribe", held)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        held.set()

    body = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % field
        for field in ((b"model", b"small"), (b"stream", b"true"))
    )
    messages = iter([{"type": "http.request", "body": body + b"--x--\r\n", "more_body": False}])

    async def receive() -> Any:
        if (message := next(messages, None)) is None:
            await asyncio.Event().wait()
        return message

    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "http_version": "1.1",
        "path": "/v1/audio/transcriptions",
        "raw_path": b"/v1/audio/transcriptions",
        "query_string": b"",
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"multipart/form-data; boundary=x"),
        ],
    }
    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("small",), keep_alive_s=0.01, early_s=0.01)
        async with opened_app(server, [], FrontendApp(server, [Front.of("small")])) as app:
            async with asyncio.timeout(60):
                await app(scope, receive, send)
    assert (b"content-type", b"text/event-stream; charset=utf-8") in sent[0]["headers"]
    events = b"".join(message["body"] for message in sent[1:])
    assert events.startswith(b": ")
    assert events.endswith("".join(TRANSCRIPT).encode())


async def test_what_a_speech_model_can_do_is_named() -> None:
    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("ear", "big"))
        app = FastAPI()
        app.add_api_route("/v1/audio/transcriptions", lambda: None, methods=["POST"])
        ear = Front(app, ("ear",))
        text = Front.of("text")
        text.app.router.routes[:] = [
            route for route in text.app.routes if "audio" not in getattr(route, "path", "")
        ]
        async with (
            opened_app(server, [], FrontendApp(server, [ear, text])) as opened,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(opened), base_url="http://localhost"
            ) as http,
        ):
            refused = await http.post("/v1/chat/completions", json={"model": "ear"})
            says = (
                "turns speech into text, and has no /v1/chat/completions; it has /v1/audio/transc"
            )
            assert says in refused.json()["error"]["message"]
            files = {"file": ("a.wav", b"RIFF")}
            at = "/v1/audio/transcriptions"
            refused = await http.post(at, data={"model": "text"}, files=files)
            says = "'text' generates text, and has no /v1/audio/transcriptions; it has /v1/chat/"
            assert says in refused.json()["error"]["message"]


async def test_a_content_type_may_have_any_case() -> None:
    async with client() as http:
        chat = {"messages": [{"role": "user", "content": "hi"}], "n": 200}
        for kind in ("application/json", "Application/JSON; charset=utf-8"):
            body, headers = json.dumps(chat), {"content-type": kind}
            refused = await http.post("/v1/chat/completions", content=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n--x--\r\n'
        headers = {"content-type": "Multipart/Form-Data; boundary=x"}
        sent = await http.post("/v1/audio/transcriptions", content=form, headers=headers)
        assert sent.json() == {"front": "small", "model": "small"}


async def test_a_stored_response_is_requested_from_the_front_end_that_made_it() -> None:
    async with client() as http:
        made = await http.post("/v1/responses", json={"model": "small", "input": "hi"})
        assert made.json()["front"] == "small"
        assert (await http.get("/v1/responses/resp-1")).json() == made.json()
        kept = (await http.get("/v1/responses/resp-1", params={"stream": "maybe"})).json()
        assert kept == {"front": "small", "kept": "small"}
        other = await http.get("/v1/responses/resp-1", headers={"x-agentrt-tenant": "b"})
        assert other.json() == {"front": "big", "kept": None}


async def test_bodies_without_json_are_refused_or_passed_to_vllm() -> None:
    json_type = {"content-type": "application/json"}
    async with client() as http:
        for body in (b"{", b'{"a": NaN}', b'{"a": "\\ud800"}', b"[" * 10_000):
            at = "/v1/chat/completions"
            answer = await http.post(at, content=body, headers=json_type)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "invalid_json"
        assert (await http.post("/v1/client-runs")).status_code == 201
        assert (await http.delete("/v1/client-runs")).status_code == 405
        assert (await http.get("/nothing")).json() == {"detail": "Not Found"}


async def test_unknown_paths_and_methods_are_named_in_the_form_of_the_api() -> None:
    async with client() as http:
        for path, says in (
            ("/v1/poems", "POST /v1/poems: not found"),
            ("/v1/v1/chat/completions", "leave it out there"),
            ("/v1/chat/completions/chat/completions", "this API is at /v1/chat/completions,"),
            ("/chat/completions", "this API is at /v1/chat/completions,"),
            ("/openai/v1/chat/completions", "this API is at /v1/chat/completions,"),
            ("/v1/messages/batches", "POST /v1/messages/batches: not found"),
            ("/v1/models/small", "POST /v1/models/small: not found"),
        ):
            answer = await http.post(path, json={"model": "small"})
            assert answer.status_code == 404
            assert says in answer.json()["error"]["message"]
            assert (answer.json().get("type") == "error") == ("messages" in path)
        answer = await http.get("/v1/chat/completions")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        text = "GET /v1/chat/completions: method not allowed"
        assert answer.json()["error"]["message"] == text
        answer = await http.put("/v1/responses/resp-1")
        assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET")


async def test_a_byte_order_mark_before_json_is_skipped() -> None:
    json_type = {"content-type": "application/json"}
    async with client() as http:
        for path, body in (
            ("/v1/chat/completions", b'{"model": "small"}'),
            ("/v1/client-runs", b"{}"),
        ):
            answer = await http.post(path, content=b"\xef\xbb\xbf" + body, headers=json_type)
            assert answer.is_success, answer.text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32-le"])
async def test_json_in_utf_16_and_32_is_read_as_by_vllm(encoding: str) -> None:
    json_type = {"content-type": "application/json"}
    async with client() as http:
        for path, body in (
            ("/v1/chat/completions", '{"model": "small", "user": "\u2200"}'),
            ("/v1/client-runs", '{"type": "planner"}'),
        ):
            answer = await http.post(path, content=body.encode(encoding), headers=json_type)
            assert answer.is_success, answer.text


async def test_without_a_front_end_every_path_of_vllm_is_not_found() -> None:
    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("big",), tenants=Tenants(time.monotonic))
        async with (
            opened_app(server, [programs], FrontendApp(server, [])) as app,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost"
            ) as http,
        ):
            for answer in (await http.get("/nothing"), await http.post("/v1/embeddings", json={})):
                assert answer.status_code == 404


async def test_a_bug_before_vllm_is_a_500_in_the_form_of_the_api() -> None:
    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("big",), tenants=Tenants(time.monotonic))
        front = Front.of("big")
        front.app.add_api_route("/v1/models", lambda: None)  # so that vLLM's paths have it
        front.app.state.openai_serving_models = None
        async with (
            opened_app(server, [programs], FrontendApp(server, [front])) as app,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app, raise_app_exceptions=False),
                base_url="http://localhost",
            ) as http,
        ):
            answer = await http.get("/v1/models")
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "internal_error"
            assert answer.headers["x-request-id"]
