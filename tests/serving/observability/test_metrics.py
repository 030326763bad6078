"""Metrics: they agree with the registry's own reports, parse, and keep their labels bounded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from prometheus_client import Metric, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from agentrt import Context, program
from agentrt.request import CallReport
from agentrt.runtime.run import Run, RunRegistry, RunState
from agentrt.serving.observability.engines import EnginesView
from agentrt.serving.observability.metrics import Labels, gauges, of_tenant
from agentrt.serving.observability.program_log import ProgramLog, Renderer
from agentrt.tracking.scope import Scope
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.observability.story import TENANTS, TYPES, Deed, Story, deeds
from tests.serving.observability.test_routes import made_keys, served

Values = dict[tuple[str, str, str], float]


def parsed(text: str) -> dict[str, Values]:
    """The samples that have a tenant: by name, then by tenant, type and what else there is."""
    found: dict[str, Values] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            rest = {k: v for k, v in sample.labels.items() if k not in ("tenant", "type")}
            key = (sample.labels.get("tenant", ""), sample.labels.get("type", ""), str(rest or ""))
            found.setdefault(sample.name, {})[key] = sample.value
    return found


def summed(runs: list[Run], field: str) -> Values:
    sums: Counter[tuple[str, str, str]] = Counter()
    for run in runs:
        sums[run.row.tenant, run.type, ""] += getattr(run.report(0), field)
    return {key: value for key, value in sums.items() if value}


@settings(max_examples=25, deadline=None)
@given(deeds)
def test_metrics_agree_with_the_reports_of_all_runs(told: list[Deed]) -> None:
    """1. Counters, also of cancelled programs whose calls ended after them. 2. Histograms, and the
    gauge of live programs. 3. A tenant's metrics are its own, and all of them.
    """
    story = Story()
    story.tell(told)
    log = story.log
    values = parsed(generate_latest(log.metrics.registry).decode())
    for name, field in {
        "agentrt_calls_total": "calls",
        "agentrt_preemptions_total": "preemptions",
        "agentrt_prompt_tokens_total": "prompt_tokens",
        "agentrt_cached_tokens_total": "cached_tokens",
        "agentrt_output_tokens_total": "output_tokens",
        "agentrt_service_seconds_total": "service_s",
        "agentrt_waiting_seconds_total": "waiting_s",
    }.items():
        counted = {key: value for key, value in values.get(name, {}).items() if value}
        assert counted == pytest.approx(summed(story.runs, field)), name
    ended = [run for run in story.runs if run.state is not RunState.RUNNING]
    by_type = Counter((run.row.tenant, run.type, "") for run in ended)
    assert values.get("agentrt_program_latency_seconds_count", {}) == by_type
    walls = summed(ended, "wall_s")
    latency = values.get("agentrt_program_latency_seconds_sum", {})
    assert {key: value for key, value in latency.items() if value} == pytest.approx(walls)
    states = Counter((r.row.tenant, r.type, str({"state": str(r.state)})) for r in ended)
    assert values.get("agentrt_programs_ended_total", {}) == states
    render = Renderer(log, EnginesView(), None)
    live = next(gauges(log.of(None), render.view, render.now, render.sees, log.metrics.labels))
    assert sum(sample.value for sample in live.samples) == len(story.registry.runs)
    for tenant in TENANTS:
        own = [m for m in of_tenant(log.metrics.registry.collect(), tenant) if m.samples]
        samples = [sample for metric in own for sample in metric.samples]
        assert {sample.labels["tenant"] for sample in samples} <= {tenant}
        names = {name for name, of in values.items() if any(key[0] == tenant for key in of)}
        assert {sample.name for sample in samples} == names


def test_names_of_clients_add_no_labels() -> None:
    labels = Labels(tenants=2, types=2)
    assert labels.of("a", "x") == ("a", "x")
    assert labels.of("b", "x") == ("b", "x")
    assert labels.of("c", "x") == ("other", "other")
    assert labels.of("a", "y") == ("a", "y")
    assert labels.of("a", "z") == ("a", "other")
    assert labels.of("a", "x") == ("a", "x")
    assert labels.of("other", "x") == ("other", "other")
    assert labels.of("b", "other") == ("b", "other")


@pytest.mark.parametrize("reader", ["bob", "other"])
def test_a_tenant_without_a_label_of_its_own_sees_no_sums_of_other_tenants(reader: str) -> None:
    log = ProgramLog(RunRegistry())
    log.metrics.labels = Labels(tenants=1)
    log.open()
    for tenant in ("ann", "bob", "carl"):
        log.registry.close(log.registry.open("agent", tenant=tenant), RunState.DONE)
    metrics = [*log.metrics.registry.collect()]
    labels = {sample.labels["tenant"] for metric in metrics for sample in metric.samples}
    assert labels == {"ann", "other"}
    assert [sample for metric in of_tenant(metrics, reader) for sample in metric.samples] == []


def test_a_type_is_bound_in_the_metrics_of_many_programs() -> None:
    log = ProgramLog(RunRegistry())
    log.metrics.labels = Labels(types=3)
    log.open()
    for number in range(50):
        run = log.registry.open(f"type{number}")
        log.registry.close(run, RunState.DONE)
    values = parsed(generate_latest(log.metrics.registry).decode())
    counts = {key[1]: n for key, n in values["agentrt_program_latency_seconds_count"].items()}
    assert counts == {"type0": 1, "type1": 1, "type2": 1, "other": 47}


def test_a_type_that_became_known_late_is_the_label() -> None:
    log = ProgramLog(RunRegistry())
    log.open()
    run = log.registry.open("?")
    log.registry.rename(run, "agent")
    scope = Scope(run, "agent")
    node = log.registry.begin_call(run, scope, "llm")
    log.registry.end_call(run, scope, node, CallReport(cached_tokens=3, prompt_tokens=9))
    values = parsed(generate_latest(log.metrics.registry).decode())
    assert values["agentrt_prefix_hits_total"] == {("default", "agent", ""): 1}


def test_the_number_of_kept_ended_programs_is_limited() -> None:
    """Also where their calls never end."""
    log = ProgramLog(RunRegistry(), kept=10)
    log.open()
    for _ in range(40):
        run = log.registry.open(TYPES[0])
        log.registry.begin_call(run, Scope(run, run.type), "llm")
        log.registry.close(run, RunState.CANCELLED)
    assert (len(log.live), len(log.ended)) == (0, 10)
    assert len(log.metrics._counted) == 10


@program
async def thrice(ctx: Context) -> None:
    for _ in range(3):
        await ctx.llm("one")


class Counting(ScriptedExecutor):
    """Counts its calls as an engine does."""

    async def metrics(self) -> Sequence[Metric]:
        counter = CounterMetricFamily("vllm:requests", "Calls.", labels=("engine",))
        counter.add_metric(("0",), len(self.calls))
        return (counter,)


async def test_metrics_of_engines_are_visible_only_to_the_operator(tmp_path: Path) -> None:
    keys, (ann, root) = made_keys(tmp_path, "ann", "root", operator="root")
    async with served(Counting(), keys) as at:
        await at.runtime.start(thrice, tenant="ann").wait()
        everything, own = [(await at.get("/metrics", key)).text for key in (root, ann)]
        assert 'vllm:requests_total{engine="0"} 3.0' in everything
        assert "\nprocess_resident_memory_bytes " in everything
        assert not re.search("vllm:|process_", own)
