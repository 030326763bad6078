"""The base class of scheduling policies, which decide the priority of calls."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.queues import Priority, Promoter, Starvation
from agentrt.scheduler.state import EngineProgram, QueuedCall


class Policy(ABC):
    """A scheduling policy, which decides which calls run before others. It reads programs and
    calls, and must not change them.

    Subclass `AttainedService` and implement `level_service_s`, or implement `priority` and, if
    needed, `on_quantum_expired`. An instance serves one engine. Policies are pure and synchronous,
    and import only the standard library and `agentrt.scheduler`, because they are loaded in the
    engine core.

    - ``levelled``: False if the policy serves calls in the engine's own order, first come, first
      served. Then the engine's own queue is used, unless there is admission control.
    - ``starving``: True if waiting calls are promoted by the anti-starvation rule of Agentix.
    - ``learns``: True if the policy uses statistics of ended programs. ``learned`` holds this
      engine's statistics.
    - ``follows_program``: True if the waiting calls of a program get a new priority whenever
      another call of the program arrives or ends.
    - ``settings``: the fields of `SchedulerConfig` that this policy uses, among the fields that
      only some policies use.
    """

    revision: int = 0
    """A number that changes when the statistics have changed so much that all waiting calls are
    ranked again.
    """
    name: ClassVar[str]
    levelled: ClassVar[bool] = True
    starving: ClassVar[bool] = True
    follows_program: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    settings: ClassVar[frozenset[str]] = frozenset({"quanta", "beta", "max_promoted"})

    _former_names: ClassVar[Mapping[str, str]] = {"admission_rank": "tenant_queue_rank"}
    """The former names of methods, each with its present name. Subclasses of other packages may
    define the methods under both names until 0.4.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        methods = vars(cls)
        for former, name in cls._former_names.items():
            if former in methods and name not in methods:
                warnings.warn(
                    f"policy {cls.__name__} defines {former}, which is now {name}; rename the "
                    "method, because the old name works only until version 0.4",
                    DeprecationWarning,
                    stacklevel=3,  # the class statement, beyond ABCMeta
                )
                setattr(cls, name, methods[former])

    @classmethod
    def _method_of(cls, former: str) -> Any:
        """Return the method that was formerly called ``former``: the first definition under the
        present name in the order of the base classes. Warn the caller's caller.

        Methods that `__init_subclass__` has renamed are skipped. Such a method may call ``super()``
        under the former name, and would get itself again.
        """
        name = cls._former_names[former]
        warnings.warn(
            f"the method {former} of a policy is now {name}; the old name works until version 0.4",
            DeprecationWarning,
            stacklevel=3,
        )
        for base in cls.__mro__:
            method = vars(base).get(name)
            if method is not None and method is not vars(base).get(former):
                return method
        raise AttributeError(name)

    def __init__(self, config: SchedulerConfig) -> None:
        self.config, self.learned = config, Learned()

    def promoter(self, slots: int) -> Promoter | None:
        """Return the promoter that keeps calls from starving in an engine with ``slots`` batch
        slots; None if no calls are promoted.
        """
        if not (self.levelled and self.starving):
            return None
        return Starvation(self.config)

    @classmethod
    def tenant_queue_rank(cls, path_s: float | None, program_service_s: float) -> float:
        """Return the rank of a call in its tenant's queue, outside the engine. The rank is compared
        with those of the same tenant's other calls; calls with a lower rank run first.

        ``path_s`` is p(c) of Eq. 2 in the Agentix paper, in seconds; it is None if the call's
        parents are unknown. ``program_service_s`` is the service of the call's program. The rank of
        a call is computed only once.
        """
        return program_service_s if path_s is None else path_s

    @classmethod
    def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
        """Return the result of `tenant_queue_rank`, which was called ``admission_rank`` before 0.3.
        The old name will be removed in 0.4.
        """
        method = cls._method_of("admission_rank")
        result: float = method.__get__(None, cls)(path_s, program_service_s)
        return result

    @abstractmethod
    def priority(self, call: QueuedCall, now: float) -> Priority:
        """Return the priority of a call at the time ``now``. This is called when the call arrives,
        and again when its priority may have changed, for example with its program's service or the
        policy's statistics.
        """

    def on_quantum_expired(self, call: QueuedCall, now: float) -> Priority:
        """Return the new priority of a call whose quantum is used up."""
        return self.priority(call, now)

    def preempts_by(self, better: QueuedCall, call: QueuedCall) -> int:
        """Return by how many levels a waiting call, ``better``, must be better than a running call
        to take its slot.
        """
        return 1

    def call_left(self, call: QueuedCall) -> Iterable[QueuedCall]:
        """Handle the first start of a call, or its end if it never ran. Return the waiting calls
        whose priority changes because this call does not wait any more.
        """
        return ()

    def program_ended(self, row: EngineProgram, now: float) -> None:  # noqa: B027  # few learn
        """Learn from a program that has ended."""

    def program_lost(self, row: EngineProgram) -> None:  # noqa: B027  # few keep anything
        """Drop the policy's state about a program without learning from the program, for example
        because it has timed out or was never served.
        """
