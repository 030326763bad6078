"""Programs as OpenTelemetry traces: a span for each program, call, tool, question and event.

If the semantic conventions for generative AI define a name for an attribute, the attribute has this
name. The names of all other attributes begin with ``agentrt.``. The span of a node has a link to
the span of each parent of the node, so these links are the edges of the execution DAG. The engine's
spans are children of the spans of its calls. Spans have no texts of programs, such as prompts and
questions, except for the messages of errors.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_CERTIFICATE,
    OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agentrt.errors import ConfigError, shown_url, text_of
from agentrt.executors.base import Chunk, Executor, ForwardingExecutor
from agentrt.executors.info import display_name
from agentrt.graph import Node, NodeKind, NodeState
from agentrt.proxies import bypass_proxies, certificate_file, proxy_for
from agentrt.request import Call, CallReport, RenderedCall, Usage
from agentrt.runtime import Runtime
from agentrt.runtime.events import Event, NodeEnded, NodeStarted, ProgramStarted, RunEnded
from agentrt.runtime.run import Run, RunRegistry, RunState, call_id

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

FLUSH_S = 5.0
"""Maximum number of seconds for which the last spans are sent at the end of a command."""
_log = logging.getLogger(__name__)
_OWN = (OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE, OTEL_EXPORTER_OTLP_CERTIFICATE)
_CERTIFICATES = {
    "grpc": (*_OWN, "SSL_CERT_FILE"),
    "http/protobuf": (*_OWN, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"),
}
"""Protocols, and the variables that may name a file of certificates. OpenTelemetry's libraries do
not read SSL_CERT_FILE.
"""
_PROPAGATOR = TraceContextTextMapPropagator()
_NAMES = ("traceparent", "tracestate")
_OPERATIONS = {NodeKind.CALL: "chat", NodeKind.TOOL: "execute_tool"}
_USAGE = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
"""Fields of a report whose names the conventions define."""
# Attributes cannot be lists of lists, and most versions of the SDK warn about each of them.
_NESTED = ("spans", "versions")
_REPORTED = tuple(each.name for each in fields(CallReport) if each.name not in _NESTED)
_TOTALS = ("calls", "service_s", "waiting_s", "interrupt_s", "critical_path_s")
_USED = tuple(each.name for each in fields(Usage))


@dataclass(slots=True)
class _ProgramSpans:
    """A program's span, the spans of its open nodes, and the span contexts of all its nodes.

    Ended spans are dropped, so that a program that lives long does not collect them. The contexts
    of ended spans stay, because later spans link to them.
    """

    run: Run
    span: Span
    epoch_s: float
    open: dict[int, Span] = field(default_factory=dict)
    places: dict[int, SpanContext] = field(default_factory=dict)

    def ns(self, at: float) -> int:
        """Convert a time of the registry's clock into nanoseconds since 1970."""
        return round((self.epoch_s + at) * 1e9)


