"""Keys are in no log, no answer, no event and no trace, whatever becomes of a request; nor does a
client write lines of its own into the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("vllm")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentrt.integrations.opentelemetry import ProgramTracer
from agentrt.request import Call
from agentrt.serving import observability
from agentrt.serving.programs.api import api as programs
from agentrt.serving.questions.api import api as questions
from tests.serving.local import MODEL, open_server

pytestmark = pytest.mark.engine

KEY, WRONG = "sk-agentrt-0123456789abcdef", "sk-agentrt-fedcba9876543210"
FORGED = "x\nERROR a line of the client's own"


class OneKey:
    """A `KeyCheck` of one key, which is an operator's."""

    def tenant_of(self, key: str) -> str | None:
        return "ann" if key == KEY else None

    def is_operator(self, tenant: str) -> bool:
        return True


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """All that is logged, however little it matters, with its tracebacks."""
    lines: list[str] = []
    whole, form = logging.getLogger(), logging.Formatter()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.extend(form.format(record).splitlines())

    handler, level = Kept(), whole.level
    whole.addHandler(handler)
    whole.setLevel(logging.DEBUG)
    yield lines
    whole.removeHandler(handler)
    whole.setLevel(level)


def failing(call: Call) -> str:
    raise ValueError("a bug")


async def test_keys_are_never_shown(logged: list[str]) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": FORGED}]}
    asked = [
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/chat/completions", {**chat, "model": FORGED}),
        ("POST", "/v1/chat/completions", {**chat, "n": "many"}),
        ("POST", f"/v1/programs/{'%0aERROR a line'}/runs", {"input": FORGED}),
        ("GET", "/v1/nothing%0aERROR a line", None),
        ("GET", "/metrics", None),
        ("GET", "/v1/runs", None),
        ("GET", "/v1/questions", None),
    ]
    headers = [
        {"authorization": f"Bearer {KEY}", "x-agentrt-session": KEY[::-1]},
        {"x-api-key": WRONG},
        {"authorization": f"Bearer {WRONG}"},
    ]
    told, statuses = [], set()
    apis = (programs, questions, observability.api)
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with open_server(failing, keys=OneKey(), apis=apis) as local:
        ProgramTracer(provider.get_tracer("tests"), local.runtime.registry)
        for own in headers:
            for method, path, body in asked:
                answer = await local.client.request(method, path, json=body, headers=own)
                statuses.add(answer.status_code)
                told += [answer.text, str(answer.headers)]
    assert {200, 401, 404, 500} <= statuses
    assert any("a bug" in line for line in logged), "nothing was heard of the log"
    traced = [span.to_json() for span in exporter.get_finished_spans()]
    assert any("a bug" in span for span in traced), "nothing was heard of the traces"
    everything = "\n".join([*told, *logged, *traced])
    assert KEY not in everything
    assert WRONG not in everything
    assert not [line for line in logged if line.startswith("ERROR a line")]
