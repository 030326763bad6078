"""``agentrt bench adapter``: what following LangGraph costs it."""

from __future__ import annotations

import json
from typing import Any

import click

from agentrt.lab.commands.bench.values import note


@click.command()
@click.option("--steps", type=click.IntRange(min=10), default=1000, show_default=True, metavar="N")
@click.option("--calls", type=click.IntRange(min=10), default=300, show_default=True, metavar="N")
@click.option("--repeat", type=click.IntRange(min=1), default=7, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print the medians as one JSON line.")
def adapter(**options: Any) -> None:
    """What agentrt adds to LangGraph's own cost, per graph step and per LLM call.

    Needs no model: graphs without one, with and without the follower, and graphs that call
    LangChain's fake chat model, or ChatAgentRT on a scripted executor. They take turns.
    """
    import asyncio

    from agentrt.lab.bench.adapter import measure, medians, table

    samples = asyncio.run(measure(options["steps"], options["calls"], options["repeat"], note))
    click.echo(table(samples))
    if options["as_json"]:
        click.echo(json.dumps(medians(samples)))
