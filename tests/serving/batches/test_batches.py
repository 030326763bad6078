"""OpenAI's API of batches, tested with OpenAI's official client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from agentrt.batch.lines import LineFile
from agentrt.request import Call
from agentrt.serving.batches import runner
from agentrt.serving.batches.lines import LineAnswer, LineRequest
from agentrt.serving.batches.postgres import PostgresAnswers, PostgresStorage
from agentrt.serving.batches.requests import ModelEndpoint
from agentrt.serving.batches.storage import FolderStorage
from agentrt.serving.tenants import Limits
from tests.doubles.machine import NOON, Machine
from tests.serving.batches.client import CHATS, request, serve_batches
from tests.serving.batches.conftest import sqlite_only
from tests.serving.local import MODEL, WAIT_S, Held
from tests.serving.tenants.plain_keys import PlainKeys


def answer_text(call: Call) -> str:
    """Answer with the line number of the batch request, or with "mine" for other calls."""
    name = call.identity.session or ""
    return f"said {name.rpartition('_')[2] if name.startswith('batch_req_') else 'mine'}"


def text_of(line: Any) -> str:
    text: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return text


async def test_a_batch_of_chats(tmp_path: Path) -> None:
    """The answers are in the output file. The request that the server refuses is in the error file,
    with the same status and body as over HTTP.
    """
    async with serve_batches(tmp_path, answer_text, machine=Machine().clocks()) as server:
        wrong = request("r2", model=MODEL, messages=[], temperature=-1)
        lines = [request("r1", "a"), wrong, request("r3", "c"), b"\n", request("r4", "a")]
        batch = await server.batch(*lines, metadata={"k": "v"})
        assert (batch.status, batch.endpoint, batch.object) == ("validating", CHATS, "batch")
        assert (batch.created_at, batch.expires_at) == (NOON, NOON + 24 * 3600)
        batch = await server.until(batch)
        assert batch.status == "completed"
        assert batch.metadata == {"k": "v"}
        assert batch.model == MODEL
        assert batch.in_progress_at == batch.finalizing_at == batch.completed_at == NOON
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 4, "completed": 3, "failed": 1}
        output = await server.lines(batch.output_file_id)
        assert [line["custom_id"] for line in output] == ["r1", "r3", "r4"]
        assert [text_of(line) for line in output] == ["said 1", "said 3", "said 5"]
        assert {(line["error"], line["response"]["status_code"]) for line in output} == {
            (None, 200)
        }
        usages = [line["response"]["body"]["usage"] for line in output]
        assert batch.usage is not None
        assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in usages)
        assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages)
        [error] = await server.lines(batch.error_file_id)
        over_http = await server.local.client.post(CHATS, json=wrong["body"])
        assert error["custom_id"] == "r2"
        assert error["response"]["status_code"] == over_http.status_code == 400
        assert error["response"]["body"] == over_http.json()
        assert not server.local.programs()
        files = {file.id: file async for file in server.client.files.list(purpose="batch_output")}
        assert files.keys() == {batch.output_file_id, batch.error_file_id}
        assert files[str(batch.output_file_id)].filename == f"{batch.id}_output.jsonl"
        assert files[str(batch.output_file_id)].expires_at is None


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}),
    ],
)
async def test_other_endpoints(url: str, body: dict[str, Any], tmp_path: Path) -> None:
    async with serve_batches(tmp_path) as server:
        batch = await server.batch(request("r", url=url, model=MODEL, **body), endpoint=url)
        batch = await server.until(batch)
        [line] = await server.lines(batch.output_file_id)
        over_http = await server.local.post(url, {"model": MODEL, **body})
        assert line["response"]["body"].keys() == over_http.keys()
        assert batch.usage is not None
        assert batch.usage.output_tokens > 0


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"{\n", "invalid_json_line", None),
        (b"[1]\n", "invalid_json_line", None),
        (b'{"custom_id": NaN}\n', "invalid_json_line", None),
        (b"\xff\xfe{}\n", "invalid_json_line", None),
        (b'{"custom_id": "\\ud800"}\n', "invalid_json_line", None),
        (b'{"custom_id": "x", "body": ' + b"[" * 10_000 + b"\n", "invalid_json_line", None),
        (b"\x1f\x8b\x08\n", "invalid_json_line", None),
        ({**request("x"), "custom_id": None}, "invalid_custom_id", "custom_id"),
        ({**request("x"), "custom_id": 7}, "invalid_custom_id", "custom_id"),
        ({**request("x"), "custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({**request("x"), "custom_id": "x" * 513}, "invalid_custom_id", "custom_id"),
        (request("good"), "duplicate_custom_id", "custom_id"),
        ({**request("x"), "method": "GET"}, "invalid_method", "method"),
        ({**request("x"), "url": "/v1/completions"}, "invalid_url", "url"),
        ({**request("x"), "body": "hello"}, "invalid_body", "body"),
        (request("x", messages=[], stream=True), "invalid_body", "body.stream"),
        (request("x", input="a", background=True), "invalid_body", "body.background"),
    ],
)
async def test_an_invalid_line_fails_the_batch(
    line: Any, code: str, param: str | None, tmp_path: Path
) -> None:
    async with serve_batches(tmp_path) as server:
        batch = await server.until(await server.batch(request("good"), line, request("last")))
        assert batch.status == "failed"
        assert batch.failed_at is not None
        assert batch.errors is not None
        assert batch.errors.data is not None
        [error] = batch.errors.data
        assert (error.line, error.code, error.param) == (2, code, param)
        assert error.message
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        assert not server.local.engine.calls


async def test_a_file_from_windows_and_a_long_line(tmp_path: Path) -> None:
    """A byte order mark and CRLF are no errors. A prompt of 3 MB is refused as over HTTP."""
    async with serve_batches(tmp_path) as server:
        first, last = (json.dumps(request(name)).encode() for name in ("first", "last"))
        long = json.dumps(request("long", "x" * 3_000_000)).encode()
        content = b"\xef\xbb\xbf" + b"\r\n".join((first, b"", long, last))
        batch = await server.until(await server.batch(content))
        assert batch.status == "completed"
        output = await server.lines(batch.output_file_id)
        assert [line["custom_id"] for line in output] == ["first", "last"]
        [error] = await server.lines(batch.error_file_id)
        assert (error["custom_id"], error["response"]["status_code"]) == ("long", 400)


async def test_each_answer_is_one_line_for_clients_that_split_at_line_separators(
    tmp_path: Path,
) -> None:
    async with serve_batches(tmp_path, lambda call: "a\u2028b\u2029c\x85d") as server:
        batch = await server.until(await server.batch(request("r1"), request("r2")))
        answers = [text_of(line) for line in await server.lines(batch.output_file_id)]
        assert answers == ["a\u2028b\u2029c\x85d"] * 2


async def test_a_bug_fails_its_request_and_not_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ModelEndpoint.answer

    async def with_bug(self: Any, tenant: str, line: LineRequest, name: str) -> LineAnswer:
        if line.custom_id == "1":
            raise ZeroDivisionError
        return await answer(self, tenant, line, name)

    monkeypatch.setattr(ModelEndpoint, "answer", with_bug)
    async with serve_batches(tmp_path) as server:
        batch = await server.until(await server.batch(*(request(str(n)) for n in range(3))))
        [error] = await server.lines(batch.error_file_id)
        assert (error["custom_id"], error["response"]["status_code"]) == ("1", 500)
        assert [line["custom_id"] for line in await server.lines(batch.output_file_id)] == [
            "0",
            "2",
        ]


async def test_an_empty_file_fails_and_at_most_100_errors_are_listed(tmp_path: Path) -> None:
    async with serve_batches(tmp_path) as server:
        for content, count in ((b"", 1), (b"\n\n", 1), (b"x\n" * 300, 100)):
            batch = await server.until(await server.batch(content))
            assert batch.status == "failed"
            assert batch.errors is not None
            assert batch.errors.data is not None
            assert len(batch.errors.data) == count


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint: batches on this server cannot use"),
        ({"endpoint": "/v1/programs/x/runs"}, "endpoint: batches on this server cannot use"),
        ({"completion_window": "soon"}, "completion_window must be a time from 1m to 30d"),
        ({"completion_window": "0h"}, "completion_window must be a time from 1m to 30d"),
        ({"completion_window": "31d"}, "completion_window must be a time from 1m to 30d"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"extra_body": {"input_file_id": "file-1"}}, "input_file_id: no such file"),
        ({"extra_body": {"input_file_id": "../x"}}, "input_file_id: no such file"),
        ({"extra_body": {"priority": 1}}, "does not know the field 'priority'"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            "output_expires_after.seconds must be from 3600",
        ),
    ],
)
async def test_a_bad_batch_is_refused(options: Any, words: str, tmp_path: Path) -> None:
    async with serve_batches(tmp_path) as server:
        with pytest.raises(openai.BadRequestError, match=words):
            await server.batch(request("r"), **options)
        assert not (await server.client.batches.list()).data


async def test_an_output_file_cannot_be_an_input_file(tmp_path: Path) -> None:
    async with serve_batches(tmp_path) as server:
        batch = await server.until(await server.batch(request("r")))
        output = {"input_file_id": batch.output_file_id}
        with pytest.raises(openai.BadRequestError, match="no such file with purpose 'batch'"):
            await server.batch(request("r"), extra_body=output)


async def test_batches_are_listed_in_pages(tmp_path: Path) -> None:
    async with serve_batches(tmp_path) as server:
        made = [(await server.until(await server.batch(request("r")))).id for _ in range(3)]
        assert [batch.id async for batch in server.client.batches.list(limit=2)] == made[::-1]
        page = await server.client.batches.list(limit=2, after=made[2])
        assert ([batch.id for batch in page.data], page.has_more) == (made[1::-1], False)


async def test_a_running_batch_is_cancelled(tmp_path: Path) -> None:
    """The calls of the batch are aborted, and the batch cannot be cancelled again."""
    async with serve_batches(tmp_path, answer_text, kind=Held) as server:
        engine = server.local.engine
        batch = await server.batch(*(request(str(n)) for n in range(40)))
        await server.local.until(lambda: len(engine.open) == 16)
        assert (await server.until(batch, "in_progress")).request_counts is not None
        with pytest.raises(openai.BadRequestError, match=f"{batch.id} reads file"):
            await server.client.files.delete(batch.input_file_id)
        cancelling = await server.client.batches.cancel(batch.id)
        assert cancelling.status in ("cancelling", "cancelled")
        batch = await server.until(batch)
        assert (batch.status, batch.cancelling_at is None) == ("cancelled", False)
        assert not engine.open
        assert not server.local.programs()
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 40, "completed": 0, "failed": 0}
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        with pytest.raises(openai.BadRequestError, match="status 'cancelled'"):
            await server.client.batches.cancel(batch.id)
        await server.client.files.delete(batch.input_file_id)


async def test_expired(tmp_path: Path) -> None:
    """1. Sixteen of 20 requests are in flight when the batch expires. 2. They are aborted, and all
    20 requests have an error line. The error file has the expiry that the batch was created with.
    """
    machine = Machine()
    async with serve_batches(tmp_path, answer_text, kind=Held, machine=machine.clocks()) as server:
        engine = server.local.engine
        lifetime = {"anchor": "created_at", "seconds": 3600}
        lines = [request(str(n)) for n in range(20)]
        batch = await server.batch(*lines, completion_window="10m", output_expires_after=lifetime)
        await server.local.until(lambda: len(engine.open) == 16)
        machine.passes(599.0)
        await machine.looked()
        assert len(engine.open) == 16
        machine.passes(2.0)
        batch = await server.until(batch)
        assert (batch.status, batch.expired_at) == ("expired", NOON + 601)
        assert not engine.open
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 20, "completed": 0, "failed": 20}
        errors = await server.lines(batch.error_file_id)
        assert [line["custom_id"] for line in errors] == [str(n) for n in range(20)]
        assert {line["error"]["code"] for line in errors} == {"batch_expired"}
        assert {line["response"] for line in errors} == {None}
        file = await server.client.files.retrieve(str(batch.error_file_id))
        assert file.expires_at == NOON + 601 + 3600


async def test_batches_leave_half_of_the_calls_to_interactive_requests(tmp_path: Path) -> None:
    """Of a limit of two calls, batches use one, and the other is free for an interactive call."""
    async with serve_batches(tmp_path, answer_text, kind=Held, limits=Limits(calls=2)) as server:
        engine = server.local.engine
        batch = await server.batch(*(request(str(n)) for n in range(4)))
        await server.local.until(lambda: engine.open)
        own = asyncio.create_task(server.local.chat("mine"))
        await server.local.until(lambda: len(engine.open) == 2)
        engine.go.set()
        assert (await own)["choices"][0]["message"]["content"] == "said mine"
        batch = await server.until(batch)
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 4


async def test_an_exhausted_request_rate_delays_a_batch(tmp_path: Path) -> None:
    """The tenant has used all 60 requests of this minute when the batch begins."""
    async with serve_batches(tmp_path, limits=Limits(requests_per_minute=60)) as server:
        tenants = server.local.server.tenants
        for _ in range(60):
            tenants.ask("default")
        batch = await server.until(await server.batch(request("1"), request("2")))
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 2, "completed": 2, "failed": 0}


async def test_interactive_calls_go_first(tmp_path: Path) -> None:
    """Interactive calls use three of the engine's four slots, and a batch the fourth."""
    async with serve_batches(tmp_path, kind=Held, slots=4) as server:
        engine = server.local.engine
        chats = [asyncio.create_task(server.local.chat("x")) for _ in range(3)]
        await server.local.until(lambda: len(engine.open) == 3)
        batch = await server.batch(*(request(str(n)) for n in range(6)))
        await server.until(batch, "in_progress")
        await server.local.until(lambda: len(engine.open) == 4)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(engine.open) == 4
        engine.go.set()
        await asyncio.gather(*chats)
        assert (await server.until(batch)).status == "completed"