class ProgramTracer:
    """A listener that makes the spans of all programs of ``registry``, with ``tracer``.

    The parent of a program's span is the current span at the program's start. The parent of a
    node's span is the current span of the code that made the node: the program's span, a span that
    the program's code has opened, or the span of a remote client. With a remote parent, the node's
    span gets a link to the program's span.
    """

    def __init__(self, tracer: Tracer, registry: RunRegistry) -> None:
        self._tracer = tracer
        self._registry = registry
        self._live: dict[str, _ProgramSpans] = {}
        registry.listen(self._saw)

    def enter(self, run: Run) -> None:
        """Make the program's span the current span of this context."""
        otel.attach(trace.set_span_in_context(self._live[run.id].span))

    def headers(self, call: Call, model: str) -> dict[str, str]:
        """Return the headers that tell an engine the parent of its spans. Also write the model
        into the call's span.
        """
        headers: dict[str, str] = {}
        if (live := self._live.get(call.program_id)) is not None:
            span = live.open[int(call.call_id.removeprefix(f"{call.program_id}/"))]
            span.update_name(f"chat {model}")
            span.set_attribute("gen_ai.request.model", model)
            _PROPAGATOR.inject(headers, trace.set_span_in_context(span))
        return headers

    def _saw(self, event: Event) -> None:
        """Handle an event. Called under the registry's lock, in the context of the code that caused
        the event.
        """
        live = self._live.get(event.program_id)
        match event:
            case ProgramStarted():
                self._started(self._registry.runs[event.program_id])
            case NodeStarted(node=node) if live is not None:
                span = live.open[node.id] = self._node(live, node)
                live.places[node.id] = span.get_span_context()
            case NodeEnded(node=node) if live is not None:
                _end(live, live.open.pop(node.id), node)
            case RunEnded() if live is not None:
                self._ended(self._live.pop(event.program_id), event.at)

    def _started(self, run: Run) -> None:
        epoch_s = time.time() - self._registry.clock()
        span = self._tracer.start_span(
            f"invoke_agent {run.type}",
            start_time=round((epoch_s + run.started_at) * 1e9),
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "agentrt.program.id": run.id,
                "agentrt.tenant": run.row.tenant,
                **({} if run.row.session is None else {"gen_ai.conversation.id": run.row.session}),
            },
        )
        self._live[run.id] = _ProgramSpans(run, span, epoch_s)

    def _ended(self, program: _ProgramSpans, at: float) -> None:
        run, span = program.run, program.span
        for key, open_span in program.open.items():  # the program's end cancelled their nodes
            _end(program, open_span, run.dag.node(key))
        report = run.report(at)
        span.update_name(f"invoke_agent {run.type}")  # the type may have been unknown at the start
        span.set_attribute("gen_ai.agent.name", run.type)
        span.set_attribute("agentrt.state", str(run.state))
        span.set_attributes(_named(report, (*_USED, *_TOTALS)))
        if run.state is RunState.FAILED:
            span.set_status(Status(StatusCode.ERROR, _first_line(run.error)))
        span.end(program.ns(at))

    def _node(self, program: _ProgramSpans, node: Node) -> Span:
        above, current = trace.set_span_in_context(program.span), trace.get_current_span()
        # Nodes that were read from a journal have no spans, because they ran in an earlier process.
        places = program.places
        before = [places[parent] for parent in node.parents if parent in places]
        if current.get_span_context().is_valid:
            above = otel.get_current()
            if current.get_span_context().is_remote:
                before.append(program.span.get_span_context())
        operation = _OPERATIONS.get(node.kind, str(node.kind))
        return self._tracer.start_span(
            # A question is named after its text.
            operation if node.kind is NodeKind.HUMAN else f"{operation} {node.name}",
            above,
            SpanKind.CLIENT if node.kind is NodeKind.CALL else SpanKind.INTERNAL,
            {
                "gen_ai.operation.name": operation,
                "agentrt.call.id": call_id(program.run, node),
                "agentrt.program.id": program.run.id,
                "agentrt.scope": node.scope,
                **({"gen_ai.tool.name": node.name} if node.kind is NodeKind.TOOL else {}),
            },
            [Link(place) for place in before],
            program.ns(node.created_at),
        )


def _end(program: _ProgramSpans, span: Span, node: Node) -> None:
    span.set_attribute("agentrt.state", str(node.state))
    if node.report is not None:
        span.set_attributes(_named(node.report, _REPORTED))
        span.set_attribute("agentrt.path_s", node.path_s)
    if node.interrupt is not None:
        span.set_attribute("agentrt.attempts", node.interrupt.attempt)
    if node.state in (NodeState.FAILED, NodeState.EXPIRED):
        # The errors of a question quote its text.
        message = str(node.state) if node.kind is NodeKind.HUMAN else node.error
        span.set_status(Status(StatusCode.ERROR, message))
    assert node.ended_at is not None
    span.end(program.ns(node.ended_at))


