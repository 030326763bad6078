"""Hooks of the site, which make the reference and the diagram of the import layers from the
code.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel

from agentrt import engines
from agentrt.cli.app import app
from agentrt.cli.options import RunOption
from agentrt.integrations.mqtt.messages import (
    Announcement,
    AnswerMessage,
    AnswerOutcome,
    CallMessage,
    Cancel,
    ReplyMessage,
    ToolAnswer,
)

ROOT = Path(__file__).resolve().parents[2]
PYTHON = {
    "programs": ("Programs", "agentrt"),
    "llm-options": ("Options of a call", "agentrt.program.options"),
    "contexts": ("Contexts", "agentrt.contexts"),
    "tools": ("Tools", "agentrt.interrupts"),
    "errors": ("Errors", "agentrt.errors"),
    "graph": ("The graph of a program", "agentrt.graph"),
    "journal": ("Journals", "agentrt.journal"),
    "engine": ("The embedded engine", "agentrt.executors.vllm.engine"),
    "transformers": ("Transformers' models", "agentrt.executors.transformers"),
    "endpoint": ("An endpoint of OpenAI's API", "agentrt.executors.openai"),
    "executor": ("An executor of your own", "agentrt.executors.base"),
    "replicas": ("Replicas", "agentrt.executors.replicas"),
    "langchain": ("LangChain", "agentrt.integrations.langchain"),
    "langgraph": ("LangGraph", "agentrt.integrations.langgraph"),
    "policies": ("Policies", "agentrt.scheduler.policies"),
    "routers": ("Routers", "agentrt.router"),
}
"""For each page of the Python reference, its title and the module that it shows."""

SETTINGS = (
    "agentrt.scheduler.config.SchedulerConfig",
    "agentrt.executors.vllm.options.EngineOptions",
    "agentrt.journal.JournalOptions",
    "agentrt.serving.tenants.limits.Limits",
)

MESSAGES: dict[str, type[BaseModel]] = {
    "An announcement": Announcement,
    "A call": CallMessage,
    "A cancellation": Cancel,
    "A reply": ReplyMessage,
    "An answer to a question of a tool": ToolAnswer,
    "An answer to an open question": AnswerMessage,
    "The reply to such an answer": AnswerOutcome,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    pages = {
        **{f"python/{name}": python_page(*told) for name, told in PYTHON.items()},
        **{f"command-line/{name}": text for name, text in command_pages().items()},
        "settings": "\n\n".join(["# Settings", *map(shown, SETTINGS)]),
        "mqtt-messages": "\n\n".join(["# Messages over MQTT", *schemas()]),
    }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the diagram of the layers to the page on the architecture."""
    if page.file.src_uri != "architecture.md":
        return markdown
    return markdown.replace("\n## How a call runs", f"\n{layers()}\n\n## How a call runs")


def layers() -> str:
    """Return a diagram of the packages in their layers, as the import contract lists them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [layered] = [
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["agentrt"]
    ]
    names = (", ".join(re.findall(r"\w+", row)) for row in layered["layers"])
    boxes = " --> ".join(f'l{number}["{row}"]' for number, row in enumerate(names))
    close = '%%{init: {"flowchart": {"rankSpacing": 20, "padding": 8}}}%%'
    picture = f"```mermaid\n{close}\nflowchart TD\n    {boxes}\n```"
    return f"A package imports only from the packages below it:\n\n{picture}"


def shown(name: str) -> str:
    """Return the directive that mkdocstrings replaces by the docstrings of a class or a module."""
    return f"::: {name}\n"


def python_page(title: str, module: str) -> str:
    """Return a page with the public names of a module. Its head says from where users import the
    names: engines from `agentrt.engines`.
    """
    homes = {name: getattr(engines, name).__module__ for name in engines.__all__}
    names = [name for name, home in homes.items() if f"{home}.".startswith(f"{module}.")]
    place = f"from agentrt.engines import {', '.join(names)}" if names else module
    options = "    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"
    return f"# {title}\n\n`{place}`\n\n{shown(module)}{options}"


def schemas() -> Iterator[str]:
    """Yield the JSON schema of each message of the MQTT protocol, under a heading."""
    for name, model in MESSAGES.items():
        yield f"## {name}\n\n```json\n{json.dumps(model.model_json_schema(), indent=2)}\n```"


def command_pages() -> dict[str, str]:
    """Return a page for each command, with its subcommands."""
    context = click.Context(app, info_name="agentrt")
    return {
        name: "\n\n".join(described(app.get_command(context, name), context, name, "#"))
        for name in app.list_commands(context)
    }


def described(
    command: click.Command | None, parent: click.Context, name: str, heading: str
) -> Iterator[str]:
    """Yield the parts of a command's description: its usage, its help text, its options and its
    subcommands.
    """
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{heading} {context.command_path}"
    yield f"```text\n{' '.join(command.get_usage(context).split()).removeprefix('Usage: ')}\n```"
    yield from paragraphs(command.help or "")
    for group, records in options_of(command, context).items():
        yield f"**{group}**"
        rows = (f"<dt><code>{escape(a)}</code></dt><dd>{escape(b)}</dd>" for a, b in records)
        yield f'<dl class="options">{"".join(rows)}</dl>'
    if isinstance(command, click.Group):
        for subname in command.list_commands(context):
            yield from described(command.get_command(context, subname), context, subname, "##")


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text as Markdown. A paragraph that begins with a backspace, by
    which click keeps its line breaks, becomes a block of code.
    """
    for part in re.split(r"\n\s*\n", text.strip().replace("\f", "")):
        if part.lstrip().startswith("\b"):
            yield "```text\n" + part.lstrip().removeprefix("\b\n") + "\n```"
        else:
            yield f"<p>{escape(part)}</p>"


def options_of(
    command: click.Command, context: click.Context
) -> Mapping[str, list[tuple[str, str]]]:
    """Return a command's options with their help texts, under the headings of its ``--help``."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is not None and record[1] and "--help" not in record[0]:
            group = option.group if isinstance(option, RunOption) else "Options"
            groups.setdefault(group, []).append(record)
    return groups
