"""Programs as OpenTelemetry traces: a span for each program, call, tool, question and event.

What the semantic conventions for generative AI name has their names, the rest begins with
``agentrt.``. A span is linked to those of the nodes that had to end before it: the edges of the
execution DAG. The engine's own spans are below those of its calls.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
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

from agentrt.errors import ConfigError
from agentrt.executors.base import Chunk, Executor, ForwardingExecutor
from agentrt.executors.info import display_name
from agentrt.graph import Node, NodeKind, NodeState
from agentrt.proxies import bypass_proxies, proxy_for
from agentrt.request import Call, CallReport, RenderedCall, Usage
from agentrt.runtime import Runtime
from agentrt.runtime.events import Event, NodeEnded, NodeStarted, ProgramEnded, ProgramStarted
from agentrt.runtime.registry import RunRegistry, call_id
from agentrt.runtime.run import Run, RunState

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_PROPAGATOR = TraceContextTextMapPropagator()
_NAMES = ("traceparent", "tracestate")
_OPERATIONS = {NodeKind.CALL: "chat", NodeKind.TOOL: "execute_tool"}
_USAGE = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
"""Fields of a report that the conventions have names for."""
_REPORTED = tuple(one.name for one in fields(CallReport))
_TOTALS = ("calls", "service_s", "waiting_s", "interrupt_s", "critical_path_s")
_USED = tuple(one.name for one in fields(Usage))


@dataclass(slots=True)
class _Program:
    """A program's span, those of its open nodes, and where those of all its nodes are: a span
    itself is let go at its end, however long its program lives.
    """

    run: Run
    span: Span
    epoch_s: float
    open: dict[int, Span] = field(default_factory=dict)
    places: dict[int, SpanContext] = field(default_factory=dict)

    def ns(self, at: float) -> int:
        """A time of the registry's clock since 1970, by the clock at the program's start."""
        return round((self.epoch_s + at) * 1e9)


class ProgramTracer:
    """Makes the spans of the programs of ``registry``, by ``tracer``.

    A program's span is below the one in whose context it was started, and a node's is below the
    one in whose context it was emitted: the program's own, one that its code has opened, or
    that of a client elsewhere, and then it is linked to the program's.
    """

    def __init__(self, tracer: Tracer, registry: RunRegistry) -> None:
        self._tracer = tracer
        self._registry = registry
        self._live: dict[str, _Program] = {}
        registry.listen(self._saw)

    def enter(self, run: Run) -> None:
        """From here on the context is that of the program's code."""
        otel.attach(trace.set_span_in_context(self._live[run.id].span))

    def headers(self, call: Call, model: str) -> dict[str, str]:
        """What tells an engine which span is above its own; a call's span hears of its model."""
        headers: dict[str, str] = {}
        if (live := self._live.get(call.program_id)) is not None:
            span = live.open[int(call.call_id.removeprefix(f"{call.program_id}/"))]
            span.update_name(f"chat {model}")
            span.set_attribute("gen_ai.request.model", model)
            _PROPAGATOR.inject(headers, trace.set_span_in_context(span))
        return headers

    def _saw(self, event: Event) -> None:
        """Under the registry's lock, in the context of whoever did it."""
        live = self._live.get(event.program_id)
        match event:
            case ProgramStarted():
                self._started(self._registry.runs[event.program_id])
            case NodeStarted(node=node) if live is not None:
                span = live.open[node.id] = self._node(live, node)
                live.places[node.id] = span.get_span_context()
            case NodeEnded(node=node) if live is not None:
                _end(live, live.open.pop(node.id), node)
            case ProgramEnded() if live is not None:
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
        self._live[run.id] = _Program(run, span, epoch_s)

    def _ended(self, program: _Program, at: float) -> None:
        run, span = program.run, program.span
        for key, open_span in program.open.items():  # their nodes were cancelled with it
            _end(program, open_span, run.dag.node(key))
        report = run.report(at)
        span.update_name(f"invoke_agent {run.type}")  # it may have become known late
        span.set_attribute("gen_ai.agent.name", run.type)
        span.set_attribute("agentrt.state", str(run.state))
        span.set_attributes(_named(report, (*_USED, *_TOTALS)))
        if run.state is RunState.FAILED:
            span.set_status(Status(StatusCode.ERROR, _first_line(run.error)))
        span.end(program.ns(at))

    def _node(self, program: _Program, node: Node) -> Span:
        above, current = trace.set_span_in_context(program.span), trace.get_current_span()
        before = [program.places[parent] for parent in node.parents]
        if current.get_span_context().is_valid:
            above = otel.get_current()
            if current.get_span_context().is_remote:
                before.append(program.span.get_span_context())
        operation = _OPERATIONS.get(node.kind, str(node.kind))
        return self._tracer.start_span(
            f"{operation} {node.name}",
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


def _end(program: _Program, span: Span, node: Node) -> None:
    span.set_attribute("agentrt.state", str(node.state))
    if node.report is not None:
        span.set_attributes(_named(node.report, _REPORTED))
        span.set_attribute("agentrt.path_s", node.path_s)
    if node.interrupt is not None:
        span.set_attribute("agentrt.attempts", node.interrupt.attempt)
    if node.state in (NodeState.FAILED, NodeState.EXPIRED):
        span.set_status(Status(StatusCode.ERROR, node.error))
    assert node.ended_at is not None
    span.end(program.ns(node.ended_at))


def _named(report: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {_USAGE.get(name, f"agentrt.{name}"): getattr(report, name) for name in names}


def _first_line(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


class TracedExecutor(ForwardingExecutor):
    """Tells ``inner`` which span is above those that it makes for a call."""

    def __init__(self, inner: Executor, tracer: ProgramTracer) -> None:
        super().__init__(inner)
        self.tracer = tracer

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        spec, models = call.spec, self.info.models
        model = display_name(spec.model or (models[0] if models else "llm"))
        headers = self.tracer.headers(call, model)
        if spec.rendered is not None or spec.sampling is not None:
            made = spec.rendered or RenderedCall({}, None)
            options = {**made.options, "trace_headers": headers}
            call = replace(call, spec=replace(spec, rendered=replace(made, options=options)))
        return self.inner.generate(call, stream=stream)


class RemoteParents:
    """The spans of a request are below those that its headers name (``traceparent``)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope.get("headers", ())}
        found = {name: headers[name].decode("latin-1") for name in _NAMES if name in headers}
        token = otel.attach(_PROPAGATOR.extract(found)) if found else None
        try:
            await self._app(scope, receive, send)
        finally:
            if token is not None:
                otel.detach(token)


@contextmanager
def traced_runtime(executor: Executor, endpoint: str, **options: Any) -> Iterator[Runtime]:
    """A `Runtime` with these ``options``, the traces of whose programs go to ``endpoint``: see
    `exported`.
    """
    registry = RunRegistry()
    with exported(endpoint) as provider:
        tracer = ProgramTracer(provider.get_tracer("agentrt"), registry)
        traced = TracedExecutor(executor, tracer)
        yield Runtime(traced, registry=registry, enter=tracer.enter, **options)


@contextmanager
def exported(endpoint: str) -> Iterator[TracerProvider]:
    """Where spans go that are sent to an OTLP ``endpoint``, the default of this process, too.

    The environment decides what OpenTelemetry's SDK reads there: the protocol (gRPC, unless
    ``OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`` is ``http/protobuf``), the sampler, the service's name.
    Raises `ConfigError` for another protocol, and for a proxy that cannot be used.
    """
    os.environ.setdefault("OTEL_SERVICE_NAME", "agentrt")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint)))
    trace.set_tracer_provider(provider)
    # Each engine sets one of its own, too, and the SDK warns about the second.
    logging.getLogger(trace.__name__).setLevel(logging.ERROR)
    try:
        yield provider
    finally:
        provider.shutdown()


def _exporter(endpoint: str) -> SpanExporter:
    proxy_for(endpoint)
    bypass_proxies(endpoint)
    protocol = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint, insecure=not endpoint.startswith("https://"))
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as HTTPSpanExporter,
        )

        return HTTPSpanExporter(endpoint)
    raise ConfigError(
        f"{OTEL_EXPORTER_OTLP_TRACES_PROTOCOL}={protocol!r}: give grpc or http/protobuf"
    )