def _named(report: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {_USAGE.get(name, f"agentrt.{name}"): getattr(report, name) for name in names}


def _first_line(error: BaseException | None) -> str:
    assert error is not None
    return f"{type(error).__name__}: {text_of(error)}".partition("\n")[0]


class TracedExecutor(ForwardingExecutor):
    """An executor that passes each call to ``inner``, with the headers of the call's parent span.
    A complete chat request (``request`` of `CallSpec`) is passed on without these headers.
    """

    def __init__(self, inner: Executor, tracer: ProgramTracer) -> None:
        super().__init__(inner)
        self.tracer = tracer

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        spec, models = call.spec, self.info.models
        model = display_name(spec.model or (models[0] if models else "llm"))
        headers = self.tracer.headers(call, model)
        if spec.rendered is not None or spec.sampling is not None:
            rendered = spec.rendered or RenderedCall()
            options = {**rendered.options, "trace_headers": headers}
            call = replace(call, spec=replace(spec, rendered=replace(rendered, options=options)))
        return self.inner.generate(call, stream=stream)


class RemoteParents:
    """ASGI middleware that makes the span in a request's headers (``traceparent``) the parent of
    the request's spans.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope.get("headers", ())}
        trace_headers = {
            name: headers[name].decode("latin-1") for name in _NAMES if name in headers
        }
        token = otel.attach(_PROPAGATOR.extract(trace_headers)) if trace_headers else None
        try:
            await self._app(scope, receive, send)
        finally:
            if token is not None:
                otel.detach(token)


@contextmanager
def traced_runtime(executor: Executor, endpoint: str, **options: Any) -> Iterator[Runtime]:
    """Yield a new `Runtime` with these ``options``, which the caller must open. The traces of its
    programs are sent to ``endpoint`` until the end of the ``with`` block. Raises the errors of
    `exported`.
    """
    registry = RunRegistry()
    with exported(endpoint) as provider:
        tracer = ProgramTracer(provider.get_tracer("agentrt"), registry)
        traced = TracedExecutor(executor, tracer)
        yield Runtime(traced, registry=registry, enter=tracer.enter, **options)


@contextmanager
def exported(endpoint: str) -> Iterator[TracerProvider]:
    """Open a tracer provider that sends spans to an OTLP ``endpoint``, and make it the default of
    this process. At the end of the block, the last spans are sent for at most `FLUSH_S` seconds.

    OpenTelemetry's SDK reads the sampler and the service's name from the environment. The protocol
    is gRPC, unless the environment sets ``OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`` to
    ``http/protobuf``. Raises `ConfigError` for another protocol, for an invalid proxy or
    certificate file, and for settings that OpenTelemetry's SDK or exporter refuses.
    """
    os.environ.setdefault("OTEL_SERVICE_NAME", "agentrt")
    exporter = _exporter(endpoint)
    try:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except ValueError as error:  # of a variable, such as OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=x
        raise ConfigError(
            f"traces cannot be made: {str(error).rstrip('.')}; check the variables that begin with "
            "OTEL_"
        ) from error
    trace.set_tracer_provider(provider)
    # Each engine sets a provider, too, and the SDK would warn about the second one.
    logging.getLogger(trace.__name__).setLevel(logging.ERROR)
    try:
        yield provider
    finally:
        # In a thread, because the SDK waits 30 s for a collector that does not answer, and cannot
        # be interrupted by a signal meanwhile.
        last = threading.Thread(target=provider.shutdown, name="agentrt/traces", daemon=True)
        last.start()
        last.join(FLUSH_S)
        if last.is_alive():
            _log.warning("the last spans could not be sent to %s", shown_url(endpoint))


def _exporter(endpoint: str) -> SpanExporter:
    proxy_for(endpoint)
    bypass_proxies(endpoint)
    protocol = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, "grpc")
    if protocol not in _CERTIFICATES:
        raise ConfigError(
            f"{OTEL_EXPORTER_OTLP_TRACES_PROTOCOL}={protocol!r} is not supported; set grpc or "
            "http/protobuf"
        )
    if (file := certificate_file(endpoint, *_CERTIFICATES[protocol])) is not None:
        os.environ[OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE] = file
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter(endpoint, insecure=not endpoint.startswith("https://"))
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as HTTPSpanExporter,
        )

        return HTTPSpanExporter(endpoint)
    except Exception as error:  # each variable of the library raises errors of its own
        raise ConfigError(
            f"traces cannot be sent to {shown_url(endpoint)}: {error}; check the variables that "
            "begin with OTEL_EXPORTER_OTLP"
        ) from error
