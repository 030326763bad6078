"""``agentrt simulate``: policies in virtual time, without a model; a study loads when it runs."""

from __future__ import annotations

from importlib import import_module

import click

_EPILOG = """\b
Examples:
  agentrt simulate figure 2 --policy plas
  agentrt simulate run --workload mixed --load 0.95 --policy mlfq atlas srpt
  agentrt simulate sweep --workload chat lats --load 0.8 0.95 b0.8 --seeds 3 --plot curves.png
  agentrt simulate routing --workload chat graphs8 --depth virtual --replicas 4
"""
STUDIES = {
    "figure": ("figure", "Reproduce a figure of the paper (Agentix, arXiv 2502.13965)."),
    "routing": ("routing", "Compare routers over several simulated engines."),
    "run": ("run", "Simulate policies under one setting, on the same programs."),
    "sweep": ("sweep", "Simulate every policy under every load on every workload."),
}
"""Studies: name → the module of `agentrt.lab.studies` with a command of that name, and a line."""


class StudyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(STUDIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in STUDIES:
            return None
        module = import_module(f"agentrt.lab.studies.{STUDIES[cmd_name][0]}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in STUDIES.items()])


@click.group(cls=StudyGroup, epilog=_EPILOG)
def simulate() -> None:
    """Study policies in virtual time, without a model.

    The queues, the process table and the policies are those of the engine. What is
    simulated is the engine: batch slots, and steps that all take the same time. With
    --depth virtual, vLLM's own scheduler runs, and only its model is left out.
    """
