"""``agentrt bench langgraph``: LangGraph agents on stock vLLM and on agentrt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from agentrt.lab.commands.bench.opened import opened
from agentrt.lab.commands.bench.values import note
from agentrt.lab.commands.simulate.options import ManyCommand, policy_option

if TYPE_CHECKING:
    from agentrt.executors.vllm.engine import VLLMEngine
    from agentrt.lab.bench.langgraph import LangGraphBench, Side
    from agentrt.lab.bench.stock import StockServer
    from agentrt.runtime import Runtime


@click.command(cls=ManyCommand)
@policy_option("atlas")
@click.option("--agents", type=click.IntRange(min=1), default=16, show_default=True, metavar="N")
@click.option(
    "--mix",
    type=click.Choice(["sized", "independent"]),
    default="sized",
    show_default=True,
    help="Whether agents of many turns have long ones, too.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--model", metavar="MODEL", help="A folder or a Hugging Face name.")
@click.option("--json", "as_json", is_flag=True, help="Print the medians as one JSON line.")
def langgraph(**options: Any) -> None:
    """LangGraph agents on stock vLLM and on agentrt, with nothing changed but the model.

    ReAct agents with two tools and courses of fixed, unequal lengths all arrive at once:
    through ChatOpenAI at vLLM's own server, and through ChatAgentRT at an embedded engine
    with the same options under each policy. The sides take turns, and use the same tokens.
    """
    from agentrt.cli.signals import Interrupts
    from agentrt.errors import ConfigError
    from agentrt.scheduler.policies import policy_class

    policies = options["policy"] or ("atlas",)
    for name in policies:
        policy_class(name)
    if find_spec("langchain_openai") is None:
        raise ConfigError("agentrt bench langgraph needs ChatOpenAI: pip install langchain-openai")
    measured = Interrupts(note).run(_measure(policies, options))
    click.echo(measured.table())
    if options["as_json"]:
        click.echo(json.dumps(measured.medians()))


async def _measure(policies: Sequence[str], options: dict[str, Any]) -> LangGraphBench:
    from agentrt.executors.vllm.engine import VLLMEngine
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.lab.bench.fixed import FixedLength
    from agentrt.lab.bench.langgraph import LangGraphBench
    from agentrt.lab.bench.stock import StockServer
    from agentrt.runtime import Runtime

    engine = VLLMEngine(EngineOptions(options["model"], options["max_num_seqs"]))
    runtime = Runtime(FixedLength(engine))
    async with opened(runtime) as log, StockServer(engine.options, engine.model) as server:
        note("loading stock vLLM's server")
        await server.start(log.collect)
        sides = [_stock(server), *(_ours(runtime, engine, name) for name in policies)]
        measured = LangGraphBench(sides, options["agents"], options["mix"], note)
        await measured.run(options["repeat"], options["seed"])
    return measured


def _stock(server: StockServer) -> Side:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    from agentrt.lab.bench.langgraph import STOCK, Side

    model = ChatOpenAI(
        model=server.NAME,
        base_url=server.base_url,
        api_key=SecretStr("none"),
        temperature=0,
        max_retries=0,
        extra_body={"ignore_eos": True},
    )
    return Side(STOCK, model, server.forget_prefixes, followed=False)


def _ours(runtime: Runtime, engine: VLLMEngine, policy: str) -> Side:
    from dataclasses import replace

    from agentrt.integrations.langchain import ChatAgentRT
    from agentrt.lab.bench.langgraph import Side

    config = replace(engine.options.scheduler, policy=policy)

    async def prepare() -> None:
        await engine.configure(config)
        await engine.forget_prefixes()

    return Side(f"agentrt, {policy}", ChatAgentRT(runtime=runtime), prepare)
