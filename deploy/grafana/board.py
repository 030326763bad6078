"""Write Grafana's board of agentrt to agentrt.json, beside this file.

The panels use only metrics that docs/monitoring.md lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders.common import StackingConfig
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef

FILE = Path(__file__).with_name("agentrt.json")
WIDTH, HEIGHT = 8, 8
"""Width and height of a panel, on a grid of 24 columns."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel: its title, its unit, and its queries in PromQL, by their legends. ``stacked`` says
    that the values are parts of a whole.
    """

    title: str
    unit: str
    queries: dict[str, str]
    stacked: bool = False


def rate(name: str, *labels: str) -> str:
    """Return a query for the increase of a counter per second, by ``labels``. Without labels, the
    result is 0 for a counter that has no samples.
    """
    if labels:
        return f"sum by ({', '.join(labels)}) (rate({name}[$__rate_interval]))"
    return f"(sum(rate({name}[$__rate_interval])) or vector(0))"


def quantiles(name: str) -> dict[str, str]:
    """Return queries for the median and the 95th percentile of a histogram, by their legends."""
    return {
        f"p{percent}": f"histogram_quantile({percent / 100}, {rate(f'{name}_bucket', 'le')})"
        for percent in (50, 95)
    }


CHARTS = (
    Chart("Programs", "none", {"{{state}}": "sum by (state) (agentrt_programs)"}, stacked=True),
    Chart(
        "Waiting programs, by reason",
        "none",
        {"{{reason}}": "sum by (reason) (agentrt_waiting_programs)"},
        stacked=True,
    ),
    Chart("Programs that end", "ops", {"{{state}}": rate("agentrt_programs_ended_total", "state")}),
    Chart(
        "Calls by queue level",
        "none",
        {
            "{{level}} queued": "sum by (level) (agentrt_queued_calls)",
            "{{level}} running": "sum by (level) (agentrt_running_calls)",
        },
        stacked=True,
    ),
    Chart(
        "KV cache in use",
        "percentunit",
        {"{{replica}}": "agentrt_kv_used_blocks / agentrt_kv_blocks"},
    ),
    Chart(
        "Prompt tokens found in the cache",
        "percentunit",
        {"hits": f"{rate('agentrt_cached_tokens_total')} / {rate('agentrt_prompt_tokens_total')}"},
    ),
    Chart(
        "Preemptions",
        "ops",
        {
            "calls preempted": rate("agentrt_preemptions_total"),
            "tokens computed again": rate("agentrt_recomputed_tokens_total"),
        },
    ),
    Chart("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
    Chart("Time per output token", "s", quantiles("vllm:request_time_per_output_token_seconds")),
    Chart("Time of a program", "s", quantiles("agentrt_program_latency_seconds")),
    Chart(
        "Tenants: seconds of service per second",
        "none",
        {"{{tenant}}": rate("agentrt_service_seconds_total", "tenant")},
        stacked=True,
    ),
    Chart(
        "Tenants: seconds of waiting per second",
        "none",
        {"{{tenant}}": rate("agentrt_waiting_seconds_total", "tenant")},
        stacked=True,
    ),
)


def panel(chart: Chart) -> Panel:
    """Return the panel of a chart. The board's reader chooses the data source."""
    made = Panel().title(chart.title).unit(chart.unit).min(0).span(WIDTH).height(HEIGHT)
    made.datasource(DataSourceRef("prometheus", "${datasource}"))
    for letter, (legend, query) in zip("AB", chart.queries.items(), strict=False):
        made.with_target(Dataquery().ref_id(letter).expr(query).legend_format(legend))
    if chart.stacked:
        made.fill_opacity(30).stacking(StackingConfig().mode(StackingMode.NORMAL))
    return made


def board() -> str:
    """Return the board as the JSON that Grafana reads."""
    made = Dashboard("agentrt").uid("agentrt").tags(["agentrt", "vllm"])
    made.time("now-1h", "now").refresh("10s").readonly()
    made.with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for number, chart in enumerate(CHARTS, 1):
        made.with_panel(panel(chart).id(number))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


if __name__ == "__main__":
    FILE.write_text(board(), encoding="utf-8")