async def test_a_tenants_own_calls_overtake_those_of_its_batch(tmp_path: Path) -> None:
    """If calls wait for admission, interactive calls are admitted before those of a batch."""
    limits = Limits(concurrency=1)
    async with serve_batches(
        tmp_path, answer_text, kind=Held, limits=limits, is_shared=True
    ) as server:
        engine = server.local.engine
        batch = await server.batch(*(request(str(n)) for n in range(3)))
        await server.local.until(lambda: sum(len(r.calls) for r in server.local.runtime.table) == 3)
        own = asyncio.create_task(server.local.chat("mine"))
        await server.local.until(lambda: sum(len(r.calls) for r in server.local.runtime.table) == 4)
        engine.go.set()
        await own
        await server.until(batch)
        assert [answer_text(call) for call in engine.calls][1] == "said mine"


async def test_tenants_see_their_own_batches_only(tmp_path: Path) -> None:
    async with serve_batches(tmp_path, answer_text, keys=PlainKeys(), is_shared=True) as server:
        batch = await server.batch(request("r"), key="a")
        batch = await server.until(batch, key="a")
        theirs = server.clients("b").batches
        assert not (await theirs.list()).data
        for ask in (theirs.retrieve, theirs.cancel):
            with pytest.raises(openai.NotFoundError, match="no such batch"):
                await ask(batch.id)
        with pytest.raises(openai.BadRequestError, match="no such file"):
            await server.batch(
                request("r"), key="b", extra_body={"input_file_id": batch.input_file_id}
            )
        with pytest.raises(openai.NotFoundError):
            await server.clients("b").files.content(str(batch.output_file_id))
        [call] = server.local.engine.calls
        assert call.identity.tenant == "a"


