"""What docs/tutorial.md shows works: its files run, its commands end well, its client is answered.

Only the engine is scripted.
"""

from __future__ import annotations

import asyncio
import gc
import io
import re
import shlex
import warnings
from pathlib import Path

import pytest

from agentrt import ToolCall
from agentrt.cli.app import call
from agentrt.cli.load import load_all
from agentrt.cli.serving import served_of
from agentrt.integrations.langchain.shared import close_all
from agentrt.request import Call
from agentrt.serving.langgraph import api as graphs
from agentrt.serving.programs.api import api as programs
from tests.doubles.scripted import ScriptedExecutor
from tests.pages import blocks, text_of
from tests.serving.local import open_server

PAGE = text_of("tutorial.md")
FILES = dict(
    re.findall(r"as `(\w+\.py)`:\n\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
)
CLIENT = blocks("tutorial.md")[2]
LINES = "".join(blocks("tutorial.md", "sh")).splitlines()

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("clean_imports")]


def says(asked: Call) -> str | ToolCall:
    """A model that uses the tool it is given, once."""
    chat = asked.spec.messages or ()
    if "weather" not in str(chat):
        return "So be it."
    return ToolCall("weather", {"city": "Paris"}) if len(chat) == 1 else "Rain."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder with the saved files."""
    monkeypatch.setattr("agentrt.engines.VLLMEngine", lambda options: ScriptedExecutor(says))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    for name, code in FILES.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    return tmp_path


def test_the_page_has_its_four_steps() -> None:
    assert list(FILES) == ["critic.py", "letters.py", "trip.py"]
    assert len(re.findall(r"^## \d\. ", PAGE, re.MULTILINE)) == 4
    assert [line.split()[1] for line in LINES] == ["run", "run", "run", "run", "serve", "run"]


def test_each_command_ends_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in LINES:
        if " run " in line:
            assert call(shlex.split(line)[1:]) == 0, capsys.readouterr().err
            out = capsys.readouterr().out
            assert ("Rain." if "trip.py" in line else "So be it.") in out
    drawn = (folder / "critic.mmd").read_text()
    assert drawn.count("subgraph") == 8
    edges = re.findall(r"(n\d)\S* --> (n\d)", PAGE)
    assert re.findall(r"p0(n\d) --> p0(n\d)", drawn) == edges
    assert (folder / "letters.db").exists()


@pytest.mark.usefixtures("folder")
async def test_the_client_reaches_the_model_the_graph_and_the_program() -> None:
    [line] = [line for line in LINES if " serve " in line]
    served = {
        name: one
        for target in shlex.split(line)[2:]
        for name, one in served_of(target, load_all(target)).items()
    }
    said: list[str] = []
    async with open_server(
        lambda asked: "So be it.", served=served, apis=(programs, graphs)
    ) as local:
        code = CLIENT.replace("http://127.0.0.1:8000", local.url)
        await asyncio.to_thread(exec, code, {"print": said.append})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect(1)  # the page's clients, which its script leaves open at its end
    close_all()
    assert said == ["So be it."] * 3
