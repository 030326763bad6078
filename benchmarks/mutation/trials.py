"""Tries all mutants, or the mutants that the command line names by patterns, except mutants that
were killed already.

mutmut makes the mutants. mutmut's own run starts pytest for each mutant, and runs the tests in any
order; this takes hours, and the trials here take minutes. Here, children are forked from one
process that has collected the tests. Each child replaces the code of one function, and runs the
tests that reach the function, until a test fails. Tests that are fast, or that killed other mutants
of the function, run first. The verdicts are written where mutmut keeps its own verdicts, so that
`mutmut show NAME` and `benchmarks.mutation.command` read them.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol
from mutmut.configuration import config
from mutmut.mutation import trampoline

from benchmarks.mutation.command import KILLED, MUTANTS, SURVIVED, TIMED_OUT, UNTESTED

CHILDREN = 2
OUT_OF_TIME = {-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL}
MEMORY = 8 << 30
mutmut: Any = import_module("mutmut.__main__")
RECORD = (MUTANTS / "tests.json").absolute()


Function = Callable[..., Any]


def function_of(mutant: str) -> str:
    """Return the common name of a function's mutants."""
    return mutant.partition("__mutmut_")[0]


class Functions:
    """A registry of the functions with their mutants. It replaces mutmut's trampoline."""

    def __init__(self, called: set[int] | None = None) -> None:
        self.known: list[tuple[Function, Mapping[str, Any]]] = []
        self.called = called

    def take(
        self, mutants: Mapping[str, Any], is_classmethod: bool = False
    ) -> Callable[[Function], Function]:
        """Return a decorator that registers a function with its ``mutants``. It is used in place of
        mutmut's own decorator.
        """

        def keep(function: Function) -> Function:
            self.known.append((function, mutants))
            if (called := self.called) is None:
                return function

            @wraps(function)
            def noted(*args: Any, **kwargs: Any) -> Any:
                called.add(id(mutants))
                return function(*args, **kwargs)

            return noted

        return keep

    def mutants(self) -> dict[str, tuple[Any, Any, int]]:
        """Return, for each mutant's name, the function, the mutant, and the id of the dictionary
        that holds the mutants of the function.
        """
        return {
            f"{function.__module__}.{name}": (
                function,
                getattr(mutant, "__func__", mutant),
                id(mutants),
            )
            for function, mutants in self.known
            for name, mutant in mutants.items()
            if name != "_mutmut_orig"
        }