async def test_the_number_of_live_batches_is_limited(tmp_path: Path) -> None:
    async with serve_batches(tmp_path, kind=Held, limits=Limits(batches=1)) as server:
        batch = await server.batch(request("r"))
        refusal = "has 1 batches that have not ended"
        with pytest.raises(openai.RateLimitError, match=refusal) as refused:
            await server.batch(request("r"))
        assert refused.value.response.headers["retry-after"] == "5"
        server.local.engine.go.set()
        await server.until(batch)
        await server.until(await server.batch(request("r")))


async def test_batches_that_are_created_at_once_are_counted(tmp_path: Path) -> None:
    async with serve_batches(tmp_path, kind=Held, limits=Limits(batches=2)) as server:
        first = await server.batch(request("1"))
        fields = {"input_file_id": first.input_file_id, "endpoint": CHATS}
        post = server.local.client.post
        answers = await asyncio.gather(
            *(post("/v1/batches", json={**fields, "completion_window": "1h"}) for _ in range(20))
        )
        statuses = [answer.status_code for answer in answers]
        assert (statuses.count(200), statuses.count(429)) == (1, 19)
        assert len((await server.client.batches.list()).data) == 2
        server.local.engine.go.set()


async def test_the_next_server_continues_a_batch(tmp_path: Path, database: str) -> None:
    """1. A server stops while requests of a batch are in flight. 2. Files in a folder end in the
    middle of a line, as after a kill. 3. The next server writes one answer for each request.
    """
    lines = [request(str(n)) for n in range(30)]
    async with serve_batches(tmp_path, answer_text, kind=Held, slots=10) as server:
        engine = server.local.engine
        batch = await server.batch(*lines)
        await server.local.until(lambda: len(engine.open) == 10)
    if database == "sqlite":
        add_half_lines(tmp_path)
    async with serve_batches(tmp_path, answer_text) as server:
        batch = await server.until(await server.client.batches.retrieve(batch.id))
        assert batch.status == "completed"
        output = await server.lines(batch.output_file_id)
        assert [text_of(line) for line in output] == [f"said {n + 1}" for n in range(30)]


