"""Traces of programs: the spans of scripted runs, as OpenTelemetry's own exporter gets them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from queue import Queue
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from agentrt import Context, Runtime, program
from agentrt.cli.traces import read_traces
from agentrt.errors import ConfigError, InterruptExpiredError
from agentrt.graph import Frontier, Node
from agentrt.integrations import opentelemetry
from agentrt.integrations.opentelemetry import (
    ProgramTracer,
    RemoteParents,
    TracedExecutor,
    _exporter,
    exported,
)
from agentrt.interrupts.questions import Question
from agentrt.journal import Journal
from agentrt.request import CallSpec
from agentrt.request.sampling import Sampling
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run, RunRegistry, RunState
from agentrt.tracking.scope import Scope
from tests.doubles.scripted import ScriptedExecutor
from tests.journal.killing import QuickStore, begins, killed, program_of
from tests.serving.test_tls import made


class Traced:
    """A runtime on a scripted engine, and the spans that ended."""

    def __init__(self, journal: Journal | None = None) -> None:
        provider, self._exporter = TracerProvider(), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("tests")
        registry, self.engine = RunRegistry(), ScriptedExecutor(lambda call: "one two")
        self.traces = ProgramTracer(self.tracer, registry)
        executor = TracedExecutor(self.engine, self.traces)
        self.runtime = Runtime(
            executor, registry=registry, enter=self.traces.enter, journal=journal, ask_human=answer
        )

    def spans(self) -> dict[str, ReadableSpan]:
        """By the id of their call, or of their program; others by name."""
        return {_key(span): span for span in self._exporter.get_finished_spans()}


async def answer(question: Question) -> str:
    """Answer a question, unless it has a time limit."""
    if question.expires_at is not None:
        await asyncio.Event().wait()
    return "yes"


def _key(span: ReadableSpan) -> str:
    told: Mapping[str, Any] = span.attributes or {}
    return str(told.get("agentrt.call.id") or told.get("agentrt.program.id") or span.name)


@asynccontextmanager
async def traced(journal: Journal | None = None) -> AsyncIterator[Traced]:
    it = Traced(journal)
    async with it.runtime:
        yield it


def above(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def add(a: int, b: int) -> int:
    return a + b


async def fail() -> None:
    raise ValueError("no such thing")


@program
async def planner(ctx: Context) -> None:
    first = await ctx.llm("plan", max_tokens=2)
    await asyncio.gather(ctx.llm(first.text), ctx.tool(add, 1, 2))
    await ctx.llm("sum up")


async def test_spans_are_a_programs_nodes_and_links_its_edges() -> None:
    async with traced() as it:
        run = it.runtime.start(planner, session="tea", tenant="ann")
        await run.wait()
        spans, nodes = it.spans(), list(run.dag.nodes())
    root = spans[run.id]
    assert (root.name, above(root)) == ("invoke_agent planner", None)
    assert len(spans) == 1 + len(nodes) == 5
    by_node = {node.id: spans[f"{run.id}/{node.id}"] for node in nodes}
    for node in nodes:
        span = by_node[node.id]
        assert above(span) == id_of(root)
        linked = {link.context.span_id for link in span.links}
        assert linked == {id_of(by_node[parent]) for parent in node.parents}
        assert_times(span, node, nodes[0], by_node[0])
    assert [by_node[n.id].kind for n in nodes].count(SpanKind.CLIENT) == 3


def assert_times(span: ReadableSpan, node: Node, first: Node, its: ReadableSpan) -> None:
    """They lie to each other as the nodes' do, to a microsecond."""
    assert span.start_time
    assert span.end_time
    assert its.start_time
    assert node.ended_at
    since = (span.start_time - its.start_time) / 1e9
    assert since == pytest.approx(node.created_at - first.created_at, abs=1e-6)
    length = (span.end_time - span.start_time) / 1e9
    assert length == pytest.approx(node.ended_at - node.created_at, abs=1e-6)


async def test_attributes_are_what_the_reports_say() -> None:
    async with traced() as it:
        run = it.runtime.start(planner, session="tea", tenant="ann")
        await run.wait()
        spans, node = it.spans(), next(iter(run.dag.nodes()))
    told = spans[f"{run.id}/0"].attributes or {}
    assert node.report is not None
    assert spans[f"{run.id}/0"].name == "chat scripted"
    assert told["gen_ai.request.model"] == "scripted"
    assert told["gen_ai.usage.output_tokens"] == node.report.output_tokens == 2
    assert told["agentrt.service_s"] == node.report.service_s > 0
    assert told["agentrt.scope"] == "planner"
    assert {type(value) for value in told.values()} <= {str, int, float}
    root, report = spans[run.id].attributes or {}, run.report(0.0)
    assert root["gen_ai.agent.name"] == "planner"
    assert root["gen_ai.conversation.id"] == "tea"
    assert root["agentrt.tenant"] == "ann"
    assert root["agentrt.state"] == "done"
    assert root["agentrt.critical_path_s"] == report.critical_path_s > 0
    assert root["gen_ai.usage.output_tokens"] == report.output_tokens
    tool = next(span for span in spans.values() if span.name == "execute_tool add")
    assert (tool.attributes or {})["gen_ai.tool.name"] == "add"


