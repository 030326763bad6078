"""Finished runs in a file, so that a long benchmark can be stopped and go on where it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from agentrt.errors import ConfigError
from agentrt.files import parse_json, read_text
from agentrt.lab.outcome import Summary
from agentrt.lab.runs.grid import RunResult, RunSpec

_MOST = 256 * 1024**2


class KeptRuns:
    """One JSON line per run; a run is found again by all that it was asked for, and ``made_with``.

    Without a file it keeps nothing. Raises `ConfigError` for a file that holds something else.
    """

    def __init__(self, path: Path | None, made_with: str) -> None:
        self._path = path
        self._made_with = made_with
        self._found: dict[str, dict[str, Summary]] = {}
        if path is not None:
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            for line in read_text(path, _MOST).splitlines():
                run = parse_json(line)
                self._found[run["key"]] = {
                    name: Summary(**values) for name, values in run["summaries"].items()
                }
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(
                f"--runs {str(path)!r} holds no runs of this command ({error}); name another file"
            ) from error

    def split(self, specs: Sequence[RunSpec]) -> tuple[list[RunResult], list[RunSpec]]:
        """The results that are there, and the runs that are still to be done."""
        done, left = [], []
        for spec in specs:
            found = self._found.get(self._key(spec))
            if found is None:
                left.append(spec)
            else:
                by_type = {name: one for name, one in found.items() if name}
                done.append(RunResult(spec, found[""], by_type))
        return done, left

    def keep(self, result: RunResult) -> None:
        if self._path is None:
            return
        summaries = {"": result.summary, **result.by_type}
        kept = {
            "key": self._key(result.spec),
            "run": f"{result.spec.setting} {result.spec.contender.name}",
            "summaries": {name: asdict(one) for name, one in summaries.items()},
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(kept)}\n")

    def _key(self, spec: RunSpec) -> str:
        return sha256(f"{self._made_with} {spec!r}".encode()).hexdigest()[:32]