async def test_a_stop_does_not_wait_until_a_batch_may_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A request of a batch has to wait for an hour. 2. The server stops at once. 3. The next
    server answers the request.
    """
    refused: list[str] = []

    async def refuse(*args: Any) -> LineAnswer:
        refused.append(args[-1])
        return LineAnswer(429, {}, args[-1], 3600.0)

    with monkeypatch.context() as patch:
        patch.setattr(ModelEndpoint, "answer", refuse)
        async with serve_batches(tmp_path) as server:
            local = server.local
            batch = await server.batch(request("0"))
            await local.until(lambda: bool(refused))
            assert await local.listener.drain(local.server, WAIT_S)
    async with serve_batches(tmp_path) as server:
        batch = await server.until(await server.client.batches.retrieve(batch.id))
        assert (batch.status, len(refused)) == ("completed", 1)


async def test_no_request_begins_after_a_stop_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was refused waits for the only slot, which another request has, when the
    server begins to stop.
    """
    begun: list[str] = []
    go, slots = asyncio.Event(), list[Any]()

    async def answer(
        endpoint: ModelEndpoint, tenant: str, request: LineRequest, name: str
    ) -> LineAnswer:
        begun.append(request.custom_id)
        slots.append(endpoint.slots)
        if request.custom_id == "refused":
            return LineAnswer(429, {}, name, 0.01)
        await go.wait()
        return LineAnswer(200, {}, name)

    monkeypatch.setattr(ModelEndpoint, "answer", answer)
    async with serve_batches(tmp_path, limits=Limits(calls=2)) as server:
        local = server.local
        await server.batch(request("refused"), request("other"))
        await local.until(lambda: "other" in begun)
        await local.until(lambda: bool(slots[0]._waiting))
        before = list(begun)
        draining = asyncio.create_task(local.listener.drain(local.server, WAIT_S))
        await local.until(lambda: local.server.draining)
        go.set()
        assert await draining
        assert begun == before