async def test_a_span_of_the_programs_own_stands_between() -> None:
    async with traced() as it:

        @program
        async def careful(ctx: Context) -> None:
            with it.tracer.start_as_current_span("checking"):
                await ctx.llm("check")

        run = it.runtime.start(careful)
        await run.wait()
        spans = it.spans()
    assert above(spans["checking"]) == id_of(spans[run.id])
    assert above(spans[f"{run.id}/0"]) == id_of(spans["checking"])


async def test_a_program_is_below_the_span_that_started_it_and_leaves_no_trace_there() -> None:
    async with traced() as it:
        with it.tracer.start_as_current_span("batch"):
            runs = [it.runtime.start(planner) for _ in range(2)]
        await asyncio.gather(*(run.wait() for run in runs))
        spans = it.spans()
    assert {above(spans[run.id]) for run in runs} == {id_of(spans["batch"])}


async def test_what_fails_is_an_error_and_what_is_cancelled_ends() -> None:
    async with traced() as it:

        @program
        async def failing(ctx: Context) -> None:
            await ctx.tool(fail)

        @program
        async def endless(ctx: Context) -> None:
            await ctx.tool(asyncio.Event().wait)

        failed, stopped = it.runtime.start(failing), it.runtime.start(endless)
        with pytest.raises(ValueError, match="no such"):
            await failed.wait()
        while not stopped.dag.running():
            await asyncio.sleep(0)
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped.wait()
        spans = it.spans()
    for key in (failed.id, f"{failed.id}/0"):
        assert spans[key].status.status_code is StatusCode.ERROR
        assert spans[key].status.description == "ValueError: no such thing"
    for key in (stopped.id, f"{stopped.id}/0"):
        assert spans[key].status.status_code is StatusCode.UNSET
        assert (spans[key].attributes or {})["agentrt.state"] == "cancelled"


async def test_a_resumed_program_has_spans_of_the_nodes_that_run_now(tmp_path: Path) -> None:
    """Nodes that are read from the journal have no spans, so no span links to them."""

    async def code(ctx: Context) -> str:
        text = (await ctx.llm("plan")).text
        await asyncio.gather(ctx.tool(add, 1, 2), ctx.llm("think"))
        return text

    path = tmp_path / "journal"
    await killed(path, code, begins("tool"))
    async with await Journal.open(lambda: QuickStore(path)) as journal, traced(journal) as it:
        run = it.runtime.start(program_of(code), None, durable=Durable())
        assert await run.wait() == "said plan"
        spans = it.spans()
    assert spans.keys() == {run.id, f"{run.id}/1", f"{run.id}/2"}
    assert not any(span.links for span in spans.values())


async def test_a_question_is_not_in_its_span() -> None:
    """It may quote what a model has said."""
    async with traced() as it:

        @program
        async def careful(ctx: Context) -> None:
            await ctx.human("Send secret to ann?")
            with suppress(InterruptExpiredError):
                await ctx.human("Send secret to bob?", timeout=0.01)

        await it.runtime.start(careful).wait()
        spans = it.spans()
    names = [span.name for span in spans.values()]
    assert sorted(names) == ["human", "human", "invoke_agent careful"]
    assert "secret" not in "".join(span.to_json() for span in spans.values())


async def test_a_long_program_keeps_the_spans_of_open_nodes_alone() -> None:
    async with traced() as it:

        @program
        async def endless(ctx: Context) -> None:
            for _ in range(3):
                await ctx.llm("go on", max_tokens=2)
            await ctx.tool(asyncio.Event().wait)

        run = it.runtime.start(endless)
        while len(run.dag) < 4:
            await asyncio.sleep(0)
        assert list(it.traces._live[run.id].open) == [3]
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        assert len(it.spans()) == 5
        assert it.traces._live == {}


async def test_a_clock_that_is_set_counts_from_the_next_program_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with traced() as it:
        monkeypatch.setattr(opentelemetry, "time", SimpleNamespace(time=lambda: 5e9))
        run = it.runtime.start(planner)
        await run.wait()
        span = it.spans()[run.id]
    assert span.start_time == pytest.approx(5e18, abs=3600e9)


REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_clients_call_is_below_the_clients_span() -> None:
    """As over HTTP: the program is another trace, which the call's span is linked to."""
    async with traced() as it:
        run = it.runtime.registry.open("client")

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await called(it.runtime, run)

        headers = [(b"traceparent", REMOTE.encode())]
        await RemoteParents(app)({"type": "http", "headers": headers}, None, None)  # type: ignore[arg-type]
        await RemoteParents(app)({"type": "http", "headers": []}, None, None)  # type: ignore[arg-type]
        it.runtime.registry.close(run, RunState.DONE)
        spans = it.spans()
    theirs, alone = spans[f"{run.id}/0"], spans[f"{run.id}/1"]
    assert theirs.parent is not None
    assert theirs.context is not None
    assert f"{theirs.parent.span_id:016x}" == "b7ad6b7169203331"
    assert f"{theirs.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert {link.context.span_id for link in theirs.links} == {id_of(spans[run.id])}
    assert above(alone) == id_of(spans[run.id])
    told = [call.spec.rendered.options["trace_headers"] for call in it.engine.calls]  # type: ignore[union-attr]
    assert [one["traceparent"].split("-")[2] for one in told] == [
        f"{id_of(span):016x}" for span in (theirs, alone)
    ]