class Recorder:
    """A plug-in that records the CPU seconds of each test, and the functions that the test
    calls.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.called: dict[int, set[str]] = defaultdict(set)
        self.now: set[int] = set()
        self.functions = Functions(self.now)

    def pytest_runtest_logstart(self) -> None:
        self.now.clear()
        self.began = time.process_time()

    def pytest_runtest_makereport(self, item: pytest.Item) -> None:
        self.seconds[item.nodeid] = time.process_time() - self.began
        for function in self.now:
            self.called[function].add(item.nodeid)

    def pytest_sessionfinish(self) -> None:
        reached = {function_of(name): at for name, (*_, at) in self.functions.mutants().items()}
        tests = {name: sorted(self.called[at]) for name, at in reached.items()}
        RECORD.write_text(json.dumps({"seconds": self.seconds, "tests": tests}), "utf-8")


class Trials:
    """A plug-in that tries the mutants instead of running all tests once."""

    def __init__(self, mutants: Sequence[tuple[Any, str]]) -> None:
        self.todo, self.functions = mutants, Functions()
        self.killers: dict[str, Counter[str]] = defaultdict(Counter)
        self.under_way: dict[int, tuple[Any, str, int]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        record = json.loads(RECORD.read_text("utf-8"))
        self.seconds, self.tests = record["seconds"], record["tests"]
        self.items = {item.nodeid: item for item in session.items}
        mutants = self.functions.mutants()
        gc.collect()
        gc.freeze()
        for number, (data, name) in enumerate(self.todo, 1):
            _say(f"\r{number} of {len(self.todo)} ")
            self.start(data, name, *mutants[name][:2])
        while self.under_way:
            self.finish()
        return True

    def start(self, data: Any, name: str, function: Any, mutant: Any) -> None:
        """Try a mutant in a process of its own, as soon as there is room for a process."""
        killers, tests = self.killers[function_of(name)], self.tests[function_of(name)]
        tests = sorted(tests, key=lambda test: self.seconds[test] / (1 + 3 * killers[test]))
        if not tests:
            judge(data, name, UNTESTED)
            return
        if len(self.under_way) >= CHILDREN:
            self.finish()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.child(function, mutant, tests, write)
        os.close(write)
        self.under_way[pid] = (data, name, read)

    def finish(self) -> None:
        """Wait for the end of a trial, and record the verdict."""
        pid, status = os.wait()
        data, name, read = self.under_way.pop(pid)
        with open(read, encoding="utf-8") as pipe:  # noqa: PTH123  # a descriptor
            self.killers[function_of(name)][pipe.read()] += 1
        code = os.waitstatus_to_exitcode(status)
        judge(data, name, TIMED_OUT if code in OUT_OF_TIME else code)

    def child(self, function: Any, mutant: Any, tests: Sequence[str], write: int) -> NoReturn:
        """Replace the function by the mutant, and run the tests until a test fails."""
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        code = UNTESTED
        try:
            function.__code__ = mutant.__code__
            function.__defaults__ = mutant.__defaults__
            function.__kwdefaults__ = mutant.__kwdefaults__
            code = KILLED
            killer = self.first_failed([self.items[test] for test in tests])
            if killer is None:
                code = SURVIVED
            else:
                os.write(write, killer.encode())
        finally:
            os._exit(code)

    def first_failed(self, items: Sequence[pytest.Item]) -> str | None:
        """Return the test that fails first; None if all pass. A test that takes too long ends the
        process.
        """
        for item, following in zip(items, [*items[1:], None], strict=True):
            limit = 5 + 4 * int(self.seconds[item.nodeid])
            cpu = int(time.process_time()) + limit
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, resource.RLIM_INFINITY))
            signal.alarm(60 + 40 * limit)  # for a test that sleeps; the machine may be busy
            reports = runtestprotocol(item, log=False, nextitem=following)
            if any(report.failed for report in reports):
                return item.nodeid
        return None


def _say(text: str) -> None:
    assert sys.__stderr__ is not None
    sys.__stderr__.write(text)
    sys.__stderr__.flush()


def judge(data: Any, name: str, code: int) -> None:
    """Record the exit code of a trial."""
    data.exit_code_by_key[name] = code
    data.save()


def make_mutants() -> None:
    """Write the copy of the code with all mutants."""
    MUTANTS.mkdir(exist_ok=True)
    with mutmut.CatchOutput():
        mutmut.copy_src_dir()
        mutmut.copy_also_copy_files()
        mutmut.create_mutants(CHILDREN)


def chosen(patterns: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """Yield the mutants that the patterns name, or all mutants if there are no patterns, except
    mutants that were killed before.
    """
    for data in mutmut.collect_source_file_mutation_data(mutant_names=())[1].values():
        data.meta_path = data.meta_path.absolute()
        for name, code in data.exit_code_by_key.items():
            if code != KILLED and any(fnmatch(name, pattern) for pattern in patterns or ["*"]):
                yield data, name


def run(plugin: Recorder | Trials) -> int:
    """Run the tests against the mutated copy of the code (`MUTANTS`), with a plug-in, and return
    pytest's exit code.
    """
    settings = config()
    vars(trampoline)["wrap_in_trampoline"] = plugin.functions.take
    os.chdir(MUTANTS)
    sys.path.insert(0, str(Path.cwd()))
    ours = settings.pytest_add_cli_args + settings.pytest_add_cli_args_test_selection
    return pytest.main(["--rootdir=.", "-q", "-x", "--tb=native", "--capture=sys", *ours], [plugin])


def main() -> None:
    """Try the mutants that the command line names."""
    make_mutants()
    pid = os.fork()
    if pid == 0:
        os._exit(run(Recorder()))
    if os.waitpid(pid, 0)[1]:
        sys.exit("the tests fail without a mutant")
    run(Trials(list(chosen(sys.argv[1:]))))


if __name__ == "__main__":
    main()