@sqlite_only
async def test_a_batch_whose_input_file_vanishes_fails(tmp_path: Path) -> None:
    """1. A server stops while requests of a batch are in flight. 2. Somebody removes the input file
    from the folder. 3. On the next server, the batch fails with the reason; it has not expired.
    """
    async with serve_batches(tmp_path, answer_text, kind=Held) as server:
        batch = await server.batch(request("0"), request("1"))
        await server.local.until(lambda: len(server.local.engine.open) == 2)
    remove_content(tmp_path, batch.input_file_id)
    async with serve_batches(tmp_path, answer_text) as server:
        batch = await server.until(await server.client.batches.retrieve(batch.id))
        assert (batch.status, batch.expired_at) == ("failed", None)
        assert batch.errors is not None
        [error] = batch.errors.data or []
        assert error.code == "file_not_found"


def remove_content(folder: Path, file_id: str) -> None:
    """Remove the content of a file from the disk."""
    [path] = folder.glob(f"a.db.files/*/{file_id}.jsonl")
    path.unlink()


def add_half_lines(folder: Path) -> None:
    """Add half a line to each file that a batch is writing."""
    writing = [path for path in folder.glob("a.db.files/*/*.jsonl") if not path.stat().st_size]
    assert len(writing) == 2
    for path in writing:
        path.write_bytes(b'{"id": "batch_req_0_2", "custom_id": "2", "resp')