async def called(runtime: Runtime, run: Run) -> None:
    scope = Scope(owner=run, frontier=Frontier(), path="client")
    spec = CallSpec(prompt_token_ids=(1, 2), sampling=Sampling())
    async for _ in runtime.emitter(run).caller(scope).chunks(spec, stream=False):
        pass


@pytest.mark.parametrize(
    ("given", "flags", "found"),
    [
        (None, (), None),
        ("http://here:4317", (), "http://here:4317"),
        (None, ("--otlp-traces-endpoint", "grpc://a:1"), "grpc://a:1"),
        (None, ("--dtype", "float32", "--otlp-traces-endpoint=http://a:1"), "http://a:1"),
    ],
)
def test_the_flag_is_read_on_either_side_of_the_border(
    given: str | None, flags: tuple[str, ...], found: str | None
) -> None:
    assert read_traces(given, flags) == found


@pytest.mark.parametrize(
    "bad", ["localhost", "localhost:4317", "http://", "", "me:secret@here:1", "http://me:secret/@x"]
)
def test_what_is_no_url_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="is not a URL") as raised:
        read_traces(bad, ())
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_traces_reach_a_collector_of_this_machine_past_proxies(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """The exporters of OpenTelemetry read the environment by themselves."""
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", lambda provider: None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_grpc_proxy", "example.org")  # gRPC then ignores no_proxy
    came: Queue[bytes] = Queue()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            came.put(self.rfile.read(4))

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as collector:
        Thread(target=collector.serve_forever, daemon=True).start()
        with exported(f"http://127.0.0.1:{collector.server_address[1]}") as provider:
            provider.get_tracer("tests").start_span("x").end()
            provider.force_flush(1)
            assert came.get(timeout=60) in (b"POST", b"PRI ")
        collector.shutdown()


@pytest.fixture
def untrusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable names certificates, and what a test sets is restored."""
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", lambda provider: None)
    for name in OTLP_CERTIFICATES:
        monkeypatch.setenv(name, "")


OTLP_CERTIFICATES = (
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)


@pytest.mark.usefixtures("untrusting")
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_over_tls_is_trusted_as_other_servers_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protocol: str
) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    made(chain, key, "-nodes")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    context.set_alpn_protocols(["h2", "http/1.1"])
    came: Queue[bytes] = Queue()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            came.put(self.rfile.read(4))

    class Collector(ThreadingTCPServer):
        def get_request(self) -> tuple[Any, Any]:
            connection, address = self.socket.accept()
            return context.wrap_socket(connection, server_side=True), address

    with Collector(("127.0.0.1", 0), Handler) as collector:
        Thread(target=collector.serve_forever, daemon=True).start()
        with exported(f"https://127.0.0.1:{collector.server_address[1]}") as provider:
            provider.get_tracer("tests").start_span("x").end()
            provider.force_flush(1)
            assert came.get(timeout=60) in (b"POST", b"PRI ")
        collector.shutdown()


@pytest.mark.usefixtures("untrusting")
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("name", OTLP_CERTIFICATES)
def test_certificates_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, protocol: str, name: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    monkeypatch.setenv(name, "/nonexistent")
    if protocol == "grpc" and name.endswith("_BUNDLE"):
        with exported("https://203.0.113.7:4317"):
            return  # gRPC does not read it
    with pytest.raises(ConfigError, match=f"^{name}='/nonexistent': No such file"):
        _exporter("https://203.0.113.7:4317")
    _exporter("http://203.0.113.7:4317").shutdown()


@pytest.mark.usefixtures("untrusting")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
    ],
)
def test_a_variable_of_the_library_that_cannot_be_read_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigError, match=r"^traces cannot be sent to https://203\.0\.113\.7:4317: "
    ):
        _exporter("https://203.0.113.7:4317")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "x", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9999", "max_export_batch_size must be"),
    ],
)
def test_a_variable_of_the_sdk_that_it_refuses_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    says = f"^traces cannot be made: {says}"
    with pytest.raises(ConfigError, match=says), exported("http://127.0.0.1:9"):
        pass


def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9/")
    with pytest.raises(ConfigError, match="ALL_PROXY="), exported("http://203.0.113.7:4317"):
        pass


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    monkeypatch.setattr(opentelemetry, "FLUSH_S", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with exported(f"http://127.0.0.1:{port}") as provider:
            provider.get_tracer("tests").start_span("x").end()
    assert f"the last spans could not be sent to http://127.0.0.1:{port}" in caplog.text


def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    with pytest.raises(ConfigError, match="set grpc or http/protobuf"), exported("http://a:1"):
        pass
