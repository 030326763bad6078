"""A clock that nobody can set, for the due times of programs that sleep or wait.

The time of day may be set at any moment, by NTP, by an administrator or when a machine resumes. A
sleep of an hour lasts an hour all the same, so its end is a time of a `SteadyClock`. That clock
shows the time of day when it is first started, and from then on counts the seconds that pass:

- While the machine is up, the time since its boot decides, with what it slept (`CLOCK_BOOTTIME`).
  That holds for a later process of the same boot, too: it takes the clock up by its last `Reading`.
- After another boot, or on another machine, only the time of day can tell how long it was. If that
  is behind, nothing has passed: the clock never goes backwards. A machine without a battery for its
  clock begins like that, and is set a moment later: once the time of day is past where it was, it
  decides after all.

Where a person gives a date and a time, as in a cron's schedule, the time of day as it is set then
decides, and no clock of this kind. `SteadyClock.time_of_day` says what to show to people.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

LOOK_S = 10.0
"""Timers of an event loop stand still while the machine sleeps: they look again this often."""
KEEP_S = 600.0
"""Whoever owns a clock keeps its reading this often, at its end, and when the time of day was set:
after another boot with a time of day that is behind, so much at the most was for nothing."""
EARLY_S = 0.001
"""A timer of an event loop may be early by so much."""
SET_S = 0.05
"""The time of day was set if it is so far from where it was: less is the noise of reading it."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/time")
"""Two containers may count the time since one boot from different moments."""


def seconds_since_boot() -> float:
    """Seconds since the machine's boot, with those that it slept where the system tells them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def name_of_boot() -> str:
    """A name of the machine's present boot; "" where the system has none."""
    try:
        boot = _BOOT.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    try:
        return f"{boot} {_NAMESPACE.readlink()}"
    except OSError:
        return boot


def _seconds_of_loop() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class MachineClocks:
    """The clocks of a machine: the ``time_of_day`` (seconds since 1970), which may be set, and the
    seconds ``since_boot``, which cannot, with a name of that ``boot``; "" if it has none. Whoever
    waits looks at them every ``look_s`` seconds.
    """

    time_of_day: Callable[[], float] = time.time
    since_boot: Callable[[], float] = seconds_since_boot
    boot: str = field(default_factory=name_of_boot)
    look_s: float = LOOK_S


class Reading(NamedTuple):
    """What a clock showed: ``now``, when the machine was up for ``since_boot`` seconds in its
    ``boot``. The time of day is ``shift`` seconds ahead of the clock.
    """

    boot: str
    since_boot: float
    now: float
    shift: float


class SteadyClock:
    """Seconds since 1970 by the time of day at first, and then by the seconds that pass.

    It goes on from the ``last`` reading of an earlier process, if there is one. ``shift`` is how
    far the time of day is ahead, as of the last `look`.
    """

    def __init__(self, machine: MachineClocks | None = None, last: Reading | None = None) -> None:
        self._machine = MachineClocks() if machine is None else machine
        self._last = last
        self._zero: float | None = None
        self._is_behind = False
        self.shift = 0.0

    @classmethod
    def of_loop(cls) -> SteadyClock:
        """The clock of programs that end with their process: the time of the event loop."""
        return cls(MachineClocks(since_boot=_seconds_of_loop, boot="", look_s=math.inf))

    def now(self) -> float:
        """The seconds that it shows."""
        if self._zero is None:
            self._zero = self._start()
        return self._zero + self._machine.since_boot()

    def _start(self) -> float:
        machine, last = self._machine, self._last
        since_boot, time_of_day = machine.since_boot(), machine.time_of_day()
        if last is None:
            return time_of_day - since_boot
        self.shift = last.shift
        if machine.boot and machine.boot == last.boot and since_boot >= last.since_boot:
            return last.now - last.since_boot
        self._is_behind = time_of_day - last.shift < last.now
        return max(last.now, time_of_day - last.shift) - since_boot

    def look(self) -> bool:
        """Learn whether the time of day was set since the last look."""
        now, time_of_day = self.now(), self._machine.time_of_day()
        if self._is_behind:
            assert self._last is not None
            missing = time_of_day - self._last.shift - now
            if missing > SET_S:
                self._is_behind = False
                self._zero, now = now + missing - self._machine.since_boot(), now + missing
        shift = time_of_day - now
        if abs(shift - self.shift) < SET_S:
            return False
        self.shift = shift
        return True

    def reading(self) -> Reading:
        """What a later process goes on from."""
        self.look()
        return Reading(self._machine.boot, self._machine.since_boot(), self.now(), self.shift)

    def time_of_day(self, at: float) -> float:
        """The time of day, as it is set now, at which this clock shows ``at``; for people."""
        self.look()
        return at + self.shift

    def at(self, time_of_day: float) -> float:
        """What this clock shows at a time of day as it is set now."""
        self.look()
        return time_of_day - self.shift

    # -- waiting -----------------------------------------------------------------------

    @property
    def look_s(self) -> float:
        """Whoever waits looks at the clock this often."""
        return self._machine.look_s

    async def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        until = self.now() + seconds
        await asyncio.sleep(min(seconds, self.look_s))
        while (left := until - self.now()) > EARLY_S:  # noqa: ASYNC110  # time is no event
            await asyncio.sleep(min(left, self.look_s))

    async def wait(self, future: asyncio.Future[Any], timeout: float | None) -> bool:
        """Whether a future is done, once it is or so many seconds have passed."""
        if timeout is None:
            await asyncio.wait([future])
            return True
        until, left = self.now() + timeout, timeout
        while not (await asyncio.wait([future], timeout=min(left, self.look_s)))[0]:
            if (left := until - self.now()) <= EARLY_S:
                return False
        return True

    def call_later(self, seconds: float, do: Callable[[], object]) -> Alarm:
        """Call ``do`` on the running loop once so many seconds have passed."""
        return Alarm(self, self.now() + seconds, do)


class Alarm:
    """A call that is due at a time of a ``clock``, unless it is cancelled before."""

    def __init__(self, clock: SteadyClock, at: float, do: Callable[[], object]) -> None:
        self._clock, self._at, self._do = clock, at, do
        self._set()

    def _set(self) -> None:
        seconds = min(max(0.0, self._at - self._clock.now()), self._clock.look_s)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        if self._at - self._clock.now() > EARLY_S:
            self._set()
        else:
            self._do()

    def cancel(self) -> None:
        """Do not call it any more. Idempotent."""
        self._timer.cancel()