async def test_a_full_disk_delays_a_batch(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests whose answers were not written run again when the disk has space."""
    kind: Any = LineFile if database == "sqlite" else PostgresAnswers
    whole, faults = kind.append, [OSError(28, "No space left on device")]

    def append(file: Any, data: bytes) -> None:
        if faults:
            raise faults.pop()
        whole(file, data)

    monkeypatch.setattr(kind, "append", append)
    async with serve_batches(tmp_path, answer_text) as server:
        batch = await server.until(await server.batch(*(request(str(n)) for n in range(5))))
        assert batch.status == "completed"
        output = await server.lines(batch.output_file_id)
        assert [line["custom_id"] for line in output] == [str(n) for n in range(5)]


async def test_a_cancelled_batch_waits_between_its_tries_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []

    def fail(content: Any) -> None:
        tries.append(content)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner, "total_usage", fail)
    monkeypatch.setattr(runner, "_FIRST_BACKOFF_S", 3600.0)
    async with serve_batches(tmp_path, answer_text, kind=Held) as server:
        batch = await server.batch(request("0"))
        await server.local.until(lambda: bool(server.local.engine.open))
        await server.client.batches.cancel(batch.id)
        await server.local.until(lambda: bool(tries))
        for _ in range(50):
            batch = await server.client.batches.retrieve(batch.id)
        assert batch.status == "cancelling"
        assert len(tries) <= 2


async def test_a_batch_is_cancelled_although_the_disk_is_full(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request for the cancellation gets an error, and the calls of the batch are aborted. The
    batch has ended when the disk has space again.
    """
    kind: Any = FolderStorage if database == "sqlite" else PostgresStorage
    whole, is_full = kind.put_record, False

    def put_record(storage: Any, *args: Any) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        whole(storage, *args)

    monkeypatch.setattr(kind, "put_record", put_record)
    monkeypatch.setattr(runner, "_FIRST_BACKOFF_S", 0.01)
    async with serve_batches(tmp_path, answer_text, kind=Held) as server:
        engine = server.local.engine
        batch = await server.batch(request("0"), request("1"))
        await server.local.until(lambda: len(engine.open) == 2)
        is_full = True
        with pytest.raises(openai.APIStatusError):
            await server.client.batches.cancel(batch.id)
        await server.local.until(lambda: not engine.open)
        is_full = False
        assert (await server.until(batch)).status == "cancelled"
