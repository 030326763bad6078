"""``benchmarks kills``: kills `agentrt run --journal` with a real engine at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import click
from tokenizers import Tokenizer

from agentrt import engines
from agentrt.cli import app
from agentrt.executors.base import Chunk
from agentrt.lab.commands.options import count_option, note, seed_option
from agentrt.program import Program
from agentrt.request import Call
from tests.doubles.tinymodel import tiny_model
from tests.journal.counting import asked_in, comparable, known_in
from tests.journal.killing import World, everything

FOLDER = "KILLS_FOLDER"
"""The environment variable for the folder with the ``model`` and the file ``happened``."""


class Written(Counter[str]):
    """A counter that also appends each counted name to a file, which survives a kill."""

    def __setitem__(self, name: str, times: int) -> None:
        super().__setitem__(name, times)
        with Path(os.environ[FOLDER], "happened").open("a") as out:
            out.write(f"{json.dumps(name)}\n")


WORLD = World(calls=Written(), tools=Written())


def made() -> Program:
    """Make the program. The file that the command runs calls this function."""
    return everything(WORLD, most=32)


class CountedEngine(engines.VLLMEngine):
    """A real engine that counts its calls in `WORLD`."""

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        tokenizer: Any = Tokenizer.from_file(f"{os.environ[FOLDER]}/model/tokenizer.json")
        text = tokenizer.decode(call.spec.prompt_token_ids or (), skip_special_tokens=False)
        WORLD.calls[asked_in(text, call)] += 1
        return super().generate(call, stream=stream)


@click.command()
@count_option("--kills", "Number of kills.", default=5)
@seed_option
def kills(kills: int, seed: int) -> int:
    """Kill 'agentrt run' with SIGKILL, run the same command again, and repeat this --kills times.

    The program has parallel calls, tools, a spawned program, a saved context and a question. Fails
    if a recorded step is done again, if a process does a step twice, or if a result differs from
    the result of a run without kills.
    """
    rng, counts = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="agentrt-kills-") as name:
        folder = Path(name)
        (folder / "p.py").write_text("from benchmarks.kills import made\n\nall_kinds = made()\n")
        tiny_model(folder / "model")
        expected, _ = _life(folder, "undisturbed")
        while counts["kills"] < kills:
            counts["programs"] += 1
            journal, result = f"killed-{counts['programs']}", None
            while result is None:
                recorded = set[str]().union(*known_in(folder / journal))
                dies = rng.randint(3, 12) if counts["kills"] < kills else 0
                result, done = _life(folder, journal, dies, rng.uniform(0, 0.3))
                again = len(recorded & set(done)) + len(done) - len(set(done))
                life = {"kills": int(result is None), "done": len(done), "done again": again}
                note(f"{journal}: {len(recorded)} steps were recorded; {life}")
                counts.update(life)
            counts["wrong results"] += comparable(result) != comparable(expected)
    click.echo(", ".join(f"{name}: {times}" for name, times in counts.items()))
    return int(counts["done again"] + counts["wrong results"] > 0)


def _life(folder: Path, journal: str, dies: int = 0, after_s: float = 0.0) -> tuple[Any, list[str]]:
    """Run the program once, and return its result and its steps. If ``dies`` is not 0, kill the
    program ``after_s`` seconds after that number of steps. The result of a killed program is None.
    """
    command = [sys.executable, "-m", "benchmarks.kills", "run", str(folder / "p.py"), "--json"]
    command += ["--input", "tea", "--human", "yes", "--model", str(folder / "model")]
    command += ["--journal", str(folder / journal), "--", "--dtype", "float32"]
    happened, out, log = (folder / name for name in ("happened", "out", "log"))
    happened.write_text("")
    with out.open("w") as stdout, log.open("w") as stderr:
        environment = {**os.environ, FOLDER: str(folder)}
        process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)
    while process.poll() is None:
        if dies and len(happened.read_text().splitlines()) >= dies:
            time.sleep(after_s)
            process.kill()
        time.sleep(0.002)
    done = [json.loads(line) for line in happened.read_text().splitlines()]
    if process.returncode == -signal.SIGKILL:
        return None, done
    if process.returncode != 0:
        raise click.ClickException(log.read_text()[-2000:])
    return json.loads(out.read_text().splitlines()[-1])["results"][0], done


if __name__ == "__main__":
    engines.VLLMEngine = CountedEngine  # type: ignore[misc]  # the command uses this class
    sys.exit(app.call(sys.argv[1:]))
